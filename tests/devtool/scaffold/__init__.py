"""`devtool new-op`."""
