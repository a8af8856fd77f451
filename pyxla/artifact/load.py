"""Loads an exported function as a callable on XLA tensors that is traced lazily, like the function.

Why not torch_xla's own `_run_stablehlo`: it compiles and runs at once, in every call. As a user computation the module
becomes part of the graph that is being traced, is compiled and cached with it, and still updates tensors in place.
"""

from __future__ import annotations

import os
import re
import warnings
from pathlib import Path
from typing import Any

import torch

from pyxla.artifact.archive import MODULE, ArtifactFile
from pyxla.artifact.manifest import CallTarget, Manifest, Tensor
from pyxla.errors import ArgumentError, ArtifactError, mismatch
from pyxla.hlo import text as hlo_text
from pyxla.library.find import find_library
from pyxla.library.register import ensure_registered
from pyxla.lowering.uploads import await_uploads
from pyxla.op.dtypes import BY_NAME, dtype_name
from pyxla.pjrt.platform import platform
from pyxla.torch_xla_patches.forked_child import check_not_forked

TARGET_PREFIX = "xla_gpu_"


def load_artifact(path: str | os.PathLike[str], *, strict: bool = False) -> Artifact:
    """Loads a file that `pyxla.export` wrote, checks that it can run here, and registers its handlers.

    Args:
        path: the file.
        strict: a library that was built from other sources is an error, not a warning.

    Returns:
        The function, on the device of this process.

    Raises:
        ArtifactError: the file is not an artifact, has another version, or was cut short or altered; it needs another
            schema of an op, another platform, or (with `strict`) another library.
        LibraryError: the library of an op is missing, or a check refuses it.
        DefinitionError: an op is not declared.
    """
    file = ArtifactFile.open(Path(path))
    for call in file.manifest.custom_calls:
        _check_op(call, file, strict)
    return Artifact(file)


class Artifact:
    """A loaded function. A call with XLA tensors, in order or by name, traces it as the exported function would be.

    Args:
        file: the file, whose ops have been checked.

    Attributes:
        path: the file.
        manifest: its manifest: `inputs`, `outputs`, `weights`, `custom_calls`, `versions`, `platform`.
    """

    def __init__(self, file: ArtifactFile):
        import torch_xla

        self.path = file.path
        self.manifest: Manifest = file.manifest
        self._computation = _computation(file)
        device = torch_xla.device()
        self._weights = [
            tensor_of_bytes(weight, file.member(f"weights/{n}")).to(device)
            for n, weight in enumerate(self.manifest.weights)
        ]
        if platform() == "Host":
            await_uploads(self._weights)

    def __repr__(self) -> str:
        shown = ", ".join(f"{tensor.name}: {tensor}" for tensor in self.manifest.inputs)
        return f"<pyxla artifact {self.path.name}({shown})>"

    def __call__(self, *tensors: torch.Tensor, **by_name: torch.Tensor) -> Any:
        """Traces the function.

        Args:
            tensors: the first inputs, in order.
            by_name: the others.

        Returns:
            The function's result if that is one tensor, else a tuple of all tensors in it; None if the function only
            works in place. Inputs that the function updates are updated.

        Raises:
            ArgumentError: an input is missing, or has another shape, dtype or device.
            PyxlaError: this process is a fork of one that had started XLA.
        """
        import torch_xla

        check_not_forked("artifact")
        inputs = self._bind(tensors, by_name)
        operands = [(inputs if kind == "input" else self._weights)[n] for kind, n in self.manifest.parameters]
        if platform() == "Host":
            await_uploads(inputs)
        results = torch_xla._XLAC._xla_user_computation("pyxla::artifact", operands, self._computation)
        places = {tensor.name: n for n, tensor in enumerate(self.manifest.inputs)}
        returned = []
        with torch.no_grad():
            for output, result in zip(self.manifest.outputs, results, strict=True):
                if output.updates is None:
                    returned.append(result)
                else:
                    inputs[places[output.updates]].copy_(result)
        if [output.name for output in self.manifest.outputs if output.updates is None] == ["result"]:
            return returned[0]
        return tuple(returned) or None

    def _bind(self, tensors: tuple, by_name: dict[str, Any]) -> list[torch.Tensor]:
        names = [tensor.name for tensor in self.manifest.inputs]
        given = dict(zip(names, tensors, strict=False)) | by_name
        if len(tensors) > len(names) or len(given) != len(tensors) + len(by_name) or set(given) != set(names):
            got = [*([f"{len(tensors)} in order"] if tensors else []), *by_name]
            raise ArgumentError(
                mismatch("artifact", "inputs", ", ".join(names) or "none", ", ".join(got) or "none"), "print(artifact)"
            )
        for tensor in self.manifest.inputs:
            _check_input(tensor, given[tensor.name])
        return [given[name] for name in names]


def _check_input(expected: Tensor, value: Any) -> None:
    if not isinstance(value, torch.Tensor):
        raise ArgumentError(mismatch("artifact", expected.name, f"a tensor {expected}", type(value).__name__))
    got = f"{dtype_name(value.dtype)}{list(value.shape)}"
    if got != str(expected):
        raise ArgumentError(
            mismatch("artifact", expected.name, expected, got), "export it again for this shape: shapes are fixed"
        )
    if value.device.type != "xla":
        raise ArgumentError(
            mismatch("artifact", expected.name, "a tensor on xla", value.device),
            f"move it: {expected.name}.to(torch_xla.device())",
        )


def _check_op(call: CallTarget, file: ArtifactFile, strict: bool) -> None:
    from pyxla.torch_ops.custom_op import find_op

    op = find_op(call.op)
    if (op.target, op.schema.text) != (call.target, call.schema):
        raise ArtifactError(
            mismatch(
                "artifact", call.op, f"{call.target}{call.schema} ({file.path.name})", f"{op.target}{op.schema.text}"
            ),
            "export the function again, or install the ops that it was exported with",
        )
    exported_for, here = file.manifest.platform, platform()
    if call.workspace and exported_for != here:
        raise ArtifactError(
            mismatch("artifact", call.op, f"{exported_for}, whose workspace {file.path.name} holds", here),
            f"export the function on {here}: the op's workspace has another size there",
        )
    ensure_registered(op.library, op.target, here, namespace=op.namespace)
    digest = find_library(op.library, op.namespace).table.source_digest
    if digest != call.source_digest:
        message = mismatch(
            "artifact", call.op, f"source digest {call.source_digest[:12]} ({file.path.name})", f"{digest[:12]} here"
        )
        if strict:
            raise ArtifactError(message, "install the library that it was exported with, or load it without strict")
        warnings.warn(message, stacklevel=3)


def module_targets(computation: Any) -> set[str]:
    """The custom-call targets of a jaxlib XlaComputation."""
    return {call.target for call in hlo_text.custom_calls(computation.as_hlo_text())}


def read_module(module: bytes) -> Any:
    """The module as jaxlib's XlaComputation.

    Raises:
        ArtifactError: this jaxlib cannot read it.
    """
    from jaxlib._jax import mlir

    try:
        return mlir.mlir_module_to_xla_computation(bytes(module), False, False)
    except RuntimeError as error:
        raise ArtifactError(
            mismatch("artifact", MODULE, "StableHLO that this jaxlib reads", str(error).strip()),
            "load it with the versions of its manifest, or export the function again",
        ) from error


def _computation(file: ArtifactFile) -> Any:
    """The module for `_xla_user_computation`, after a comparison with the manifest."""
    from torch_xla.core import xla_builder

    manifest = file.manifest
    computation = read_module(file.member(MODULE))
    shape = computation.program_shape()
    results = shape.result_shape()
    listed = [str(s) for s in (results.tuple_shapes() if results.is_tuple() else [results])]
    tensors = {"input": manifest.inputs, "weight": manifest.weights}
    expected = [
        ("parameters", [_hlo_type(tensors[kind][n]) for kind, n in manifest.parameters],
         [_without_layout(str(s)) for s in shape.parameter_shapes()]),
        ("results", [_hlo_type(output) for output in manifest.outputs], [_without_layout(s) for s in listed]),
        ("custom calls", sorted({*(c.target for c in manifest.custom_calls), *manifest.other_targets}),
         sorted(module_targets(computation))),
    ]  # fmt: skip
    for what, want, got in expected:
        if want != got:
            raise ArtifactError(
                mismatch("artifact", MODULE, f"{what} {want} (manifest.json)", f"{got} in {file.path}"),
                "export the function again",
            )
    return xla_builder.computation_from_module_proto("pyxla_artifact", computation.as_serialized_hlo_module_proto())


def _hlo_type(tensor: Tensor) -> str:
    return f"{BY_NAME[tensor.dtype].hlo}[{','.join(map(str, tensor.shape))}]"


def _without_layout(shape: str) -> str:
    return re.sub(r"\{.*", "", shape)


def tensor_of_bytes(spec: Tensor, content: bytearray) -> torch.Tensor:
    """A CPU tensor with these bytes.

    Raises:
        ArtifactError: too few or too many bytes for its shape and dtype.
    """
    if len(content) != spec.nbytes:
        raise ArtifactError(
            mismatch("artifact", f"weight {spec.name}", f"{spec.nbytes} bytes for {spec}", len(content)),
            "export the function again",
        )
    dtype = getattr(torch, spec.dtype)
    if not content:
        return torch.empty(spec.shape, dtype=dtype)
    return torch.frombuffer(content, dtype=torch.uint8).view(dtype).reshape(spec.shape)


def bytes_of_tensor(tensor: torch.Tensor) -> memoryview:
    """The bytes of a tensor, row-major."""
    return memoryview(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy())
