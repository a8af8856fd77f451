"""What the counters of a kernel suggest: a sentence with the counter's figure, and none without one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from devtool.profile.figures import STALLS, count, share

# From where a share is worth a sentence.
_WASTED = 0.1
# A call at this share of the DRAM's peak waits for nothing but the DRAM.
_DRAM_BOUND = 0.8
# The achieved occupancy, as a share of what the launch allows, below which CTAs are missing or end apart.
_UNEVEN = 0.8
# The share from which one reason of the stalls matters.
_MAIN_STALL = 0.3
# What shortens a stall, where the reason itself says it.
_REMEDIES = {
    "long_sb": "load earlier, or keep more loads in flight",
    "short_sb": "read shared memory in wider vectors, or earlier",
    "barrier": "give the warps between two barriers the same work",
    "mio": "read shared memory in wider vectors",
    "lg": "read global memory in wider vectors",
    "math": "the busiest pipe is full: do less work in it",
    "wait": "interleave independent instructions",
    "no_inst": "shorten the code of the loop: it leaves the instruction cache",
    "imc": "constants that differ between threads belong into shared memory",
    "branch_resolving": "take branches out of the inner loop",
}


def advice_of(kernel: Mapping[str, Any]) -> list[str]:
    """The sentences for a kernel with counters, as in the file of a profile."""
    figures, found = kernel["figures"], []

    def has(*keys: str) -> bool:
        return all(key in figures for key in keys)

    local = figures.get("local_loads", 0) + figures.get("local_stores", 0)
    if spills := figures.get("spills", 0):
        found.append(f"{count(spills)} spill loads and stores ran: the registers do not suffice.")
    elif local:
        found.append(f"{count(local)} local loads and stores ran: an array is indexed at run time.")
    if (part := figures.get("conflicts", 0)) > _WASTED:
        found.append(f"{share(part)} of the wavefronts of shared memory are bank conflicts: pad or swizzle it.")
    if (part := figures.get("excess", 0)) > _WASTED:
        what = "of the sectors of global memory are moved for nothing"
        found.append(f"{share(part)} {what}: let neighbouring threads access neighbouring addresses.")
    if has("waves") and figures["waves"] < 1:
        found.append(f"The grid has {figures['waves']:.2f} waves of CTAs: more CTAs would fill the GPU.")
    elif has("achieved", "theoretical") and figures["achieved"] < _UNEVEN * figures["theoretical"]:
        reached, most = share(figures["achieved"]), share(figures["theoretical"])
        found.append(f"The occupancy is {reached} where {most} is possible: CTAs end at different times.")
    reason, part = next(iter(kernel["stalls"].items()), ("", 0.0))
    if (busy := figures.get("dram_share", 0)) >= _DRAM_BOUND:
        found.append(f"The DRAM is at {share(busy)} of its peak: only fewer bytes make the kernel faster.")
    elif part > _MAIN_STALL and reason in _REMEDIES:
        found.append(f"{share(part)} of the stalls wait for {STALLS[reason]}: {_REMEDIES[reason]}.")
    return found
