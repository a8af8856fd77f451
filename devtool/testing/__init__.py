"""Runs the tests of ops, and shows the results of their checks."""
