"""A library becomes handlers: where it lies, whether it is the one that was built, and its registration with XLA."""
