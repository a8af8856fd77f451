# `nix develop`: the locked wheels, the tool chain and this checkout's own devtool and pyxla.
{ pkgs }:
variant:
pkgs.gcc12Stdenv.mkDerivation {
  name = "pyxla-shell";
  dontUnpack = true;
  nativeBuildInputs = [ variant.develop variant.toolchain ];
  # bin/devtool then takes the python3 on PATH.
  PYXLA_NIX_SHELL = "1";
  PYXLA_CUDA = variant.cudaOption;
  installPhase = "mkdir $out";
  shellHook = ''
    pyxla_root=$(git rev-parse --show-toplevel 2>/dev/null || pwd)
    if [ -x "$pyxla_root/bin/devtool" ]; then
      # nixpkgs' Python hooks would hide the environment's own packages.
      unset PYTHONHOME PYTHONNOUSERSITE
      export PYTHONPATH=$(python3 -I "$pyxla_root/nix/link_checkout.py" "$pyxla_root")
      export PATH=$pyxla_root/bin:$PATH
      [ -e "$pyxla_root/build/cmake/compile_commands.json" ] || devtool build --configure-only
    else
      echo "nix develop: checkout: expected bin/devtool in $pyxla_root, got none" >&2
      printf '\nhint: cd into a checkout of pyxla\n' >&2
    fi
    unset pyxla_root
  '';
}
