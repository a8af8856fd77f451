"""Sphinx's configuration for the repository that contains the working directory.

docs/conf.py of a repository, if there is one, takes its place. It begins with `from devtool.pages.conf import *`.
"""

from pathlib import Path

from devtool.project import repository

_repository = repository()
_table = _repository.project
_authors = [author["name"] for author in _table.get("authors", ()) if "name" in author]
_license = _table.get("license")

project = _table["name"]
version = _table.get("version", "")
project_copyright = ", ".join(
    [*(_authors or [f"the {project} authors"]), *([_license] if isinstance(_license, str) else [])]
)

# The second one writes .nojekyll, without which GitHub Pages serves no _static/.
extensions = ["myst_parser", "sphinx.ext.githubpages", "devtool.pages.extension"]
root_doc = "index"
# docs/index.md may include it.
exclude_patterns = ["_readme.md"]

myst_heading_anchors = 4
myst_enable_extensions = ["attrs_inline", "colon_fence"]
# A heading that skips a level, and a code block in a language without a lexer: GitHub shows both.
suppress_warnings = ["myst.header", "misc.highlighting_failure"]

highlight_language = "text"
# A dash in an option is a dash.
smartquotes = False

# Docstrings write code in single backticks, as Markdown does.
default_role = "code"
# Names of Python other than the ops have their reference elsewhere: the build takes nothing from the network.
nitpick_ignore_regex = [("py:.*", ".*")]

html_theme = "furo"
html_title = f"{project} {version}".strip()
html_static_path = [str(Path(__file__).parent / "static")]
html_css_files = ["site.css"]
html_copy_source = False
html_show_sphinx = False
html_theme_options = {"navigation_with_keys": True}
