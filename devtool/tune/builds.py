"""Builds an op once for each of its variants, as many at a time as there are cores."""

from __future__ import annotations

import contextlib
import io
import multiprocessing
import os
import signal
import sys
import time
from collections.abc import Mapping
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path

import click

from devtool import project
from devtool.building.build import Options, build_ops
from devtool.building.variant import Variant
from devtool.device import cuda_architecture
from devtool.errors import INTERRUPTED, DevtoolError
from devtool.processes import end_with_devtool


def build_variants(op: str, device: str, wanted: Mapping[str, str]) -> dict[str, Path]:
    """Builds the variants, each in a folder of its own, where it stays for the next time.

    CUDA code is compiled for the machine's GPU alone, unless CUDAARCHS is set.

    Args:
        op: the op's folder.
        device: "cpu": without CUDA code.
        wanted: name of a folder -> options of the compilers.

    Returns:
        Name -> library.

    Raises:
        DevtoolError: one does not build; the compilers' output is on stderr.
    """
    started, cores = time.monotonic(), len(os.sched_getaffinity(0))
    workers = min(cores, len(wanted))
    click.echo(f"tune: builds {op} {len(wanted)} times, {workers} at a time", err=True)
    if device == "cuda" and "CUDAARCHS" not in os.environ:
        os.environ["CUDAARCHS"] = cuda_architecture()
    options = {name: _options(op, device, name, text, max(1, cores // workers)) for name, text in wanted.items()}
    libraries = {}
    # Processes, not threads: Ctrl-C then ends each build as it ends that of `devtool build`.
    pool = ProcessPoolExecutor(workers, multiprocessing.get_context("fork"), _begin)
    try:
        for build in as_completed([pool.submit(_build, op, name, chosen) for name, chosen in options.items()]):
            name, library, said, problem = build.result()
            if problem:
                click.echo(said, err=True, nl=False)
                message = (
                    f"tune: {op}: expected every variant to build, got an error with {name} (see above): {problem}"
                )
                hint = f"correct the kernel, or leave the variant out: def allowed(...) in kernels/{op}/tuning.py"
                raise DevtoolError(message, hint)
            libraries[name] = library
    except BrokenProcessPool:
        message = f"tune: {op}: expected every variant to build, got a build that was killed"
        hint = f"if the memory ran out, build fewer at a time: taskset -c 0 devtool tune {op}"
        raise DevtoolError(message, hint) from None
    except KeyboardInterrupt:
        for process in multiprocessing.active_children():
            process.terminate()  # a signal to devtool alone has not reached it
        raise
    finally:
        # After an error, the builds that run go on to their end: the next `devtool tune` finds them.
        pool.shutdown(cancel_futures=True)
    click.echo(f"tune: built in {time.monotonic() - started:.1f} s", err=True)
    return {name: libraries[name] for name in wanted}


def _options(op: str, device: str, name: str, flags: str, jobs: int) -> Options:
    folder = project.root() / "build/tune" / op / name
    variant = Variant(name, folder, project.kernels(), project.pyxla_folder() / "cmake", flags)
    return Options("on" if device == "cuda" else "off", variant=variant, jobs=jobs)


def _begin() -> None:
    end_with_devtool()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _end)


def _end(*_: object) -> None:
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)  # a second one would cut the build's clean-up short
    sys.exit(INTERRUPTED)


def _build(op: str, name: str, options: Options) -> tuple[str, Path | None, str, str]:
    said = io.StringIO()
    with contextlib.redirect_stderr(said):
        try:
            return name, build_ops([op], options)[0], "", ""
        except DevtoolError as error:
            return name, None, said.getvalue(), error.message.partition("\n")[0]
        except SystemExit:
            os._exit(INTERRUPTED)  # otherwise this process would take the next variant
