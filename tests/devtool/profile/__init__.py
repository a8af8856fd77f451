"""`devtool profile`, and the machine code that it and `devtool report` read."""
