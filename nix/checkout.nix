# A checkout with the locked wheels and the tool chain, and its own devtool and pyxla: `nix develop`, the checks, the pages.
{ lib, compile, cuda, develop, toolchain }:
let
  attributes = {
    nativeBuildInputs = [ develop toolchain ];
    # bin/devtool then takes the python3 on PATH.
    PYXLA_NIX_SHELL = "1";
    PYXLA_CUDA = if cuda then "on" else "off";
  };
in
rec {
  source = builtins.path { name = "pyxla-source"; path = ../.; };

  # Commands in a copy of the checkout; they write $out.
  run = name: commands: compile (attributes // {
    name = "pyxla-${name}";
    SOURCE_DATE_EPOCH = "315532800";
    installPhase = ''
      cp -r --no-preserve=mode ${source} checkout
      chmod +x checkout/bin/devtool
      cd checkout
      export HOME=$PWD/.. PATH=$PWD/bin:$PATH PYTHONPATH=$(python3 -I nix/link_checkout.py .)
      ${commands}
    '';
  });

  shell = compile (attributes // {
    name = "pyxla-shell";
    installPhase = "mkdir $out";
    shellHook = ''
      pyxla_root=$(git rev-parse --show-toplevel 2>/dev/null || pwd)
      if [ -x "$pyxla_root/bin/devtool" ]; then
        # nixpkgs' Python hooks would hide the environment's own packages.
        unset PYTHONHOME PYTHONNOUSERSITE
        export PYTHONPATH=$(python3 -I "$pyxla_root/nix/link_checkout.py" "$pyxla_root")
        export PATH=$pyxla_root/bin:$PATH
    '' + lib.optionalString cuda ''
        # Nix's loader knows no library of the machine; the driver is one.
        pyxla_driver=$(python3 -I "$pyxla_root/pyxla/pjrt/driver.py" "$pyxla_root/build/nix-shell/driver")
        [ -z "$pyxla_driver" ] || export LD_LIBRARY_PATH=$pyxla_driver''${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
    '' + ''
        [ -e "$pyxla_root/build/cmake/compile_commands.json" ] || devtool build --configure-only
      else
        echo "nix develop: checkout: expected bin/devtool in $pyxla_root, got none" >&2
        printf '\nhint: cd into a checkout of pyxla\n' >&2
      fi
      unset pyxla_root pyxla_driver
    '';
  });
}
