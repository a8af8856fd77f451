"""Finds the library of an op, checks that it is the one that was built, and registers its handlers with XLA."""
