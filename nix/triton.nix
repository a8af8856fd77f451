# Triton, for the ops whose device code is written in it: only they are rebuilt for another version. null if the lock
# has no Triton: such an op then has no CUDA code.
{ pkgs, python, wheels }:
let
  inherit (pkgs) lib;
  wheel = wheels.sets.cuda13.triton or null;
in
if wheel == null then null else
pkgs.gcc12Stdenv.mkDerivation {
  name = "pyxla-triton";
  dontUnpack = true;
  dontStrip = true;
  nativeBuildInputs = [ python pkgs.autoPatchelfHook ];
  buildInputs = [ (lib.getLib pkgs.gcc12Stdenv.cc.cc) pkgs.zlib ];
  # Triton's profilers look for the driver's libraries.
  autoPatchelfIgnoreMissingDeps = [ "*" ];
  installPhase = ''
    ${wheels.link [ wheels.sets.dev.pip wheel ]}
    ${wheels.pip} install --quiet --no-index --no-deps --no-compile --no-warn-script-location \
      --disable-pip-version-check --root-user-action ignore --target $out/site $wheels/${wheel.file}
  '';
}
