"""A made-up run of `devtool bench` and a check of its plot, for the tests."""

import random
import struct
from pathlib import Path

from devtool.records import run_file
from devtool.records.run_file import Run, parse_run


def document(**times: float) -> dict:
    """A run of two cases; the arguments map a layer to the factor of its times."""

    def layer(name: str, base: float) -> dict:
        noise = random.Random(name)
        factor = times.get(name.replace(" ", "_").replace(".", "_"), 1.0)
        return {"name": name, "calls": 1, "seconds": [factor * base * noise.uniform(0.98, 1.02) for _ in range(20)]}

    names = ("raw", "raw step", "xla step", "torch", "torch.compile")
    layers = [layer(name, 1e-3 * (number + 1)) for number, name in enumerate(names)]
    skipped = {"name": "flashinfer decode", "skipped": "for CUDA only"}
    control = layer("control", 0.05)["seconds"]
    case = {"op": "rms_norm", "bytes": 10**7, "operations": 10**6, "checked": "all", "error": 0.5, "control": control}
    return {
        "schema": run_file.SCHEMA,
        "rounds": 20,
        "date": "2026-11-21T12:00:00+00:00",
        "device": {"kind": "cpu", "name": "A processor", "threads": 2},
        "rates": {"copy": {"per_second": 1e10, "what": "a copy"}, "matrix": {"per_second": 1e11, "what": "a product"}},
        "cases": [
            case | {"case": "small", "layers": [*layers, skipped]},
            case | {"case": "large", "layers": layers, "operations": 10**9, "checked": "24 rows"},
        ],
    }


def run(**times: float) -> Run:
    """The run that `document` describes."""
    return parse_run(document(**times))


def assert_is_picture(path: Path) -> None:
    content = path.read_bytes()
    assert content.startswith(b"\x89PNG\r\n\x1a\n")
    width, height = struct.unpack(">II", content[16:24])
    assert 800 <= width <= 4000 and 400 <= height <= 8000 and 10_000 < len(content) < 2_000_000
