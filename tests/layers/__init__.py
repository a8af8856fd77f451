"""The allowed imports between the parts of the project."""
