"""Runs one case of an op, or a script, and returns what pyxla saw of the modules that XLA made of it."""

from __future__ import annotations

import contextlib
import importlib
import os
import runpy
import sys
import tempfile
import traceback
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import click

from devtool import project
from devtool.errors import MISUSED, DevtoolError, unknown
from devtool.hlo.xla_flags import dumping


def load_cases(op_name: str) -> list[Any]:
    """The cases of an op or implementation, at least one. They are in the folder of the op."""
    folder = project.folder_of(op_name)
    home = project.implementations().get(folder, folder)
    # Before torch_xla is imported: otherwise it guesses the device, and prints that.
    os.environ.setdefault("PJRT_DEVICE", "CPU")
    wanted = f"kernels/{home}/cases.py"
    try:
        importlib.import_module(project.module(home, "cases"))
    except ModuleNotFoundError as error:
        if error.name != project.module(home, "cases"):
            raise
        hint = "copy kernels/simple_add/cases.py and adapt it"
        raise DevtoolError(f"hlo: {op_name}: expected {wanted}, got none", hint) from None
    from pyxla.testing.case import cases_name, cases_of
    from pyxla.torch_ops import discovery
    from pyxla.torch_ops.custom_op import find_op

    discovery.load_op(folder, project.repository().namespace)
    op = find_op(project.qualified(op_name))
    if not (cases := cases_of(op)):
        message = f"hlo: {op_name}: expected a case in {cases_name(op)} of {wanted}, got none"
        raise DevtoolError(message, "kernels/simple_add/cases.py is an example")
    return cases


def select_case(op: str, cases: list[Any], name: str | None) -> Any:
    """The case of this name; None: the first one that has anything to compute, as XLA drops a call without elements."""
    if name is None:
        return next((case for case in cases if _computes(op, case)), cases[0])
    found = [case for case in cases if case.name == name]
    if not found:
        known = [case.name for case in cases]
        raise unknown("hlo", "--case", "one of cases.py", name, known, f"devtool hlo {op} --list")
    return found[0]


def _computes(op_name: str, case: Any) -> bool:
    """Whether a result, or an argument that is updated in place, has elements."""
    from pyxla.testing.direct_call import in_order, without_data
    from pyxla.torch_ops.custom_op import find_op

    op, arguments = find_op(project.qualified(op_name)), case.arguments()
    results = op.infer_results(without_data(in_order(op, arguments)))
    return any(tensor.numel() for tensor in (*results, *(arguments[a.name] for a in op.schema.mutated)))


def inspect_case(op_name: str, case: Any) -> tuple[str, Any]:
    """The module as torch_xla lowers it, with the shapes of all operands, and the pyxla.Inspection of the call."""
    import torch
    import torch_xla

    from pyxla import hlo
    from pyxla.inspection.inspection import inspecting
    from pyxla.torch_ops.custom_op import find_op

    op = find_op(project.qualified(op_name))
    device = torch_xla.device()
    arguments = case.arguments()
    on_xla = {n: v.to(device) if isinstance(v, torch.Tensor) else v for n, v in arguments.items()}
    with inspecting() as seen:
        results = op(**on_xla)
        results = results if isinstance(results, tuple) else (results,)
        text = hlo.lowered([t for t in (*(on_xla[a.name] for a in op.schema.mutated), *results) if t is not None])
    return text, seen


def inspect_script(script: Path, arguments: Sequence[str]) -> Any:
    """Runs a script as `python script` does, and returns the pyxla.Inspection of everything that XLA compiled.

    The script's output goes to stderr. Nothing is compiled for the inspection: XLA dumps what it compiles anyway.

    Args:
        script: a Python file.
        arguments: the script's arguments.

    Raises:
        DevtoolError: there is no such file, the script failed, or XLA compiled nothing.
    """
    if not script.is_file():
        raise DevtoolError(f"hlo: SCRIPT: expected a Python file, got none at {script}", "correct the path", MISUSED)
    with tempfile.TemporaryDirectory(prefix="pyxla-hlo-") as name:
        os.environ["XLA_FLAGS"], folder = dumping(os.environ.get("XLA_FLAGS", ""), Path(name))
        before = _written_at(folder)
        with _stdout_to_stderr():
            _run(script, arguments)
        from pyxla.hlo.dump import in_order

        seen = _read(in_order(path for path, at in _written_at(folder).items() if before.get(path) != at))
    if not seen.modules:
        raise DevtoolError(
            f"hlo: {script}: expected a script that computes on XLA, got one that left XLA nothing to do",
            "move tensors to torch_xla.device(), and read a result or call torch_xla.sync()",
        )
    return seen


def compile_for(seen: Any, gpu: str) -> Any:
    """Compiles the modules for this GPU with XLA:CUDA and returns the pyxla.Inspection.

    Raises:
        DevtoolError: that failed; the message is pyxla's.
    """
    from pyxla import PyxlaError, compiled_for

    try:
        return compiled_for(seen, gpu)
    except PyxlaError as error:
        raise DevtoolError(error.message, error.hint or "devtool hlo without --gpu shows the modules") from error


@contextlib.contextmanager
def _stdout_to_stderr() -> Iterator[None]:
    """Redirects the file descriptor too, to which libraries and child processes write."""
    sys.stdout.flush()
    kept = os.dup(1)
    os.dup2(2, 1)
    try:
        with contextlib.redirect_stdout(sys.stderr):
            yield
    finally:
        sys.stdout.flush()
        os.dup2(kept, 1)
        os.close(kept)


def _written_at(folder: Path) -> dict[Path, int]:
    """When each file was last written, in ns: an earlier run of the script may have left modules of the same names."""
    return {path: path.stat().st_mtime_ns for path in folder.glob("*")} if folder.is_dir() else {}


def _run(script: Path, arguments: Sequence[str]) -> None:
    sys.argv = [str(script), *arguments]
    sys.path.insert(0, str(script.resolve().parent))
    try:
        runpy.run_path(str(script), run_name="__main__")
    except SystemExit as error:
        if isinstance(error.code, str):
            click.echo(error.code, err=True)
        if error.code not in (None, 0):
            status = 1 if isinstance(error.code, str) else error.code
            raise _ended_early(script, f"failed (exit status {status})") from None
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        _show(error, script)
        raise _ended_early(script, f"raised {type(error).__name__}") from None


def _ended_early(script: Path, what: str) -> DevtoolError:
    return DevtoolError(f"hlo: {script}: the script {what} (see above)", f"python {script} should work first")


def _show(error: BaseException, script: Path) -> None:
    """Prints the user's traceback as Python does: from the script on, without the frames that ran it."""
    trace = error.__traceback__
    while trace is not None and trace.tb_frame.f_code.co_filename != str(script):
        trace = trace.tb_next
    # A script that cannot be compiled has no frame of its own.
    traceback.print_exception(type(error), error, trace)


def _read(files: Sequence[Path]) -> Any:
    from pyxla.inspection.inspection import Inspection, read_files

    torch_xla = sys.modules.get("torch_xla")
    device = torch_xla.runtime.device_type() if torch_xla else None
    return Inspection(device or "", read_files(files))
