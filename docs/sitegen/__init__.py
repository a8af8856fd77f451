"""What the pages of this checkout have beside those of any repository: commands, Python modules and C++ headers."""

from __future__ import annotations

from sphinx.application import Sphinx

from devtool.pages.staging import Site
from sitegen import commands, cpp_api, python_api


def write_sources(app: Sphinx, site: Site) -> None:
    """Writes a page for each command, module and header."""
    app.config.sitegen_commands = commands.write(site)
    python_api.write(site)
    cpp_api.write(site)


def setup(app: Sphinx) -> dict:
    """Sphinx calls this."""
    app.add_config_value("sitegen_commands", [], "env", list)
    app.connect("site-pages", write_sources)
    app.add_directive("devtool-command", commands.CommandDirective)
    app.add_transform(commands.LinkCommands)
    # Before napoleon reads them.
    app.connect("autodoc-process-docstring", python_api.one_name_a_line, priority=400)
    app.connect("autodoc-skip-member", python_api.without_own_words)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
