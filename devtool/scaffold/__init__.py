"""Writes the folder of a new op."""
