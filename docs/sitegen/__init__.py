"""What the pages take from the repository: its Markdown, and pages made from its code.

Sphinx reads one folder of sources. Before it does, this writes that folder anew: the project's Markdown where the site
wants it, a page for each op, command, Python module and C++ header, and one for each file that a page links to.
"""

from __future__ import annotations

from pathlib import Path

from sphinx.application import Sphinx

from sitegen import commands, cpp_api, doctree, ops, python_api
from sitegen.staging import Site


def write_sources(app: Sphinx) -> None:
    """Writes all pages' sources, before Sphinx looks for them."""
    site = Site(root=Path(app.confdir).parent, folder=Path(app.srcdir))
    app.config.sitegen_commands = commands.write(site)
    python_api.write(site)
    cpp_api.write(site)
    ops.write(site)
    site.finish()


def setup(app: Sphinx) -> dict:
    """Sphinx calls this."""
    app.add_config_value("sitegen_commands", [], "env", list)
    app.connect("builder-inited", write_sources)
    app.add_directive("devtool-command", commands.CommandDirective)
    app.add_transform(doctree.InlinePictures)
    app.add_transform(doctree.DrawDashes)
    app.add_transform(doctree.LinkNames)
    # Before napoleon reads them.
    app.connect("autodoc-process-docstring", python_api.one_name_a_line, priority=400)
    app.connect("autodoc-skip-member", python_api.without_own_words)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
