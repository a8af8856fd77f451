# The documentation as pages, including those generated from the code; any mistake in them is an error.
{ pkgs, develop, toolchain, version }:
let
  source = builtins.path { name = "pyxla-docs-source"; path = ../.; };
in
pkgs.gcc12Stdenv.mkDerivation {
  name = "pyxla-docs-${version}";
  dontUnpack = true;
  dontFixup = true;
  nativeBuildInputs = [ develop toolchain ];
  PYXLA_NIX_SHELL = "1";
  SOURCE_DATE_EPOCH = "315532800";
  installPhase = ''
    cp -r --no-preserve=mode ${source} checkout
    chmod +x checkout/bin/devtool
    cd checkout
    export HOME=$PWD/.. PATH=$PWD/bin:$PATH PYTHONPATH=$(python3 -I nix/link_checkout.py .)
    devtool docs --output $out
  '';
}
