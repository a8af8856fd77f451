"""The kernels of a profile as their machine code alone describes them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from devtool.profile.occupancy import occupancy_of
from devtool.profile.sass import Kernel


def for_device(kernels: Sequence[Kernel], capability: str | None) -> list[Kernel]:
    """The kernels that run on a device; without a device, those of the newest architecture.

    Args:
        kernels: of all architectures.
        capability: of the device: "9.0".
    """
    most = int(capability.replace(".", "")) if capability else None
    numbers = {_number(kernel) for kernel in kernels}
    newest = max((number for number in numbers if most is None or number <= most), default=None)
    return [kernel for kernel in kernels if _number(kernel) == newest]


def described(kernel: Kernel) -> dict[str, Any]:
    """A kernel as in the file of a profile, without counters."""
    figures: dict[str, float] = {
        "registers": kernel.registers,
        "shared_static": kernel.shared,
        "stack": kernel.stack,
        "instructions": kernel.mix.total(),
        "local_code": kernel.mix["local memory"],
    }
    limited_by: list[str] = []
    if kernel.threads is not None:
        figures["threads"] = kernel.threads
    occupancy = occupancy_of(kernel.architecture, kernel.registers, kernel.shared, kernel.threads)
    if occupancy:
        figures["theoretical"] = occupancy.share
        limited_by = list(occupancy.limited_by)
    about = {"name": kernel.name, "figures": figures, "limited_by": limited_by, "mix": dict(kernel.mix.most_common())}
    return about | {"stalls": {}, "lines": [], "advice": []}


def with_machine_code(kernel: dict[str, Any], codes: Sequence[Kernel]) -> dict[str, Any]:
    """A kernel that ran, with what its machine code says besides the counters."""
    code = next((code for code in codes if code.name == kernel["name"]), None)
    if code is None:
        return kernel | {"mix": {}}
    about = described(code)
    return kernel | {"figures": about["figures"] | kernel["figures"], "mix": about["mix"]}


def _number(kernel: Kernel) -> int:
    return int(re.sub(r"\D", "", kernel.architecture))
