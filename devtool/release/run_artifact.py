"""Runs an exported function (pyxla.export) on inputs from a file or from a seed."""

from __future__ import annotations

import json
import os
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from devtool.device import pick_device
from devtool.errors import FAILED, MISUSED, DevtoolError
from devtool.files import replacing

# Dtypes that numpy lacks -> the dtype that holds their bits.
_BITS = {"bfloat16": "uint16", "float8_e4m3fn": "uint8", "float8_e5m2": "uint8"}


@dataclass(frozen=True)
class Inputs:
    """Where the inputs come from: `path`, an npz file, or else `seed` (None is 0)."""

    path: Path | None
    seed: int | None


def run(
    file: Path, inputs: Inputs, output_path: Path | None, *, force: bool, device: str, strict: bool
) -> dict[str, Any]:
    """Runs the artifact, writes its outputs, and returns what to print.

    Raises:
        DevtoolError: the artifact, an input or the output path is not valid, or the run failed.
    """
    if inputs.path is not None and inputs.seed is not None:
        message = "run-artifact: --random: expected --input or --random, got both"
        raise DevtoolError(message, "leave one of them out", MISUSED)
    if not -(2**63) <= (inputs.seed or 0) < 2**64:
        message = f"run-artifact: --random: expected a number of 64 bits, got {inputs.seed}"
        raise DevtoolError(message, "take a smaller one", MISUSED)
    if output_path is not None:
        _check_output(output_path, force)
    # Before torch_xla is imported.
    os.environ["PJRT_DEVICE"] = pick_device("run-artifact", device).upper()
    from pyxla.errors import PyxlaError

    try:
        return _run(file, inputs, output_path, strict)
    except PyxlaError as error:
        raise DevtoolError(error.message, error.hint or "look at the values of the inputs", FAILED) from error


def _run(file: Path, inputs: Inputs, output_path: Path | None, strict: bool) -> dict[str, Any]:
    import pyxla

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        artifact = pyxla.load_artifact(file, strict=strict)
    for warning in caught:
        click.echo(f"warning: {warning.message}", err=True)
    manifest = artifact.manifest
    given = _random(manifest.inputs, inputs.seed or 0) if inputs.path is None else _read(manifest.inputs, inputs.path)
    tensors, results = _call(artifact, given)
    outputs = {}
    results = iter(results)
    for output in manifest.outputs:
        outputs[output.name] = tensors[output.updates] if output.updates is not None else next(results)
    if output_path is not None:
        _write(output_path, outputs)
    return {
        "artifact": str(file),
        "device": os.environ["PJRT_DEVICE"],
        "exported_with": manifest.versions,
        "custom_calls": [call.target for call in manifest.custom_calls],
        "inputs": [{"name": t.name, "dtype": t.dtype, "shape": list(t.shape)} for t in manifest.inputs],
        "outputs": [
            {
                "name": o.name,
                "dtype": o.dtype,
                "shape": list(o.shape),
                "updates": o.updates,
                **_summary(outputs[o.name]),
            }
            for o in manifest.outputs
        ],
        "output": None if output_path is None else str(output_path),
    }


def _call(artifact: Any, given: dict[str, Any]) -> tuple[dict[str, Any], list[Any]]:
    """Calls the artifact; returns the inputs after the call and the results, on the CPU."""
    import torch_xla

    import pyxla

    on_xla = {name: tensor.to(torch_xla.device()) for name, tensor in given.items()}
    results = artifact(**on_xla)
    pyxla.sync()
    results = () if results is None else results if isinstance(results, tuple) else (results,)
    return {name: tensor.cpu() for name, tensor in on_xla.items()}, [result.cpu() for result in results]


def _check_output(path: Path, force: bool) -> None:
    if path.exists() and not (force and path.is_file()):
        message = f"run-artifact: --output: expected a path that is free, got {path}"
        raise DevtoolError(message, "--force replaces the file, if it is one", MISUSED)
    if not path.parent.is_dir() or not os.access(path.parent, os.W_OK):
        message = f"run-artifact: --output: expected a folder that can be written, got {path.parent}"
        raise DevtoolError(message, "another folder, or make this one writable", MISUSED)


def _random(inputs: tuple, seed: int) -> dict[str, Any]:
    import torch

    generator = torch.Generator().manual_seed(seed)
    tensors = {}
    for tensor in inputs:
        dtype = getattr(torch, tensor.dtype)
        if dtype.is_floating_point:
            tensors[tensor.name] = torch.randn(tensor.shape, generator=generator).to(dtype)
        else:
            tensors[tensor.name] = torch.zeros(tensor.shape, dtype=dtype)
    return tensors


def _read(inputs: tuple, path: Path) -> dict[str, Any]:
    """The inputs from an npz file; each is checked before anything runs."""
    import zipfile
    import zlib

    import numpy
    import torch

    expected = {tensor.name: tensor for tensor in inputs}
    try:
        with path.open("rb") as file, numpy.load(file, allow_pickle=False) as arrays:
            if set(arrays) != set(expected):
                message = f"run-artifact: --input: expected arrays {_listed(expected)}, got {_listed(arrays)} in {path}"
                raise DevtoolError(message, "numpy.savez(path, name=array, ...) with these names")
            found = {name: arrays[name] for name in expected}
    # RuntimeError: a member that is encrypted, or compressed in a way that zipfile does not know.
    except (OSError, RuntimeError, ValueError, EOFError, AttributeError, TypeError,
            zipfile.BadZipFile, zlib.error) as error:  # fmt: skip
        message = f"run-artifact: --input: expected arrays that numpy.savez wrote, got {error} ({path})"
        raise DevtoolError(message, "numpy.savez(path, name=array, ...)") from error
    tensors = {}
    for name, tensor in expected.items():
        array = found[name]
        dtype = _BITS.get(tensor.dtype, tensor.dtype)
        got = f"{array.dtype}{list(array.shape)}"
        if got != f"{dtype}{list(tensor.shape)}":
            bits = f", the bits of {tensor.dtype}" if tensor.dtype in _BITS else ""
            message = f"run-artifact: {name}: expected {dtype}{list(tensor.shape)}{bits}, got {got} in {path}"
            raise DevtoolError(message, "convert the array: shapes and dtypes are fixed at export")
        tensors[name] = torch.from_numpy(array.copy()).view(getattr(torch, tensor.dtype))
    return tensors


def _write(path: Path, outputs: dict[str, Any]) -> None:
    """Writes as numpy.savez does, which would take arrays named file and allow_pickle as its own parameters."""
    import zipfile

    import torch
    from numpy.lib import format as npy

    arrays = {}
    for name, tensor in outputs.items():
        bits = _BITS.get(str(tensor.dtype).removeprefix("torch."))
        arrays[name] = (tensor.contiguous().view(getattr(torch, bits)) if bits else tensor).numpy()
    with replacing(path) as unfinished, zipfile.ZipFile(unfinished, "w") as archive:
        for name, array in arrays.items():
            with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
                npy.write_array(member, array, allow_pickle=False)


def _summary(tensor: Any) -> dict[str, float | int | None]:
    """Smallest, largest and mean of the finite elements, and how many are not finite."""
    import torch

    wide = tensor.double().flatten()
    finite = wide[torch.isfinite(wide)]
    empty = not finite.numel()
    return {
        "min": None if empty else finite.min().item(),
        "max": None if empty else finite.max().item(),
        "mean": None if empty else finite.mean().item(),
        "not_finite": wide.numel() - finite.numel(),
    }


def _listed(names: Any) -> str:
    return ", ".join(sorted(names)) or "none"


def print_outcome(outcome: dict[str, Any], *, as_json: bool) -> None:
    """Prints the outputs as a table, with what ran on stderr, or everything as JSON."""
    if as_json:
        click.echo(json.dumps(outcome))
        return
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table

    table = Table(box=SIMPLE_HEAD, padding=0)
    for title, justify in (("output", "left"), ("dtype", "left"), ("shape", "left"), ("min", "right"), ("max", "right"),
                           ("mean", "right"), ("not finite", "right")):  # fmt: skip
        table.add_column(title, justify=justify, no_wrap=True)
    for output in outcome["outputs"]:
        numbers = ["-" if output[key] is None else f"{output[key]:.6g}" for key in ("min", "max", "mean")]
        shape = "x".join(map(str, output["shape"])) or "scalar"
        table.add_row(output["name"], output["dtype"], shape, *numbers, str(output["not_finite"]))
    Console(markup=False).print(table)
    calls = ", ".join(outcome["custom_calls"]) or "none"
    click.echo(f"run-artifact: ran on {outcome['device']}; custom calls: {calls}", err=True)
    if outcome["output"]:
        click.echo(f"run-artifact: wrote {outcome['output']}", err=True)
