"""How Sphinx makes the pages: `devtool docs` runs it. What is read from the code is written by docs/sitegen."""

import os
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
# The checkout that the pages are of, whatever is installed.
sys.path[:0] = [str(ROOT), str(ROOT / "docs")]

from sitegen.cpp_api import clang_arguments  # noqa: E402

project = "pyxla"
version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
project_copyright = "the pyxla authors, Apache-2.0"

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx.ext.napoleon",
    "sphinx_click",
    "hawkmoth",
    "sitegen",
]
root_doc = "index"
# index.md includes all of it.
exclude_patterns = ["readme.md"]

myst_heading_anchors = 4
myst_enable_extensions = ["attrs_inline", "colon_fence"]

highlight_language = "text"
# A dash in an option is a dash.
smartquotes = False

# Docstrings write code in single backticks, as Markdown does.
default_role = "code"
autodoc_typehints = "description"
autodoc_typehints_description_target = "documented"
autodoc_member_order = "bysource"
autodoc_class_signature = "mixed"
autosummary_generate = False
napoleon_numpy_docstring = False
napoleon_use_ivar = True

hawkmoth_root = str(ROOT)
hawkmoth_clang = clang_arguments()
# Only its search path for the standard headers is asked for.
hawkmoth_compiler = os.environ.get("CXX", "c++")

# What is not ours has its reference elsewhere: the build takes nothing from the network.
nitpick_ignore_regex = [
    ("py:.*", r"(?!pyxla\b|devtool\b).*"),
    ("cpp:.*", r"(?!pyxla::|Pyxla).*"),
    # A namespace has no comment of its own.
    ("cpp:identifier", "pyxla::ptx"),
]

html_theme = "furo"
html_title = f"pyxla {version}"
html_static_path = ["static"]
html_css_files = ["site.css"]
html_copy_source = False
html_show_sphinx = False
html_theme_options = {"navigation_with_keys": True}
