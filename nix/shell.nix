# Commands in a derivation, and an interactive shell, both with an environment of wheels and the tool chain.
{ lib, compile, cuda, environment, toolchain }:
let
  attributes = {
    nativeBuildInputs = [ environment toolchain ];
    # bin/devtool then takes the python3 on PATH.
    PYXLA_NIX_SHELL = "1";
    PYXLA_CUDA = if cuda then "on" else "off";
  };
in
{
  # Commands in a copy of the folder `source`; they write $out.
  run = { name, source, commands }: compile (attributes // {
    name = "pyxla-${name}";
    SOURCE_DATE_EPOCH = "315532800";
    installPhase = ''
      cp -r --no-preserve=mode ${source} checkout
      cd checkout
      export HOME=$PWD/..
      ${commands}
    '';
  });

  # pyxla: the folder of the package. The commands find the root of the repository in pyxla_root.
  shell = { name, pyxla, commands }: compile (attributes // {
    inherit name;
    installPhase = "mkdir $out";
    shellHook = ''
      pyxla_root=$(git rev-parse --show-toplevel 2>/dev/null || pwd)
      # nixpkgs' Python hooks would hide the environment's own packages.
      unset PYTHONHOME PYTHONNOUSERSITE PYTHONPATH
      ${commands}
    '' + lib.optionalString cuda ''
      # Nix's loader knows no library of the machine; the driver is one.
      pyxla_driver=$(python3 -I "${pyxla}/pjrt/driver.py" "$pyxla_root/build/nix-shell/driver")
      [ -z "$pyxla_driver" ] || export LD_LIBRARY_PATH=$pyxla_driver''${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
    '' + ''
      unset pyxla_root pyxla_driver
    '';
  });
}
