"""The command `devtool`. Each command imports what it needs when it runs, so that `devtool --help` is instant."""

from __future__ import annotations

import contextlib
import errno
import signal
import sys

import click

from devtool import project
from devtool.commands.bench import bench, profile, tune
from devtool.commands.build import build, verify, wheel
from devtool.commands.docs import docs
from devtool.commands.doctor import doctor
from devtool.commands.fuzz import fuzz
from devtool.commands.hlo import hlo
from devtool.commands.init import init
from devtool.commands.list_ops import list_ops
from devtool.commands.lock import lock
from devtool.commands.new_op import new_op
from devtool.commands.nix import nix
from devtool.commands.report import report
from devtool.commands.run_artifact import run_artifact
from devtool.commands.test import test, watch
from devtool.commands.trace import trace
from devtool.errors import INTERRUPTED, MISUSED, DevtoolError, error_from


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="pyxla", message="pyxla %(version)s")
def cli() -> None:
    """Scaffold, build, test and inspect GPU ops for PyTorch/XLA

    \b
    Example: devtool test rms_norm
    """
    # Before anything imports torch, and with it all kernel packages. A command that needs the repository says what is
    # wrong with it.
    with contextlib.suppress(DevtoolError):
        project.repository()


for command in (
    init,
    new_op,
    build,
    test,
    bench,
    profile,
    tune,
    fuzz,
    watch,
    list_ops,
    hlo,
    trace,
    doctor,
    report,
    docs,
    run_artifact,
    lock,
    verify,
    wheel,
    nix,
):
    cli.add_command(command)


@cli.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion(shell: str) -> None:
    """Print what makes a shell complete commands, options and ops

    \b
    Example: devtool completion bash
    """
    from click.shell_completion import get_completion_class

    click.echo(get_completion_class(shell)(cli, {}, "devtool", "_DEVTOOL_COMPLETE").source())


def main() -> None:
    """Runs the command line and exits: 0 done, 1 failed, 2 misused, 130 interrupted."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        sys.exit(cli.main(prog_name="devtool", standalone_mode=False))
    except DevtoolError as error:
        error.show()
        sys.exit(error.exit_code)
    except click.exceptions.NoArgsIsHelpError as error:
        error.show()
        sys.exit(MISUSED)
    except click.UsageError as error:
        command = error.ctx.command_path if error.ctx else "devtool"
        click.echo(f"{command}: arguments: expected those in its help, got: {error.format_message()}", err=True)
        click.echo(f"\nhint: {command} --help", err=True)
        sys.exit(MISUSED)
    except (KeyboardInterrupt, click.Abort):
        click.echo("devtool: interrupted", err=True)
        sys.exit(INTERRUPTED)
    except OSError as error:
        if error.errno == errno.EPIPE:  # the reader has closed the pipe
            sys.stdout = None
            sys.exit(1)
        failure = error_from("devtool", error)
        failure.show()
        sys.exit(failure.exit_code)
