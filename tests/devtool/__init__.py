"""devtool: a folder for each of its packages; the tests of its single modules are here."""
