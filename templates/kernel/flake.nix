{
  description = "GPU kernels for PyTorch on XLA";

  # Where you have pyxla: a checkout (path:/src/pyxla), a git or a GitHub repository.
  inputs.pyxla.url = "github:pyxla/pyxla";

  # The ops of kernels/ and their release, the tests as a check, a shell with devtool, and the formatter.
  outputs = { pyxla, ... }: pyxla.lib.repository ./.;
}
