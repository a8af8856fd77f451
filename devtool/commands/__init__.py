"""One file per command; slow imports are in the callback."""
