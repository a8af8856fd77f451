"""Where a step's time goes, per op: XLA's own profile of what ran, and whose kernel is which."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch_xla

from pyxla import Inspection
from pyxla.kernel_names import kernel_names
from pyxla.libraries import find_library
from pyxla.op import NAMESPACE, find_op

_OURS = f"{NAMESPACE}_"
# Kernels of cuBLAS are called nvjet and cutlass, too.
_PRODUCT = re.compile(r"dot|gemm|convolution|cublas|nvjet|cutlass")


@dataclass
class Breakdown:
    """Time on the device per op.

    Attributes:
        seconds, calls: op -> its time and how many kernels (CPU: calls) it was. Ops of ours by name, matrix products
            together, and all else that XLA computes together.
        busy: share of the time between the first op and the last in which one ran.
    """

    seconds: Counter[str] = field(default_factory=Counter)
    calls: Counter[str] = field(default_factory=Counter)
    busy: float = 0.0


@contextmanager
def profiling(compiled: Inspection) -> Iterator[Breakdown]:
    """Records what runs inside the block; the Breakdown is filled when it ends.

    Args:
        compiled: the modules that will run.

    Yields:
        Breakdown; empty, if the device gives no times.
    """
    found = Breakdown()
    # torch_xla's start_trace would write the same data to a folder, for TensorBoard.
    session = torch_xla._XLAC.profiler.TslProfilerSessionWrapper()
    try:
        yield found
    finally:
        profile = session.stop()
    calls = {(m.name, call.name): call.target for m in compiled.modules for call in m.calls}
    ops = {place: target.removeprefix(_OURS) for place, target in calls.items() if target.startswith(_OURS)}
    _read(profile, ops, kernels_of(set(ops.values())) if compiled.device == "CUDA" else {}, found)


def kernels_of(ops: Iterable[str]) -> dict[str, str]:
    """The names of these ops' CUDA kernels, and whose they are."""
    return {kernel: op for op in ops for kernel in kernel_names(find_library(find_op(op).library).path)}


def _read(profile: bytes, ops: Mapping[tuple[str, str], str], kernels: Mapping[str, str], found: Breakdown) -> None:
    from jaxlib._profile_data import ProfileData

    planes = list(ProfileData.from_serialized_xspace(profile).planes)
    # A GPU has planes of its own; beside them the host's is of the launches.
    devices = [plane for plane in planes if plane.name.startswith("/device:GPU")]
    spans = []
    for event in (event for plane in devices or planes for line in plane.lines for event in line.events):
        stats = dict(event.stats)
        if "hlo_op" in stats and not event.name.startswith("end: "):
            # All kernels of a command buffer have its name as their hlo_op.
            own = kernels.get(event.name) or ops.get((stats.get("hlo_module", ""), stats["hlo_op"]))
            op = own or _of_xla(event.name if devices else stats["hlo_op"])
            found.seconds[op] += event.duration_ns / 1e9
            found.calls[op] += 1
            spans.append((event.start_ns, event.start_ns + event.duration_ns))
    if spans:
        found.busy = _covered(spans) / (max(end for _, end in spans) - min(start for start, _ in spans))


def _of_xla(name: str) -> str:
    return "matrix products" if _PRODUCT.search(name) else "the rest of XLA"


def _covered(spans: list[tuple[float, float]]) -> float:
    """Length of the union of the spans."""
    covered, reached = 0.0, float("-inf")
    for start, end in sorted(spans):
        covered += max(0.0, end - max(start, reached))
        reached = max(reached, end)
    return covered
