"""Runs Sphinx on the repository that contains the working directory, with sphinx-build's arguments."""

import sys

from sphinx.cmd.build import main

from devtool.project import repository

# Found before Sphinx reads conf.py: it changes to that folder for it.
repository()
sys.exit(main(sys.argv[1:]))
