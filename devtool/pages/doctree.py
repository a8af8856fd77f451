"""What is done to pages after they are read: pictures become part of the page, and names in code become links."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from docutils import nodes
from sphinx import addnodes
from sphinx.transforms import SphinxTransform

_NAME = re.compile(r"(?P<name>(?:pyxla|torch\.ops)(?:\.\w+)+)(?:\(.*\))?", re.DOTALL)


class InlinePictures(SphinxTransform):
    """SVG files as part of the page: so their lines and letters take the colours of its theme."""

    default_priority = 300

    def apply(self, **kwargs) -> None:
        """Replaces each picture."""
        for image in list(self.document.findall(nodes.image)):
            path = Path(self.env.srcdir, self.env.docname).parent / image["uri"]
            if path.suffix != ".svg" or "://" in image["uri"]:
                continue
            self.env.note_dependency(str(path))
            svg = re.sub(r"^\s*<\?xml.*?\?>", "", path.read_text())
            frame = f'<div class="picture" tabindex="0" role="group" aria-label="Picture">{svg}</div>'
            # A picture on a line of its own is all of its paragraph, which cannot hold a block.
            place = image.parent if isinstance(image.parent, nodes.paragraph) and len(image.parent) == 1 else image
            place.replace_self(nodes.raw("", frame, format="html"))


class DrawDashes(SphinxTransform):
    """Sphinx writes two hyphens between a parameter and what it is. Elsewhere two hyphens begin an option."""

    default_priority = 400

    def apply(self, **kwargs) -> None:
        """Makes a dash of them."""
        for text in list(self.document.findall(nodes.Text)):
            if text == " -- ":
                text.parent.replace(text, nodes.Text(" \N{EN DASH} "))


class LinkNames(SphinxTransform):
    """`torch.ops.xla_gpu.rms_norm` in a text leads to its reference, and so does `pyxla.inspect` where there is one."""

    default_priority = 400

    def apply(self, **kwargs) -> None:
        """Wraps each such code span in a reference; one that nothing answers stays as it is."""
        for literal in unlinked(self.document):
            if match := _NAME.fullmatch(literal.astext()):
                link(literal, addnodes.pending_xref(
                    "", refdomain="py", reftype="obj", reftarget=match["name"], refwarn=False, refdoc=self.env.docname
                ))  # fmt: skip


def unlinked(document: nodes.document) -> Iterator[nodes.literal]:
    """The code spans outside of titles and links."""
    for literal in list(document.findall(nodes.literal)):
        if not any(isinstance(n, nodes.reference | addnodes.pending_xref | nodes.title) for n in _above(literal)):
            yield literal


def link(literal: nodes.literal, reference: nodes.Element) -> None:
    """Makes the code span the text of the reference."""
    literal.parent.replace(literal, reference)
    reference += literal


def _above(node: nodes.Node):
    while node is not None:
        yield node
        node = node.parent
