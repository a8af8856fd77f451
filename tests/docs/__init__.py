"""The documents compared with the code, and as pages."""
