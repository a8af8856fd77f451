# A Python environment: a venv in the store with these wheels, on top of `base`, another environment. Layers, because
# torch's wheels are 7 GB that an edit of pyxla must not copy.
{ pkgs, python, wheels }:
{ name, packages, base ? null, extra ? "" }:
let
  inherit (pkgs) lib;
  site = "lib/python${python.pythonVersion}/site-packages";
in
pkgs.gcc12Stdenv.mkDerivation {
  name = "pyxla-${name}";
  dontUnpack = true;
  dontStrip = true;
  nativeBuildInputs = [ python pkgs.autoPatchelfHook ];
  # torch_xla's library needs libpython and libstdc++, Triton's needs zlib; all need the driver, at NixOS's path.
  buildInputs = [ (lib.getLib pkgs.gcc12Stdenv.cc.cc) pkgs.zlib python ];
  appendRunpaths = [ "/run/opengl-driver/lib" ];
  # Missing here: the driver's library, what torch opens only on other machines, what a wheel finds in another's folder.
  autoPatchelfIgnoreMissingDeps = [ "*" ];

  installPhase = ''
    ${wheels.link ([ wheels.sets.dev.pip ] ++ packages)}
    ${python.interpreter} -I -m venv --without-pip $out
    ${lib.optionalString (base != null) "echo ${base}/${site} > $out/${site}/base.pth"}
    ${wheels.pip} --python $out/bin/python install --quiet --no-index --no-deps --no-compile \
      --disable-pip-version-check --root-user-action ignore \
      ${lib.concatMapStringsSep " " (wheel: "$wheels/${wheel.file}") packages} ${extra}
    # Bytecode that is checked by its source's content: the store keeps no times.
    $out/bin/python -I -m compileall -q -j 0 --invalidation-mode unchecked-hash $out/${site} || true
  '';
}
