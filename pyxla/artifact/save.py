"""Saves a function that uses pyxla's ops as one file: archive.py defines its format, load.py loads it.

The function is called once on lazily traced tensors, as without pyxla, and torch_xla's own converter makes StableHLO of
the graph: it keeps custom calls with their attributes, layouts and aliases. Why not torch.export first: it would add a
second tracer with its own limits, and torch_xla's export of its programs drops a function's updates in place.
"""

from __future__ import annotations

import inspect
import os
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from pyxla.artifact.archive import MODULE, write_artifact
from pyxla.artifact.capture import (
    data_of,
    host_events,
    numbers_as_constants,
    pending_tensors,
    unshared_scalars,
    xla_tensors,
)
from pyxla.artifact.load import TARGET_PREFIX, bytes_of_tensor, module_targets, read_module
from pyxla.artifact.manifest import CallTarget, Manifest, Output, Tensor, installed_versions
from pyxla.errors import ArgumentError, mismatch
from pyxla.library.find import find_library
from pyxla.library.manifest import file_digest
from pyxla.op.dtypes import BY_NAME, DTYPES, dtype_name
from pyxla.pjrt.platform import platform


def export(
    fn: Callable,
    args: Sequence[Any],
    path: str | os.PathLike[str],
    *,
    kwargs: Mapping[str, Any] | None = None,
    force: bool = False,
) -> None:
    """Saves what `fn` computes for arguments like these as one file, for `pyxla.load_artifact`.

    The function is called once, on copies of the arguments. Tensors in the arguments, also in tuples, lists and dicts,
    become inputs; everything else is a constant of the artifact, including shapes and dtypes. Other tensors on xla that
    the function uses, such as a module's parameters, are saved as weights.

    Args:
        fn: a function or module on XLA tensors; it returns tensors, updates its arguments in place, or both.
        args: example arguments, as a tuple; tensors may be on the CPU or on xla.
        path: the file to write.
        kwargs: example arguments by name.
        force: replace an existing file.

    Raises:
        ArgumentError: an argument of this function is wrong, or `fn` cannot be one graph: it has no tensor results,
            does not use XLA, reads tensors on the host, or updates tensors that are not among its arguments.
        ArtifactError: the file cannot be written.
    """
    import torch_xla

    path = Path(path)
    if path.exists() and not (force and path.is_file()):
        raise ArgumentError(
            mismatch("export", "path", "a path that is free", path), "force=True replaces the file, if it is one"
        )
    if not isinstance(args, (tuple, list)):
        raise ArgumentError(mismatch("export", "args", "a tuple of arguments", type(args).__name__), "args=(x,)")
    _check_module(fn)
    inputs: dict[str, torch.Tensor] = {}
    with unshared_scalars():
        call_args, call_kwargs = _on_xla(fn, args, dict(kwargs or {}), inputs)
    torch_xla.sync(wait=True)
    captured = xla_tensors()
    ids = {torch_xla._XLAC._xla_get_tensor_id(tensor): n for n, tensor in enumerate(inputs.values())}
    before = host_events()
    with numbers_as_constants():
        result = fn(*call_args, **call_kwargs)
    if host_events() != before:
        raise ArgumentError(
            mismatch("export", "fn", "one graph", "a function that runs a graph or reads a tensor on the host"),
            "keep .item(), .cpu(), print, torch_xla.sync, torch.compile and CPU fallbacks out of it",
        )
    _save(path, fn, inputs, ids, _results(result), captured)


def _save(
    path: Path,
    fn: Callable,
    inputs: dict[str, torch.Tensor],
    ids: dict[int, int],
    results: dict[str, torch.Tensor],
    captured: list[torch.Tensor],
) -> None:
    import torch_xla
    import torch_xla.core.xla_model as xla_model

    own = {id(tensor) for tensor in inputs.values()}
    others = [tensor for tensor in captured if id(tensor) not in own]
    _refuse_updates(fn, pending_tensors(others))
    updates = _updated_inputs(inputs, ids)
    if not results and not updates:
        raise ArgumentError(
            mismatch("export", "fn", "tensor results, or an update of an argument", "neither"), "return a tensor"
        )
    outputs = [*updates.values(), *results.values()]
    node_ids, data = torch_xla._XLAC._get_tensors_xla_device_data_node(outputs)
    if not node_ids:
        raise ArgumentError(
            mismatch("export", "fn", "results that depend on an argument or a weight", "constants"),
            "save the constants themselves",
        )
    weights = {i: tensor for i, tensor in zip(node_ids, data, strict=True) if i not in ids}
    weight_names = _weight_names(fn, weights)
    # Only after the weights have their names: this query may give a weight's data another tensor's id.
    _refuse_updates(fn, [tensor for tensor in others if not ids.keys().isdisjoint(data_of(tensor))])
    module = xla_model.get_stablehlo_bytecode(outputs)
    places = {i: ("input", n) for i, n in ids.items()} | {i: ("weight", n) for n, i in enumerate(weights)}
    calls, other_targets = _call_targets(module)
    manifest = Manifest(
        versions=installed_versions(),
        stablehlo=_stablehlo_version(module),
        platform=platform(),
        inputs=tuple(_tensor(name, tensor) for name, tensor in inputs.items()),
        outputs=(
            *(Output(**vars(_tensor(name, tensor)), updates=name) for name, tensor in updates.items()),
            *(Output(**vars(_tensor(name, tensor)), updates=None) for name, tensor in results.items()),
        ),
        weights=tuple(_tensor(weight_names[i], tensor) for i, tensor in weights.items()),
        parameters=tuple(places[i] for i in node_ids),
        custom_calls=calls,
        other_targets=other_targets,
        members={},
    )
    members = {MODULE: lambda: module}
    members |= {f"weights/{n}": lambda t=tensor: bytes_of_tensor(t) for n, tensor in enumerate(weights.values())}
    write_artifact(path, manifest, members)


def _updated_inputs(inputs: dict[str, torch.Tensor], ids: dict[int, int]) -> dict[str, torch.Tensor]:
    """The inputs that the function assigned to: those that are pending, or have data other than their own."""
    pending = {id(tensor) for tensor in pending_tensors(list(inputs.values()))}
    return {
        name: tensor
        for (name, tensor), number in zip(inputs.items(), ids, strict=True)
        if id(tensor) in pending or data_of(tensor) != [number]
    }


def _refuse_updates(fn: Callable, tensors: list[torch.Tensor]) -> None:
    for tensor in tensors:
        raise ArgumentError(
            mismatch("export", "fn", "a function that updates only its arguments", f"an update of {_name(fn, tensor)}"),
            "pass it as an argument",
        )


def _check_module(fn: Callable) -> None:
    if not callable(fn):
        raise ArgumentError(mismatch("export", "fn", "a function or a module", type(fn).__name__))
    if isinstance(fn, torch.nn.Module):
        for name, tensor in _state(fn).items():
            if tensor.device.type != "xla":
                raise ArgumentError(
                    mismatch("export", "fn", "a module on xla", f"{name} on {tensor.device}"),
                    "module.to(torch_xla.device())",
                )


def _state(fn: Callable) -> dict[str, torch.Tensor]:
    return {**dict(fn.named_parameters()), **dict(fn.named_buffers())} if isinstance(fn, torch.nn.Module) else {}


def _on_xla(
    fn: Callable, args: Sequence[Any], kwargs: dict[str, Any], inputs: dict[str, torch.Tensor]
) -> tuple[list[Any], dict[str, Any]]:
    """The arguments with copies of their tensors on xla, which are also put into `inputs`, by name."""
    import torch_xla

    device = torch_xla.device()

    def copied(tensor: torch.Tensor, name: str) -> torch.Tensor:
        if tensor.dtype not in DTYPES:
            raise ArgumentError(
                mismatch("export", name, f"a dtype of XLA ({', '.join(BY_NAME)})", dtype_name(tensor.dtype))
            )
        _check_free(inputs, name)
        copy = tensor.detach().cpu().clone().to(device).requires_grad_(tensor.requires_grad)
        inputs[name] = copy
        return copy

    names = _argument_names(fn, len(args))
    moved = [_mapped(value, name, copied) for name, value in zip(names, args, strict=True)]
    return moved, {name: _mapped(value, name, copied) for name, value in kwargs.items()}


def _argument_names(fn: Callable, count: int) -> list[str]:
    try:
        parameters = inspect.signature(fn.forward if isinstance(fn, torch.nn.Module) else fn).parameters.values()
    except (TypeError, ValueError):
        parameters = ()
    names = [p.name for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)][:count]
    return [*names, *(f"arg{n}" for n in range(len(names), count))]


def _mapped(value: Any, name: str, function: Callable[[torch.Tensor, str], Any]) -> Any:
    """The same tuples, lists and dicts with `function(tensor, name)` in place of each tensor."""
    if isinstance(value, torch.Tensor):
        return function(value, name)
    if isinstance(value, (tuple, list)):
        items = [_mapped(item, f"{name}.{n}", function) for n, item in enumerate(value)]
        return type(value)(*items) if hasattr(value, "_fields") else type(value)(items)
    if isinstance(value, dict):
        return {key: _mapped(item, f"{name}.{key}", function) for key, item in value.items()}
    return value


def _results(result: Any) -> dict[str, torch.Tensor]:
    """The tensors in what the function returned, by name."""
    found: dict[str, torch.Tensor] = {}

    def add(tensor: torch.Tensor, name: str) -> None:
        if tensor.device.type != "xla":
            raise ArgumentError(
                mismatch("export", name, "a tensor on xla", tensor.device), "compute it from the arguments, on xla"
            )
        _check_free(found, name)
        found[name] = tensor.detach()

    _mapped(result, "result", add)
    return found


def _check_free(tensors: dict[str, torch.Tensor], name: str) -> None:
    if name in tensors:
        raise ArgumentError(mismatch("export", name, "one tensor of this name", "two"), "rename a key of the dict")


def _name(fn: Callable, tensor: torch.Tensor) -> str:
    names = [name for name, own in _state(fn).items() if own is tensor]
    return names[0] if names else f"another tensor, {dtype_name(tensor.dtype)}{list(tensor.shape)}"


def _weight_names(fn: Callable, weights: dict[int, torch.Tensor]) -> dict[int, str]:
    import torch_xla

    known = {torch_xla._XLAC._xla_get_tensor_id(tensor): name for name, tensor in _state(fn).items()}
    return {i: known.get(i, f"constant.{n}") for n, i in enumerate(weights)}


def _tensor(name: str, tensor: torch.Tensor) -> Tensor:
    return Tensor(name, tuple(tensor.shape), dtype_name(tensor.dtype))


def _call_targets(module: bytes) -> tuple[tuple[CallTarget, ...], tuple[str, ...]]:
    """The custom-call targets in the module: those of pyxla's ops, and those of XLA itself."""
    from pyxla.torch_ops.custom_op import find_op, find_target

    targets = sorted(module_targets(read_module(module)))
    own, calls = [t for t in targets if find_target(t) or t.startswith(TARGET_PREFIX)], []
    for target in own:
        op = find_target(target) or find_op(target.removeprefix(TARGET_PREFIX))
        library = find_library(op.library, op.namespace)
        calls.append(
            CallTarget(
                target=target,
                op=op.display_name,
                schema=op.schema.text,
                library=op.library,
                source_digest=library.table.source_digest,
                sha256=file_digest(library.path),
                ffi_api_version=library.table.ffi_api_version,
                workspace=op.has_workspace,
            )
        )
    return tuple(calls), tuple(t for t in targets if t not in own)


def _stablehlo_version(module: bytes) -> str:
    found = re.search(rb"StableHLO_v([\d.]+)", module[:64])
    return found[1].decode() if found else "unknown"
