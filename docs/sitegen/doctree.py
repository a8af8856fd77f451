"""What is done to pages after they are read: pictures become part of the page, and names in code become links."""

from __future__ import annotations

import re
from pathlib import Path

from docutils import nodes
from sphinx import addnodes
from sphinx.transforms import SphinxTransform

_NAME = re.compile(r"(?P<name>pyxla(?:\.\w+)+)(?:\(.*\))?", re.DOTALL)
_COMMAND = re.compile(r"(?:bin/)?devtool (?P<name>[a-z][\w-]+)\b.*", re.DOTALL)


class InlinePictures(SphinxTransform):
    """SVG files as part of the page: so their lines and letters take the colours of its theme."""

    default_priority = 300

    def apply(self, **kwargs) -> None:
        """Replaces each picture."""
        for image in list(self.document.findall(nodes.image)):
            path = Path(self.env.srcdir, self.env.docname).parent / image["uri"]
            if path.suffix != ".svg":
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
    """`pyxla.inspect` and `devtool hlo` in a text lead to their reference."""

    default_priority = 400

    def apply(self, **kwargs) -> None:
        """Wraps each such code span in a reference; one that nothing answers stays as it is."""
        for literal in list(self.document.findall(nodes.literal)):
            inside = literal.parent
            if any(isinstance(node, nodes.reference | addnodes.pending_xref | nodes.title) for node in _above(literal)):
                continue
            text = literal.astext()
            if match := _NAME.fullmatch(text):
                reference = addnodes.pending_xref(
                    "", refdomain="py", reftype="obj", reftarget=match["name"], refwarn=False
                )  # fmt: skip
            elif (match := _COMMAND.fullmatch(text)) and match["name"] in self.config.sitegen_commands:
                page = f"reference/cli/{match['name']}"
                if page == self.env.docname:
                    continue
                address = self.app.builder.get_relative_uri(self.env.docname, page)
                reference = nodes.reference("", "", internal=True, refuri=address)
            else:
                continue
            reference["refdoc"] = self.env.docname
            inside.replace(literal, reference)
            reference += literal


def _above(node: nodes.Node):
    while node is not None:
        yield node
        node = node.parent
