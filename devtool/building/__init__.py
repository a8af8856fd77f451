"""Builds op libraries, and says what is built."""
