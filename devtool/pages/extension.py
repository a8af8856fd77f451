"""The Sphinx extension: what the pages take from a repository, its Markdown and pages made from its code.

Sphinx reads one folder of sources. Before it does, this writes that folder anew: the repository's Markdown where the
site wants it, a page for each op, and one for each file that a page links to. Other extensions add theirs at the event
`site-pages`, with the `Site` as argument.
"""

from __future__ import annotations

from pathlib import Path

from sphinx.application import Sphinx

from devtool import project
from devtool.pages import doctree, ops
from devtool.pages.staging import Site


def write_sources(app: Sphinx) -> None:
    """Writes all pages' sources, before Sphinx looks for them."""
    site = Site(project.repository(), Path(app.srcdir), app.config.site_documents)
    app.emit("site-pages", site)
    ops.write(site)
    site.finish()


def setup(app: Sphinx) -> dict:
    """Sphinx calls this."""
    # Files and folders outside docs/, and the page of each.
    app.add_config_value("site_documents", {}, "env", dict)
    app.add_event("site-pages")
    app.connect("builder-inited", write_sources)
    app.add_transform(doctree.InlinePictures)
    app.add_transform(doctree.DrawDashes)
    app.add_transform(doctree.LinkNames)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
