from __future__ import annotations

import click


@click.command()
@click.argument("name")
@click.option("--namespace", metavar="NS", help="Of the ops in torch.ops  [default: NAME with _ for -]")
def init(name: str, namespace: str | None) -> None:
    """Write a repository for kernels of your own

    \b
    Example: devtool init my-kernels

    \b
    NAME is the name of the project and of its folder, which must not exist or be empty. The ops of its
    kernels/ become torch.ops.NS.<op>. It contains one op, which passes its tests at once.
    """
    from devtool.scaffold.repository_folder import write_repository

    folder, files = write_repository(name, namespace)
    for path in files:
        click.echo(f"{name}/{path}")
    click.echo(
        f"""
init: wrote {folder}, a repository with the op scaled.
  1. Put it under version control:   cd {name} && git init && git add .
  2. See its tests pass:             devtool test
  3. Write an op:                    devtool new-op my_op "(Tensor x, float scale=1.0) -> Tensor\"""",
        err=True,
    )
