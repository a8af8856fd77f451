{
  description = "GPU kernels of my own, as custom calls for PyTorch/XLA";

  # Where you have pyxla: a checkout (path:/src/pyxla), a git or a GitHub repository.
  inputs.pyxla.url = "github:pyxla/pyxla";

  outputs = { pyxla, ... }: {
    # One package per folder of kernels/, and the release of all of them as the default.
    packages = builtins.mapAttrs
      (system: _: pyxla.lib.kernelPackages { inherit system; kernels = ./kernels; })
      pyxla.packages;
    # `nix flake check` calls the ops on XLA's CPU device.
    checks.x86_64-linux.call = pyxla.lib.kernelCheck { system = "x86_64-linux"; kernels = ./kernels; script = ./check.py; };
  };
}
