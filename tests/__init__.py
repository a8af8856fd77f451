"""The tests: each folder mirrors a package of pyxla or a part of devtool; the files here are shared."""
