"""One file per command; the callback imports what is heavy."""
