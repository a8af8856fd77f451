"""Builds op libraries, and lists which are built."""
