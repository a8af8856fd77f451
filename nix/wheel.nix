# The Python wheel, with the release's libraries and what the CUDA device needs in addition to the vendor's plugin inside.
{ pkgs, python, wheels, version, build, release }:
let
  inherit (pkgs) lib;
  filtered = import ./filtered.nix;
  device = build {
    pname = "pyxla-device";
    sources = lib.genAttrs [ "pyxla/pjrt_proxy" "pyxla/torch_backend" ]
      (folder: filtered { path = ../. + "/${folder}"; files = "[^/]*\\.(cc|h|txt|map)"; });
    targets = [ "pjrt_proxy" "set_device" ];
    installPhase = "mkdir -p $out/lib; cp build/lib/pyxla_*.so $out/lib/";
  };
  source = filtered {
    name = "pyxla-source";
    path = ../.;
    files = "(pyxla|devtool|kernels)/.*|(pyproject|README|LICENSE|setup).*";
    folders = "(pyxla|devtool|kernels)(/.*)?";
  };
  # Libraries need glibc 2.35 at most (`devtool verify`); the tag says so to pip.
  platform = "manylinux_2_35_" + builtins.head (builtins.match "(.*)-linux" pkgs.stdenv.hostPlatform.system);
in
pkgs.runCommand "pyxla-wheel-${version}" { nativeBuildInputs = [ python ]; } ''
  ${wheels.install "install --target site" [ wheels.sets.dev.setuptools ] [ ]}
  cp -r --no-preserve=mode ${source} source
  # The time of the zip's entries.
  export SOURCE_DATE_EPOCH=315532800 PYTHONPATH=$PWD/site PYXLA_LIBRARIES=${release}/lib:${device}/lib
  ${python.interpreter} -I wheels/${wheels.sets.dev.pip.file}/pip wheel --quiet --no-index --no-deps --no-build-isolation \
    --disable-pip-version-check --wheel-dir $out --config-settings=--build-option=--plat-name=${platform} ./source
''
