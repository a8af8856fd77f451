"""devtool: a folder for each package; the modules beside them here."""
