"""Runs a script, and reports what torch_xla and XLA did."""
