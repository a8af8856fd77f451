# The wheel that an op's wrapped.json names, for its headers: a site folder for PYTHONPATH. null if the lock lacks the
# wheel: then CMake says what it looked for.
{ pkgs, python, wheels }:
name:
let
  inherit (pkgs) lib;
  wheel = (wheels.sets.cuda13 // wheels.sets.dev).${name} or null;
in
if wheel == null then null else
pkgs.gcc12Stdenv.mkDerivation {
  name = "pyxla-${name}";
  dontUnpack = true;
  dontFixup = true;
  nativeBuildInputs = [ python ];
  installPhase = ''
    ${wheels.link [ wheels.sets.dev.pip wheel ]}
    ${wheels.pip} install --quiet --no-index --no-deps --no-compile --no-warn-script-location \
      --disable-pip-version-check --root-user-action ignore --target $out/site $wheels/${wheel.file}
  '';
}
