"""Time on the device per op, from XLA's profile: it finds the op of each kernel or call."""

from __future__ import annotations

import re
import warnings
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from pyxla.hlo import wire
from pyxla.inspection.inspection import Inspection
from pyxla.library.find import find_library
from pyxla.library.kernel_names import kernel_names
from pyxla.packages import NAMESPACE
from pyxla.torch_ops.custom_op import find_op, find_target

__all__ = ["DeviceTimes", "kernels_in", "op_of", "profiling"]

_PREFIX = f"{NAMESPACE}_"
# Kernels of cuBLAS may also be called nvjet or cutlass.
_PRODUCT = re.compile(r"dot|gemm|convolution|cublas|nvjet|cutlass")
# XLA keeps about this many events of a GPU and drops later ones.
_KEPT = 1_000_000


@dataclass
class DeviceTimes:
    """Time on the device per op.

    Attributes:
        seconds, calls: op -> its time in seconds, and its number of kernels (CPU: calls). pyxla's ops have their names;
            all matrix products are one entry, and everything else that XLA computes is another.
        busy: from the start of the first op to the end of the last, the share of the time in which an op ran.
        notes: why some times may be missing.
    """

    seconds: Counter[str] = field(default_factory=Counter)
    calls: Counter[str] = field(default_factory=Counter)
    busy: float = 0.0
    notes: list[str] = field(default_factory=list)

    def read(
        self,
        profile: bytes,
        ops: Mapping[tuple[str | int, str], str],
        kernels: Mapping[str, str],
        on_gpu: bool = False,
    ) -> None:
        """Adds the times of a profile.

        Args:
            profile: XLA's serialized profile, an XSpace.
            ops: (name or number of a module, name of an instruction) -> the op that it calls.
            kernels: name of a CUDA kernel -> the op that it belongs to.
            on_gpu: the ops ran on a GPU; what the host did meanwhile is not looked at.

        Raises:
            ImportError: this jaxlib has no reader of profiles.
        """
        from jaxlib._profile_data import ProfileData

        said = _messages(profile)
        if said is None:
            # jaxlib's reader would end the process on it.
            self.notes.append("XLA's profile is cut short")
            return
        self.notes += [f"XLA's profiler: {text}" for text in said]
        planes = list(ProfileData.from_serialized_xspace(profile).planes)
        # A GPU has its own planes; the host's planes then show the launches.
        devices = [plane for plane in planes if plane.name.startswith("/device:GPU")]
        if on_gpu and not devices:
            self.notes.append("XLA's profile has no GPU: another profiler may hold it")
            return
        spans = []
        for plane in devices or planes:
            held = 0
            for line in plane.lines:
                held, found = _computed(line, held)
                events = [(start, end, _whose(name, stats, ops, kernels, devices)) for start, end, name, stats in found]
                spans += [(start, end) for start, end, _ in events]
                for op, nanoseconds in ((e[2], e[1] - e[0]) for e in events) if devices else _own_times(events):
                    self.seconds[op] += nanoseconds / 1e9
                    self.calls[op] += 1
            if devices and held >= _KEPT:
                self.notes.append(
                    f"{plane.name}: the profile holds {held} events; XLA drops what comes after a million"
                )
        if spans:
            self.busy = _covered(spans) / (max(end for _, end in spans) - min(start for start, _ in spans))


@contextmanager
def profiling(compiled: Inspection) -> Iterator[DeviceTimes]:
    """Records the device times of what runs inside the block, and fills them in when it ends.

    Args:
        compiled: the modules that will run.

    Yields:
        DeviceTimes; empty if the device reports no times.
    """
    import torch_xla

    found = DeviceTimes()
    # torch_xla's start_trace would write the same data to a folder, for TensorBoard.
    session = torch_xla._XLAC.profiler.TslProfilerSessionWrapper()
    try:
        yield found
    finally:
        profile = session.stop()
    calls = {(m.name, call.name): op_of(call.target) for m in compiled.modules for call in m.calls}
    ops = {place: op for place, op in calls.items() if op}
    found_ops = {name: find_op(name) for name in ops.values()} if compiled.device == "CUDA" else {}
    libraries = {name: find_library(op.library, op.namespace).path for name, op in found_ops.items()}
    found.read(profile, ops, kernels_in(libraries.items()), compiled.device == "CUDA")


def op_of(target: str) -> str | None:
    """The pyxla op or implementation that a custom call's target names; None for another library's target."""
    if op := find_target(target):
        return op.display_name
    return target.removeprefix(_PREFIX) if target.startswith(_PREFIX) else None


def kernels_in(libraries: Iterable[tuple[str, Path]]) -> dict[str, str]:
    """Name of each CUDA kernel in the libraries -> the op that it belongs to.

    Args:
        libraries: (op, library of the op) pairs. Ops that share a library are named together.
    """
    sharing: dict[Path, set[str]] = {}
    for op, path in libraries:
        sharing.setdefault(path, set()).add(op)
    return {kernel: ", ".join(sorted(ops)) for path, ops in sharing.items() for kernel in kernel_names(path)}


def _computed(line, held: int) -> tuple[int, list[tuple[float, float, str, dict]]]:
    """How many events a plane has up to the end of this line, and the events of the line that compute something."""
    found = []
    with warnings.catch_warnings():
        # jaxlib's reader makes a type that Python 3.12 warns of; where warnings are errors that ends the process.
        warnings.simplefilter("ignore", DeprecationWarning)
        for event in line.events:
            held += 1
            stats = dict(event.stats)
            if "hlo_op" in stats and not event.name.startswith("end: "):
                found.append((event.start_ns, event.start_ns + event.duration_ns, event.name, stats))
    return held, found


def _whose(name: str, stats: Mapping, ops: Mapping, kernels: Mapping[str, str], devices: list) -> str:
    # All kernels of a command buffer have its name as hlo_op.
    if own := kernels.get(name):
        return own
    instruction = stats["hlo_op"]
    # Different modules may share a name; their numbers differ.
    for module in (stats.get("program_id"), stats.get("hlo_module", "")):
        if own := ops.get((module, instruction)):
            return own
    return "matrix products" if _PRODUCT.search(name if devices else instruction) else "the rest of XLA"


def _own_times(events: list[tuple[float, float, str]]) -> Iterator[tuple[str, float]]:
    """Each event's op, and its time without the events nested in it: on the CPU a loop's event contains its body's."""
    events = sorted(events, key=lambda event: (event[0], -event[1]))
    own = [end - start for start, end, _ in events]
    around: list[int] = []
    for number, (start, end, _) in enumerate(events):
        while around and events[around[-1]][1] <= start:
            around.pop()
        if around and end <= events[around[-1]][1]:
            own[around[-1]] -= end - start
        around.append(number)
    return zip((op for _, _, op in events), own, strict=True)


def _covered(spans: list[tuple[float, float]]) -> float:
    """Length of the union of the spans."""
    covered, reached = 0.0, float("-inf")
    for start, end in sorted(spans):
        covered += max(0.0, end - max(start, reached))
        reached = max(reached, end)
    return covered


def _messages(profile: bytes) -> list[str] | None:
    """XSpace.errors and XSpace.warnings, for example about dropped events; None for a profile that is cut short."""
    fields = wire.length_delimited(profile)
    return fields and [content.decode(errors="replace") for number, content in fields if number in (2, 3)]
