"""How Sphinx makes the pages of this checkout: as of any repository, and of commands, Python and C++ too."""

import os
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
# The checkout that the pages are of, whatever is installed.
sys.path[:0] = [str(ROOT), str(ROOT / "docs")]

from sitegen.cpp_api import clang_arguments  # noqa: E402

from devtool.pages.conf import *  # noqa: E402, F403
from devtool.pages.conf import extensions  # noqa: E402

extensions += [
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx.ext.napoleon",
    "sphinx_click",
    "hawkmoth",
    "sitegen",
]
site_documents = {
    "kernels/README.md": "reference/op-folder.md",
    "pyxla/include": "reference/cpp.md",
}
# Ours are as strict as they can be.
suppress_warnings = []

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

nitpick_ignore_regex = [
    ("py:.*", r"(?!pyxla\b|devtool\b).*"),
    ("cpp:.*", r"(?!pyxla::|Pyxla).*"),
    # A namespace has no comment of its own.
    ("cpp:identifier", "pyxla::ptx"),
]
