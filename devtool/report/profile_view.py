"""Turns the kept profiles of an op into what the template of `devtool report` prints."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from devtool import project
from devtool.profile.figures import share
from devtool.profile.profile_file import Profile
from devtool.profile.table import LEAST_STALL, cells, heading, hottest, stall_text


def profile_views(op: str, profiles: Sequence[Profile], sources: str) -> list[dict[str, Any]]:
    """The profiles of an op's folder: the call, and for each kernel figures, stalls, advice and annotated source."""
    own = [profile for profile in profiles if project.folder_of(profile.op) == op]
    return [
        {
            "title": f"{profile.op} {profile.case}",
            "device": profile.device,
            "command": f"devtool profile {profile.op} --case {profile.case}",
            "date": profile.document["date"][:16].replace("T", " "),
            "fresh": profile.document["sources"] == sources,
            "heading": list(heading(profile))[1:],
            "kernels": [_kernel(kernel) for kernel in profile.kernels],
            "missing": profile.document["missing"],
        }
        for profile in own
    ]


def _kernel(kernel: dict[str, Any]) -> dict[str, Any]:
    hot = hottest(kernel)
    return {
        "name": kernel["name"],
        "cells": list(cells(kernel).items()),
        "stalls": [
            (stall_text(reason), share(part), part) for reason, part in kernel["stalls"].items() if part >= LEAST_STALL
        ],
        "advice": kernel["advice"],
        "hot": len(hot),
        "files": list(_files(kernel["lines"])),
    }


def _files(lines: Iterable[dict[str, Any]]) -> Iterable[tuple[str, float, list[dict[str, Any]]]]:
    """File, its share of the samples, its lines in order; the hottest file first. `gap`: lines above are left out."""
    files: dict[str, list[dict[str, Any]]] = {}
    for line in lines:
        files.setdefault(line["file"], []).append(line)
    for file, own in sorted(files.items(), key=lambda item: -sum(line["share"] for line in item[1])):
        before = [own[0]["line"] - 1, *(line["line"] for line in own)]
        rows = [line | {"gap": line["line"] != last + 1} for last, line in zip(before, own, strict=False)]
        yield file or "machine code", sum(line["share"] for line in own), rows
