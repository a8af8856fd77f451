"""The figures of a kernel: their names, units and where they come from, in the order of the table."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from devtool.bench.table import duration, number, rate


def count(value: float) -> str:
    """A count with three digits: 512, 12.3 k, 4.56 M."""
    for prefix, factor in (("G", 1e9), ("M", 1e6), ("k", 1e4)):
        if value >= factor:
            return f"{number(value / min(factor, 1e3 if prefix == 'k' else factor))} {prefix}"
    return f"{value:g}" if value == int(value) else number(value)


def size(value: float) -> str:
    """Bytes with the unit that fits: 512 B, 48 KiB, 1.23 MiB."""
    for prefix, factor in (("Gi", 2**30), ("Mi", 2**20), ("Ki", 2**10)):
        if value >= factor:
            return f"{number(value / factor)} {prefix}B"
    return f"{value:g} B"


def share(value: float) -> str:
    """A share in percent: 0.123 is 12.3 %."""
    return f"{100 * value:.1f} %"


@dataclass(frozen=True)
class Figure:
    """A figure of a kernel.

    Attributes:
        key: its name in the JSON file.
        label: its name in the table.
        text: writes a value with its unit.
        metric: the counter of Nsight Compute that it is, in the base unit; "": it is computed, or in the machine code.
        factor: from the counter's unit to the figure's, which is s, bytes, bytes/s or a share of 1.
    """

    key: str
    label: str
    text: Callable[[float], str]
    metric: str = ""
    factor: float = 1.0


def _pct(key: str, label: str, metric: str) -> Figure:
    return Figure(key, label, share, metric, 0.01)


FIGURES = (
    Figure("seconds", "duration", duration, "gpu__time_duration.sum", 1e-9),
    Figure("ctas", "CTAs", count, "launch__grid_size"),
    Figure("threads", "threads of a CTA", count, "launch__block_size"),
    Figure("waves", "waves of CTAs", number, "launch__waves_per_multiprocessor"),
    Figure("dram_bytes", "DRAM bytes", size, "dram__bytes.sum"),
    Figure("dram_rate", "DRAM rate", lambda value: rate(value, "copy"), "dram__bytes.sum.per_second"),
    _pct("dram_share", "DRAM, of its peak", "gpu__dram_throughput.avg.pct_of_peak_sustained_elapsed"),
    _pct("l1_hits", "hits in L1", "l1tex__t_sector_hit_rate.pct"),
    _pct("l2_hits", "hits in L2", "lts__t_sector_hit_rate.pct"),
    _pct("sm_share", "busiest unit of the SM", "sm__throughput.avg.pct_of_peak_sustained_elapsed"),
    _pct("tensor_share", "tensor cores", "sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_active"),
    _pct("issue_share", "cycles with an instruction", "smsp__issue_active.avg.pct_of_peak_sustained_active"),
    _pct("achieved", "occupancy, achieved", "sm__warps_active.avg.pct_of_peak_sustained_active"),
    _pct("theoretical", "occupancy, at most", "sm__maximum_warps_per_active_cycle_pct"),
    Figure("registers", "registers of a thread", count, "launch__registers_per_thread"),
    Figure("shared_static", "shared memory of a CTA, static", size, "launch__shared_mem_per_block_static"),
    Figure("shared_dynamic", "shared memory of a CTA, dynamic", size, "launch__shared_mem_per_block_dynamic"),
    Figure("stack", "stack of a thread", size),
    Figure("instructions", "instructions in the code", count),
    Figure("local_code", "local loads and stores in the code", count),
    Figure("executed", "warp instructions", count, "smsp__inst_executed.sum"),
    Figure("local_loads", "local loads", count),
    Figure("local_stores", "local stores", count),
    Figure("shared_wavefronts", "wavefronts of shared memory", count),
    Figure("shared_conflicts", "of these by bank conflicts", share),
    Figure("global_sectors", "sectors of global memory", count),
    Figure("global_excess", "of these by uncoalesced accesses", share),
)  # fmt: skip
BY_KEY = {figure.key: figure for figure in FIGURES}
# What Nsight Compute calls the resources that allow the fewest CTAs of an SM, and what they are called here.
LIMITS = {
    "launch__occupancy_limit_warps": "CTA size",
    "launch__occupancy_limit_registers": "registers",
    "launch__occupancy_limit_shared_mem": "shared memory",
    "launch__occupancy_limit_blocks": "CTAs of an SM",
    "launch__occupancy_limit_barriers": "barriers",
}
# Reason of a stall, as in the columns of the source page -> what a warp waits for.
STALLS = {
    "long_sb": "global or local memory",
    "short_sb": "shared memory or a special function",
    "barrier": "the CTA's barrier",
    "gmma": "the tensor cores",
    "math": "a busy arithmetic pipe",
    "mio": "the queue of shared memory and special functions",
    "lg": "the queue of global and local memory",
    "tex": "the texture queue",
    "wait": "the fixed latency of the instruction before",
    "not_selected": "its turn, as another warp issues",
    "selected": "nothing: it issues",
    "dispatch": "the dispatcher",
    "branch_resolve": "a branch",
    "membar": "a memory barrier",
    "no_inst": "its next instruction",
    "imc": "constant memory",
    "sleeping": "the end of its sleep",
    "drain": "its last stores",
    "misc": "something else",
    "warpgroup_arrive": "the other warps of its group",
}
# What the warp state counters call the same reasons, where the names differ.
_LONG_NAMES = {
    "long_scoreboard": "long_sb",
    "short_scoreboard": "short_sb",
    "math_pipe_throttle": "math",
    "mio_throttle": "mio",
    "lg_throttle": "lg",
    "tex_throttle": "tex",
    "dispatch_stall": "dispatch",
    "branch_resolving": "branch_resolve",
    "no_instruction": "no_inst",
    "no_instructions": "no_inst",
    "imc_miss": "imc",
}


def stall_name(reason: str) -> str:
    """The name of a reason in STALLS: long_sb for long_scoreboard."""
    return _LONG_NAMES.get(reason, reason)
