"""`devtool list` and `devtool hlo`."""
