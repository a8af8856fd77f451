from __future__ import annotations

from pathlib import Path

import click


@click.command()
@click.option(
    "--output", metavar="DIR", type=click.Path(file_okay=False, path_type=Path),
    help="Where the pages go: a new folder, or earlier pages  [default: build/docs]",
)  # fmt: skip
def docs(output: Path | None) -> None:
    """Make the documentation pages; prints the first page's path

    \b
    Example: devtool docs --output site

    \b
    The first page is README.md, or docs/index.md if there is one. The others are of the ops, from their
    docstrings and cases, and of the Markdown files in docs/. A broken link or a docstring that cannot be
    read is an error, and then nothing is written.
    """
    from devtool import project
    from devtool.pages.make import make_pages

    click.echo(make_pages(output or project.root() / "build/docs"))
