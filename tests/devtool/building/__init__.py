"""`devtool build`."""
