"""What `devtool profile` makes of what Nsight Compute says. It needs a GPU: here a script says it in its place."""

import pytest

from devtool.errors import DevtoolError
from devtool.profile import ncu

ERRORS = {
    "==ERROR== ERR_NVGPUCTRPERM - The user does not have permission to access NVIDIA GPU Performance Counters": (
        "profile: ncu: expected the right to read the GPU's counters, got ERR_NVGPUCTRPERM"
    ),
    "==ERROR== Failed to initialize the profiler: LibraryNotLoaded": (
        "profile: ncu: expected a profile of the call, got Failed to initialize the profiler: LibraryNotLoaded"
    ),
    "nothing": "profile: ncu: expected a profile of the call, got one that failed (exit status 3)",
}


def program(folder, lines: str) -> str:
    path = folder / "ncu"
    path.write_text(f"#!/bin/sh\n{lines}\n")
    path.chmod(0o755)
    return str(path)


@pytest.mark.parametrize("said", ERRORS)
def test_profiler_that_fails(tmp_path, said):
    script = program(tmp_path, f'echo "{said}"; exit 3')
    with pytest.raises(DevtoolError) as error:
        ncu.record(script, ["true"], {}, tmp_path / "call.ncu-rep")
    assert error.value.message.partition("\n\nhint: ")[0] == ERRORS[said]


def test_lines_of_the_call_are_those_that_are_not_the_profilers(tmp_path):
    script = program(tmp_path, 'echo "==PROF== Connected"; echo \'{"op": "x"}\'')
    assert ncu.record(script, ["true"], {}, tmp_path / "call.ncu-rep") == ['{"op": "x"}']


def test_report_that_cannot_be_read(tmp_path):
    script = program(tmp_path, 'echo "==ERROR== The file is no report"; exit 1')
    with pytest.raises(DevtoolError, match=r"profile: ncu: expected a page of call\.ncu-rep, got ==ERROR== The file"):
        ncu.page(script, tmp_path / "call.ncu-rep", "--page", "raw")


def test_profiler_on_the_path_comes_first(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    assert ncu.find_ncu() != str(tmp_path / "ncu")
    script = program(tmp_path, "true")
    assert ncu.find_ncu() == script
