"""The manifest of an exported function, and its reader, which trusts nothing in the JSON."""

from __future__ import annotations

import importlib.metadata
import math
from dataclasses import dataclass, fields
from typing import Any

from pyxla.errors import ArtifactError, mismatch
from pyxla.op.dtypes import BY_NAME

FORMAT = 1
_AGAIN = "export the function again"


@dataclass(frozen=True)
class Tensor:
    """An input or a weight."""

    name: str
    shape: tuple[int, ...]
    dtype: str

    @property
    def nbytes(self) -> int:
        """Its size in bytes."""
        return math.prod(self.shape) * BY_NAME[self.dtype].torch.itemsize

    def __str__(self) -> str:
        return f"{self.dtype}{list(self.shape)}"


@dataclass(frozen=True)
class Output(Tensor):
    """A result; `updates` is the name of the input whose new value it is, or None."""

    updates: str | None


@dataclass(frozen=True)
class CallTarget:
    """A custom-call target of one of pyxla's ops, and the library that it ran with when the function was exported.

    Attributes:
        target: <namespace>_<op>.
        op: name of the op.
        schema: schema of the op, which must be the same where the artifact is loaded.
        library: the op whose library has the handlers.
        source_digest: digest of that library's sources.
        sha256: SHA-256 of that library.
        ffi_api_version: version of the XLA FFI headers that it was compiled with.
        workspace: whether the op has a workspace, whose size depends on the platform.
    """

    target: str
    op: str
    schema: str
    library: str
    source_digest: str
    sha256: str
    ffi_api_version: tuple[int, ...]
    workspace: bool


@dataclass(frozen=True)
class Manifest:
    """The manifest of an artifact.

    Attributes:
        versions: versions of pyxla, torch, torch_xla and jaxlib at the export.
        stablehlo: version of StableHLO.
        platform: "Host" or "CUDA", on which it was exported.
        inputs: in the order of the arguments.
        outputs: in the order of the module's results.
        weights: the tensors that the function used besides its arguments; weight n is the member weights/<n>.
        parameters: the module's parameters: ("input", n) or ("weight", n).
        custom_calls: targets of pyxla's ops.
        other_targets: custom-call targets of XLA itself.
        members: name -> SHA-256 of the archive's other members.
    """

    versions: dict[str, str]
    stablehlo: str
    platform: str
    inputs: tuple[Tensor, ...]
    outputs: tuple[Output, ...]
    weights: tuple[Tensor, ...]
    parameters: tuple[tuple[str, int], ...]
    custom_calls: tuple[CallTarget, ...]
    other_targets: tuple[str, ...]
    members: dict[str, str]


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 63


def _is_texts(value: Any) -> bool:
    return isinstance(value, dict) and all(map(_is_text, value.values()))


def _is_list(value: Any, accept: Any) -> bool:
    return isinstance(value, list) and all(map(accept, value))


def _is_tensor(value: Any) -> bool:
    return (
        isinstance(value, dict)
        and _is_text(value.get("name"))
        and _is_list(value.get("shape"), _is_count)
        and math.prod(value["shape"]) < 1 << 60
        and _is_text(value.get("dtype"))
        and value["dtype"] in BY_NAME
    )


def _is_output(value: Any) -> bool:
    return _is_tensor(value) and (value.get("updates") is None or _is_text(value["updates"]))


def _is_parameter(value: Any) -> bool:
    return isinstance(value, list) and len(value) == 2 and value[0] in ("input", "weight") and _is_count(value[1])


def _is_call_target(value: Any) -> bool:
    return (
        isinstance(value, dict)
        and all(_is_text(value.get(f.name)) for f in fields(CallTarget)[:6])
        and _is_list(value.get("ffi_api_version"), _is_count)
        and isinstance(value.get("workspace"), bool)
    )


# Field -> whether its value has the form that `export` writes.
_FORMS = {
    "versions": _is_texts,
    "stablehlo": _is_text,
    "platform": lambda value: value in ("Host", "CUDA"),
    "inputs": lambda value: _is_list(value, _is_tensor),
    "outputs": lambda value: _is_list(value, _is_output),
    "weights": lambda value: _is_list(value, _is_tensor),
    "parameters": lambda value: _is_list(value, _is_parameter),
    "custom_calls": lambda value: _is_list(value, _is_call_target),
    "other_targets": lambda value: _is_list(value, _is_text),
    "members": _is_texts,
}
_CLASSES = {"inputs": Tensor, "outputs": Output, "weights": Tensor, "custom_calls": CallTarget}


def read_manifest(values: Any, where: str) -> Manifest:
    """Builds a manifest from JSON values.

    Args:
        values: the parsed JSON.
        where: the artifact's path, for messages.

    Raises:
        ArtifactError: a field is missing, has another form, or contradicts another one.
    """
    if not isinstance(values, dict):
        values = {}
    for name, accept in _FORMS.items():
        if name not in values or not accept(values[name]):
            got = f"{_short(values.get(name))} in {where}"
            raise ArtifactError(mismatch("artifact", "manifest.json", f"{name} as export writes it", got), _AGAIN)
    manifest = Manifest(**{name: _build(name, values[name]) for name in _FORMS})
    problem = _contradiction(manifest)
    if problem is not None:
        raise ArtifactError(mismatch("artifact", "manifest.json", problem, f"others in {where}"), _AGAIN)
    return manifest


def _contradiction(manifest: Manifest) -> str | None:
    """What the manifest should contain and does not, in words; None if its fields agree."""
    for name, tensors in (("inputs", manifest.inputs), ("outputs", manifest.outputs)):
        if len({tensor.name for tensor in tensors}) != len(tensors):
            return f"{name} with each name once"
    sizes = {"input": len(manifest.inputs), "weight": len(manifest.weights)}
    if any(index >= sizes[kind] for kind, index in manifest.parameters):
        return "parameters that are its inputs and weights"
    inputs = {tensor.name: tensor for tensor in manifest.inputs}
    for output in manifest.outputs:
        updated = inputs.get(output.updates)
        if output.updates is not None and (updated is None or str(updated) != str(output)):
            return "outputs that update an input of the same type"
    return None


def _build(name: str, value: Any) -> Any:
    if not isinstance(value, list):
        return value
    kind = _CLASSES.get(name)
    if kind is None:
        return tuple(tuple(item) if isinstance(item, list) else item for item in value)
    return tuple(
        kind(**{f.name: tuple(v) if isinstance(v := item.get(f.name), list) else v for f in fields(kind)})
        for item in value
    )


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) < 80 else f"{text[:76]} ..."


def installed_versions() -> dict[str, str]:
    """The versions for a manifest; "unknown" for a package without metadata."""
    found = {}
    for package in ("pyxla", "torch", "torch_xla", "jaxlib"):
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            found[package] = "unknown"
    return found
