"""Runs the tests of ops, and shows what their checks saw."""
