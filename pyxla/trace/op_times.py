"""Time on the device per op, from the profile that the recorder left and the modules that XLA wrote."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from pyxla.hlo import text as hlo_text
from pyxla.inspection.profile import DeviceTimes, kernels_in, op_of


def op_times(record: dict[str, Any], folder: Path, modules: Iterable[Path]) -> tuple[dict[str, Any] | None, list[str]]:
    """The times per op, ready for JSON, or None if there are none; and notes on them.

    Args:
        record: the recorder's record.
        folder: the folder that the recorder wrote to.
        modules: files of the modules as XLA runs them.
    """
    profile = record.get("profile")
    if profile is None:
        return None, []
    file, why = profile["file"], profile["why"]
    if file is None:
        return None, [f"no times per op: {why or 'XLA was not up when the script last synced or read'}"]
    times = DeviceTimes()
    libraries = [(op_of(target) or target, Path(path)) for target, path in record["libraries"].items()]
    try:
        times.read((folder / file).read_bytes(), _ops(modules), kernels_in(libraries))
    # Whatever is wrong with a profile, the rest of the report is valid.
    except Exception as error:
        return None, [f"no times per op: the profile cannot be read: {type(error).__name__}: {error}"]
    total = times.seconds.total()
    if not total:
        return None, [f"no times per op: {why or 'the profile holds none of this device'}", *times.notes]
    return {
        "ops": [
            {"op": op, "calls": times.calls[op], "seconds": seconds, "share": seconds / total}
            for op, seconds in times.seconds.most_common()
        ],
        "seconds": total,
        "busy": times.busy,
    }, [*([why] if why else []), *times.notes]


def _ops(modules: Iterable[Path]) -> dict[tuple[str | int, str], str]:
    """(number or name of a module, instruction) -> op. A profile of the CPU has the number, others only the name."""
    found: dict[tuple[str | int, str], str] = {}
    for path in modules:
        numbered = re.match(r"module_(\d+)\.(.+?)\.(cpu|sm)_", path.name)
        if not numbered:
            continue
        module = int(numbered[1]) if numbered[3] == "cpu" else numbered[2]
        for call in hlo_text.custom_calls(path.read_text()):
            if op := op_of(call.target):
                found[module, call.name] = op
    return found
