"""Checks the machine and the installation."""
