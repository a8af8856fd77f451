"""Splits ops over several devices."""
