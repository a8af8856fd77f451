"""The JSON document of a profile: what `devtool profile --json` saves, and what the records of a report keep."""

from __future__ import annotations

import json
import math
import re
import statistics
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from devtool.errors import DevtoolError, error_from
from devtool.files import write_atomic
from devtool.records.store import folder, read_records, write_record

SCHEMA = 1


@dataclass(frozen=True)
class Profile:
    """A profile of an op.

    Attributes:
        document: the whole profile, as in the file (docs/reference/cli/profile.md has its fields).
    """

    document: dict[str, Any]

    @property
    def op(self) -> str:
        """The op or implementation: "rms_norm.triton"."""
        return self.document["op"]

    @property
    def case(self) -> str | None:
        """The case that was called; None if only the machine code was read."""
        return self.document["case"]

    @property
    def kernels(self) -> list[dict[str, Any]]:
        """The kernels in the order in which they ran, or those in the machine code."""
        return self.document["kernels"]

    @property
    def device(self) -> str:
        """Where it ran, in words."""
        about = self.document["device"]
        return f"{about['name']}, {about['driver']}" if about else "no GPU"

    @property
    def seconds(self) -> float | None:
        """The median time of a call, without the profiler, caches cold; None if nothing was called."""
        return statistics.median(self.document["seconds"]) if self.document["seconds"] else None

    def shares(self) -> dict[str, float]:
        """The rate of a call as a share of the device's: "copy" and "matrix", as far as the case declares its work."""
        rates, done = self.document["rates"], self.document
        needs = {"copy": done.get("bytes"), "matrix": done.get("operations")}
        return {
            name: amount / rates[name]["per_second"] / self.seconds
            for name, amount in needs.items()
            if amount and rates and self.seconds
        }


def parse_profile(document: Any) -> Profile:
    """The profile in a document. Raises KeyError, TypeError, ValueError or AttributeError if it is none."""
    if document["schema"] != SCHEMA:
        raise ValueError(f"schema {document['schema']}")
    profile = Profile(document)
    datetime.fromisoformat(document["date"]), str(document["op"]), [str(line) for line in document["missing"]]
    for kernel in document["kernels"]:
        str(kernel["name"])
        numbers = {**kernel["figures"], **kernel["stalls"], **kernel["mix"]}
        if not all(math.isfinite(value) for value in numbers.values()):
            raise ValueError(f"a figure of {kernel['name']} that is no number")
        for entry in kernel["lines"]:
            for key in ("file", "line", "text", "share", "executed", "stall", "code"):
                entry[key]
        [str(text) for text in (*kernel["limited_by"], *kernel["advice"])]
    str(profile.device), profile.shares(), str(document["case"])
    return profile


def read_profile(option: str, path: Path) -> Profile:
    """The profile in a file.

    Args:
        option: the option that names the file, for the error.
        path: the file.

    Raises:
        DevtoolError: there is no such file, or it is not a profile.
    """
    what, hint = f"profile: {option}: expected a file of devtool profile --json", f"devtool profile OP --json {path}"
    try:
        return parse_profile(json.loads(path.read_text()))
    except OSError as error:
        raise DevtoolError(f"{what}, got {error.strerror}: {path}", hint) from error
    except json.JSONDecodeError as error:
        raise DevtoolError(f"{what}, got invalid JSON: {error} in {path}", hint) from error
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise DevtoolError(f"{what} (schema {SCHEMA}), got another document: {error!r} in {path}", hint) from error


def write_profile(path: Path, profile: Profile) -> None:
    """Writes the profile, whole or not at all."""
    try:
        write_atomic(path, json.dumps(profile.document, indent=1) + "\n")
    except OSError as error:
        raise error_from("profile", error) from error


def keep_profile(profile: Profile) -> None:
    """Replaces the record of the same case; a failure to write is only reported on stderr."""
    if profile.case is not None:  # the report reads the machine code itself
        name = re.sub(r"[^\w.-]", "_", f"{profile.op}-{profile.case}")
        write_record(folder() / "profile" / f"{name}.json", profile.document)


def read_kept() -> tuple[list[Profile], list[str]]:
    """The kept profiles of all ops, the newest first, and what is wrong with the other files."""
    found, problems = read_records("profile", read_profile)
    return found[::-1], problems


def main_stall(stalls: Mapping[str, float]) -> str:
    """The reason with the most samples other than issuing; "" if there is none."""
    waits = {reason: samples for reason, samples in stalls.items() if reason != "selected" and samples}
    return max(waits, key=waits.__getitem__, default="")
