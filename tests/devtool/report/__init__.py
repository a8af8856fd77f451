"""`devtool report`."""
