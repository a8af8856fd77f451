"""`devtool trace`."""
