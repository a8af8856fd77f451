# `nix flake check`: the checks of the flake that CI runs, without a GPU.
{ pkgs, packages, formatter, cpu, release, hasTorchXla }:
let
  inherit (pkgs) lib;
  source = builtins.path { name = "pyxla-source"; path = ../.; };
  # A check works in a copy of the checkout, as in `nix develop`.
  inCheckout = name: text: pkgs.gcc12Stdenv.mkDerivation {
    name = "pyxla-check-${name}";
    dontUnpack = true;
    dontFixup = true;
    nativeBuildInputs = [ cpu.develop cpu.toolchain ];
    PYXLA_NIX_SHELL = "1";
    PYXLA_CUDA = "off";
    buildPhase = ''
      cp -r --no-preserve=mode ${source} checkout
      chmod +x checkout/bin/devtool
      cd checkout
      export HOME=$PWD/.. PATH=$PWD/bin:$PATH PYTHONPATH=$(python3 -I nix/link_checkout.py .)
      ${text}
    '';
    installPhase = "touch $out";
  };
in
{
  format = pkgs.runCommand "pyxla-check-format" { } ''
    cp -r --no-preserve=mode ${source} checkout
    cd checkout
    ${formatter}/bin/pyxla-format --check
    touch $out
  '';
} // lib.optionalAttrs hasTorchXla {
  inherit (packages) docs;
  # Every library loads, its table is what its manifest says, and it needs nothing but glibc, libstdc++ and the driver.
  libraries = inCheckout "libraries" "devtool verify ${release}/lib";
  # The ops' tests, on the libraries that Nix built; `devtool test --all` runs the slow ones too.
  tests = inCheckout "tests" ''
    mkdir -p build/lib
    cp ${cpu.release}/lib/lib* build/lib/
    python3 -P -m pytest -p pyxla.pytest_plugin -p devtool.testing.pytest_outcomes --without-slow -q kernels
  '';
  # What `devtool new-op` writes builds and passes.
  scaffold = inCheckout "scaffold" ''
    devtool new-op check_scaffold "(Tensor x, Tensor? weight, float scale=1.0) -> Tensor"
    devtool new-op check_triton --route triton
    echo 'void wrapped(void) {}' | gcc -shared -fPIC -x c - -o libwrapped.so
    devtool new-op check_wrap --route wrap --library libwrapped.so --symbol wrapped --version 1 --licence MIT
    devtool test check_scaffold check_triton check_wrap
  '';
}
