"""`devtool trace`: XLA's profile in scripts that fork, profile themselves or run long; torch_xla in any folder."""

import os
from importlib.util import find_spec

import pytest

from tests.devtool.trace.test_command import Traced

PROFILES = """
    import os
    import torch
    import torch_xla
    from torch_xla.debug import profiler

    x = torch.ones(8, 8).to(torch_xla.device())
    y = x @ x
    torch_xla.sync(wait=True)
    child = os.fork()
    if child == 0:
        import gc
        gc.collect()
        os._exit(0)
    print(os.waitpid(child, 0)[1])
    for folder in ("one", "two"):
        profiler.start_trace(folder)
        y = x @ x
        torch_xla.sync(wait=True)
        profiler.stop_trace()
"""


@pytest.mark.slow
def test_a_script_that_forks_and_profiles_itself(tmp_path):
    """XLA has one profile at a time: the script's own is complete, and the report says why the trace's ended."""
    traced = Traced(tmp_path, PROFILES)
    assert (traced.done.returncode, traced.done.stdout) == (0, "0\n"), traced.done.stderr
    for folder in ("one", "two"):
        (data,) = (tmp_path / folder).rglob("*.xplane.pb")
        assert b"hlo_op" in data.read_bytes()
    assert [(e["op"], e["calls"]) for e in traced.report["device_time"]["ops"]] == [("matrix products", 1)]
    (note,) = traced.report["notes"]
    assert note.startswith("the script opens XLA's profiler itself") and f"note: {note}" in traced.done.stderr


LONG = """
    import time
    import torch
    import torch_xla

    x = torch.ones(8, 8).to(torch_xla.device())
    until = time.monotonic() + 2
    while time.monotonic() < until:
        y = x @ x
        torch_xla.sync()
"""


def test_a_long_run_is_recorded_for_a_while(tmp_path):
    traced = Traced(tmp_path, LONG, options=("--op-seconds", "0.2"))
    (entry,) = traced.report["device_time"]["ops"]
    assert 0 < entry["calls"] < traced.report["totals"]["executions"] / 2
    assert traced.report["notes"] == ["times per op cover the first 0.2 s of computing: --op-seconds N records longer"]


@pytest.mark.slow
def test_torch_xla_in_any_folder(tmp_path, monkeypatch):
    """A sync must not be shown at torch_xla's own line. Without a profile, everything else is reported."""
    (tmp_path / "some").mkdir()
    (tmp_path / "some/torch_xla").symlink_to(find_spec("torch_xla").submodule_search_locations[0])
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path / "some"), os.environ.get("PYTHONPATH", "")]))
    script = """
        import torch
        import torch_xla

        assert "some/torch_xla" in torch_xla.__file__
        x = torch.ones(3).to(torch_xla.device()) * 2
        torch_xla.sync()  # sync
    """
    traced = Traced(tmp_path, script, options=("--op-seconds", "0"))
    assert traced.done.returncode == 0, traced.done.stderr
    assert len(traced.at("graphs", "sync")) == len(traced.at("syncs", "sync")) == 1
    assert traced.report["device_time"] is None
    assert traced.report["notes"] == ["no times per op: --op-seconds is 0"]
