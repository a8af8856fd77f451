"""The documents against the code, and as pages."""
