"""`devtool test`."""
