"""Reads what `devtool new-op --from` names: a Python function, a CUDA launch function, a Triton kernel. None is run."""
