"""`devtool docs`."""
