# The Python wheel, with the release's libraries inside.
{ pkgs, python, wheels, version, release, device }:
let
  inherit (wheels.sets) dev;
  source = builtins.path {
    name = "pyxla-source";
    path = ../.;
    filter = path: type:
      let relative = builtins.replaceStrings [ "${toString ../.}/" ] [ "" ] path; in
      builtins.match "(pyxla|devtool|kernels)(/.*)?|(pyproject|README|LICENSE|setup).*" relative != null
      && baseNameOf path != "__pycache__";
  };
  # Libraries need glibc 2.35 at most (`devtool verify`); the tag says so to pip.
  platform = "manylinux_2_35_" + builtins.head (builtins.match "(.*)-linux" pkgs.stdenv.hostPlatform.system);
in
pkgs.runCommand "pyxla-wheel-${version}" { nativeBuildInputs = [ python ]; } ''
  ${wheels.link [ dev.pip dev.setuptools ]}
  ${wheels.pip} install --quiet --no-index --no-deps --no-compile --disable-pip-version-check --root-user-action ignore \
    --target site $wheels/${dev.setuptools.file}
  cp -r --no-preserve=mode ${source} source
  # The time of the zip's entries.
  export SOURCE_DATE_EPOCH=315532800 PYTHONPATH=$PWD/site PYXLA_LIBRARIES=${release}/lib:${device}/lib
  ${wheels.pip} wheel --quiet --no-index --no-deps --no-build-isolation --disable-pip-version-check --wheel-dir $out \
    --config-settings=--build-option=--plat-name=${platform} ./source
''
