"""How many warps of a kernel an SM holds at once, from the kernel's registers, shared memory and CTA size."""

from __future__ import annotations

import re
from dataclasses import dataclass

_WARP = 32
_KIB = 1024
# Registers are allocated to a warp in units of this many, from one of the four parts of an SM.
_REGISTER_UNIT, _PARTS, _REGISTERS_OF_PART = 256, 4, 16384
# Shared memory is allocated in units of this many bytes. The driver takes 1 KiB of each CTA's.
_SHARED_UNIT, _RESERVED = 128, _KIB


@dataclass(frozen=True)
class Sm:
    """What an SM of an architecture holds at most: warps, CTAs, and bytes of shared memory for them."""

    warps: int
    ctas: int
    shared: int


# Source: CUDA C++ Programming Guide 13.0, "Technical Specifications per Compute Capability".
_SMS = {
    80: Sm(64, 32, 164 * _KIB),
    86: Sm(48, 16, 100 * _KIB),
    87: Sm(48, 16, 164 * _KIB),
    89: Sm(48, 24, 100 * _KIB),
    90: Sm(64, 32, 228 * _KIB),
    100: Sm(64, 32, 228 * _KIB),
    103: Sm(64, 32, 228 * _KIB),
    120: Sm(48, 24, 100 * _KIB),
    121: Sm(48, 24, 100 * _KIB),
}


@dataclass(frozen=True)
class Occupancy:
    """The most warps of a kernel that an SM holds.

    Attributes:
        share: of the warps that an SM can hold, 0 to 1.
        ctas: resource -> how many CTAs of the kernel it allows; empty if the size of a CTA is not known.
        limited_by: the resources that allow the fewest; empty if an SM is full.
    """

    share: float
    ctas: dict[str, int]
    limited_by: tuple[str, ...]


def occupancy_of(architecture: str, registers: int, shared: int, threads: int | None) -> Occupancy | None:
    """The occupancy that a kernel can reach; None for an architecture whose limits are not known here.

    Args:
        architecture: "sm_90a".
        registers: of a thread.
        shared: bytes of a CTA as the machine code declares them, which from sm_90 on include the driver's 1 KiB.
        threads: of a CTA; None: not known, and then only registers count, which bound the warps of CTAs of any size.
    """
    number = int(re.sub(r"\D", "", architecture))
    sm = _SMS.get(number)
    if sm is None:
        return None
    per_warp = _rounded_up(registers * _WARP, _REGISTER_UNIT)
    warps = _PARTS * (_REGISTERS_OF_PART // max(per_warp, 1))
    if threads is None:
        return Occupancy(min(warps / sm.warps, 1.0), {}, ("registers",) if warps < sm.warps else ())
    of_cta = -(-threads // _WARP)
    bytes_of_cta = _rounded_up(max(shared, _RESERVED) if number >= 90 else shared + _RESERVED, _SHARED_UNIT)
    ctas = {
        "CTA size": sm.warps // of_cta,
        "registers": warps // of_cta,
        "shared memory": sm.shared // bytes_of_cta,
        "CTAs of an SM": sm.ctas,
    }
    fewest = min(ctas.values())
    share = fewest * of_cta / sm.warps
    return Occupancy(share, ctas, tuple(name for name in ctas if ctas[name] == fewest) if share < 1 else ())


def _rounded_up(value: int, unit: int) -> int:
    return -(-value // unit) * unit
