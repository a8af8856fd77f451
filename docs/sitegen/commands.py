"""A page for each command of devtool: its help, read from click, then what docs/reference/cli/<command>.md adds."""

from __future__ import annotations

import re

from docutils import nodes
from sphinx.transforms import SphinxTransform
from sphinx_click.ext import ClickDirective

from devtool.pages.doctree import link, unlinked
from devtool.pages.staging import Site

_COMMAND = re.compile(r"(?:bin/)?devtool (?P<name>[a-z][\w-]+)\b.*", re.DOTALL)


def write(site: Site) -> list[str]:
    """Writes the commands' pages, and into cli.md the list of them. Returns their names."""
    from devtool.cli import cli

    rows = ""
    for name, command in sorted(cli.commands.items()):
        page, source = f"reference/cli/{name}.md", f"docs/reference/cli/{name}.md"
        title, text = f"# devtool {name}\n", ""
        if (site.root / source).is_file():
            title, _, text = site.document(source).partition("\n")
        module = command.callback.__module__
        site.write(page, f"{title}\n\n```{{eval-rst}}\n.. devtool-command:: {module}:{_attribute(module, command)}\n"
                   f"   :prog: devtool {name}\n   :nested: none\n```\n{text}")  # fmt: skip
        rows += f"| [{name}](cli/{name}.md) | {command.help.partition(chr(10))[0]} |\n"
    overview = site.document("docs/reference/cli.md")
    listed = f"| command | what it does |\n|---|---|\n{rows}"
    toctree = "\n```{toctree}\n:hidden:\n:glob:\n\ncli/*\n```\n"
    site.write("reference/cli.md", overview.replace("<!-- commands -->\n", listed) + toctree)
    return sorted(cli.commands)


def _attribute(module: str, command) -> str:
    import importlib

    return next(name for name, value in vars(importlib.import_module(module)).items() if value is command)


class CommandDirective(ClickDirective):
    """sphinx-click's directive without its title: the page has one."""

    def run(self) -> list[nodes.Node]:
        """The command's description, usage and options."""
        (section,) = super().run()
        return section.children[1:]


class LinkCommands(SphinxTransform):
    """`devtool hlo` in a text leads to its page."""

    default_priority = 400

    def apply(self, **kwargs) -> None:
        """Wraps each such code span in a reference."""
        for literal in unlinked(self.document):
            match = _COMMAND.fullmatch(literal.astext())
            if match is None or match["name"] not in self.config.sitegen_commands:
                continue
            page = f"reference/cli/{match['name']}"
            if page != self.env.docname:
                address = self.app.builder.get_relative_uri(self.env.docname, page)
                link(literal, nodes.reference("", "", internal=True, refuri=address, refdoc=self.env.docname))
