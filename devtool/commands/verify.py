from __future__ import annotations

import click


@click.command()
@click.argument("paths", metavar="PATH...", nargs=-1, required=True)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object per library")
def verify(paths: tuple[str, ...], as_json: bool) -> None:
    """Compare libraries with their manifests and sources

    \b
    Example: devtool verify build/lib

    \b
    PATH is a library, a folder of libraries, a wheel (.whl) or a release tarball (.tar.gz).
    """
    import json

    from devtool.release.verify import print_differences, print_reports
    from devtool.release.verify import verify as examine

    reports = examine(paths)
    if as_json:
        for report in reports:
            click.echo(json.dumps(report.as_json()))
    else:
        print_reports(reports)
    print_differences(reports)
