"""Sums over the devices of a mesh: tests/spmd/test_summed.py starts them with two, four and eight devices."""
