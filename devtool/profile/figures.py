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


def bytes_rate(value: float) -> str:
    """Bytes per second: 2.98 TB/s."""
    return rate(value, "copy")


def share(value: float) -> str:
    """A share in percent: 0.123 is 12.3 %."""
    return f"{100 * value:.1f} %"


@dataclass(frozen=True)
class Figure:
    """A figure of a kernel.

    Attributes:
        key: its name in the JSON file.
        label: its name in the table.
        text: writes a value, which is in s, bytes, bytes/s, a share of 1 or a count, with the unit that fits.
        metric: the counter of Nsight Compute; "": the machine code has it.
        of: another counter, of which the figure is the share; "": it is the counter itself.
    """

    key: str
    label: str
    text: Callable[[float], str]
    metric: str = ""
    of: str = ""


_WAVEFRONTS, _SECTORS = "memory_l1_wavefronts_shared", "memory_l2_theoretical_sectors_global"
FIGURES = (
    Figure("seconds", "duration", duration, "gpu__time_duration.sum"),
    Figure("ctas", "CTAs", count, "launch__grid_size"),
    Figure("threads", "threads of a CTA", count, "launch__block_size"),
    Figure("waves", "waves of CTAs", number, "launch__waves_per_multiprocessor"),
    Figure("dram_read", "DRAM bytes read", size, "dram__bytes_read.sum"),
    Figure("dram_written", "DRAM bytes written", size, "dram__bytes_write.sum"),
    Figure("dram_rate", "DRAM rate", bytes_rate, "dram__bytes.sum.per_second"),
    Figure("dram_share", "DRAM, of its peak", share, "gpu__dram_throughput.avg.pct_of_peak_sustained_elapsed"),
    Figure("l1_hits", "hits in L1", share, "l1tex__t_sector_hit_rate.pct"),
    Figure("l2_hits", "hits in L2", share, "lts__t_sector_hit_rate.pct"),
    Figure("sm_share", "busiest unit of the SM", share, "sm__throughput.avg.pct_of_peak_sustained_elapsed"),
    Figure("tensor_share", "tensor cores", share, "sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_active"),
    Figure("issue_share", "cycles that issue", share, "smsp__issue_active.avg.pct_of_peak_sustained_active"),
    Figure("executed", "warp instructions", count, "smsp__inst_executed.sum"),
    Figure("achieved", "occupancy, achieved", share, "sm__warps_active.avg.pct_of_peak_sustained_active"),
    Figure("theoretical", "occupancy, at most", share, "sm__maximum_warps_per_active_cycle_pct"),
    Figure("registers", "registers of a thread", count, "launch__registers_per_thread"),
    Figure("shared_static", "shared memory, static", size, "launch__shared_mem_per_block_static"),
    Figure("shared_dynamic", "shared memory, dynamic", size, "launch__shared_mem_per_block_dynamic"),
    Figure("stack", "stack of a thread", size),
    Figure("instructions", "instructions in the code", count),
    Figure("local_code", "local accesses in the code", count),
    Figure("spills", "spill loads and stores", count, "sass__inst_executed_register_spilling"),
    Figure("local_loads", "local loads", count, "sass__inst_executed_local_loads"),
    Figure("local_stores", "local stores", count, "sass__inst_executed_local_stores"),
    Figure("wavefronts", "wavefronts of shared memory", count, _WAVEFRONTS),
    Figure("conflicts", "by bank conflicts", share, "derived__memory_l1_wavefronts_shared_excessive", _WAVEFRONTS),
    Figure("sectors", "sectors of global memory", count, _SECTORS),
    Figure(
        "excess", "by uncoalesced accesses", share, "derived__memory_l2_theoretical_sectors_global_excessive", _SECTORS
    ),
)
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
    "branch_resolving": "a branch",
    "membar": "a memory barrier",
    "no_inst": "its next instruction",
    "imc": "constant memory",
    "sleep": "the end of its sleep",
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
    "sleeping": "sleep",
    "no_instruction": "no_inst",
    "no_instructions": "no_inst",
    "imc_miss": "imc",
}


def stall_name(reason: str) -> str:
    """The name of a reason in STALLS: long_sb for long_scoreboard."""
    return _LONG_NAMES.get(reason, reason)
