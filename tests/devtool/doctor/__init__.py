"""`devtool doctor`."""
