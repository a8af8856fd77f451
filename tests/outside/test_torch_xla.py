"""The runner of pytorch/xla's own tests, on a checkout of a few lines: each way in which a test ends is told apart."""

import json

import pytest

from pyxla.torch_xla_patches import PAIRS
from tests.conftest import ROOT
from tests.outside.small_suite import outcomes, run_suite, written
from tests.outside.suite import known
from tests.outside.torch_xla.checkout import TorchXla

_TESTS = """
import importlib.util
import os
import time
import unittest


class TestSmall(unittest.TestCase):
    def test_crash(self):
        os.abort()

    def test_fail(self):
        self.assertEqual(os.environ["PJRT_DEVICE"], "TPU")

    def test_hang(self):
        time.sleep(600)

    def test_pass(self):
        self.assertEqual(os.environ["CPU_NUM_DEVICES"], "1")
        self.assertIn("site-packages", importlib.util.find_spec("torch_xla").origin)

    def test_skip(self):
        self.skipTest("for another device")

    def test_subtests(self):
        for number in range(2):
            with self.subTest(number=number):
                self.assertEqual(number, 0)

    def test_the_rest_runs_after_a_crash(self):
        pass
"""
_SMALL = "test/test_small.py::TestSmall::test_"
_KNOWN = f"""
[[known]]
tests = ["{_SMALL}crash"]
outcome = "crash"
reason = "it aborts"

[[known]]
tests = ["*"]
outcome = "uncollected"
says = "No module named 'not_there'"
reason = "needs not_there"

[[known]]
tests = ["{_SMALL}hang"]
outcome = "failed"
reason = "an entry for another outcome"

[[known]]
tests = ["{_SMALL}pass"]
outcome = "failed"
reason = "mended since"

[[known]]
tests = ["{_SMALL}fail"]
outcome = "failed"
reason = "another release"
releases = ["1.0.0"]

[[known]]
tests = ["{_SMALL}fail"]
outcome = "failed"
says = "another message"
reason = "fails for another reason"

[[known]]
tests = ["test/test_gone.py::*"]
outcome = "failed"
reason = "removed"
"""


@pytest.fixture
def checkout(tmp_path):
    folder = tmp_path / "xla"
    files = {
        "setup.py": f"version = os.getenv('TORCH_XLA_VERSION', '{TorchXla.installed_release()}')\n",
        "torch_xla/__init__.py": "raise ImportError('the checkout must not be imported')\n",
        "test/__init__.py": "",
        "test/test_small.py": _TESTS,
        "test/test_script.py": "import helper\nif __name__ == '__main__':\n  assert helper.VALUE == 1\n",
        "test/helper.py": "VALUE = 1\n",
        "test/folder/__init__.py": "",
        "test/folder/test_folder.py": "import neighbour\ndef test_neighbour():\n    assert neighbour.VALUE == 2\n",
        "test/folder/neighbour.py": "VALUE = 2\n",
        "test/test_imports.py": "import not_there\n",
        "test/test_some_tpu.py": "def test_tpu():\n    raise RuntimeError\n",
        "known.toml": _KNOWN,
    }
    return written(folder, files)


def run(folder, *options):
    return run_suite("torch_xla", folder, *options, "--timeout", "2")


def lines(ran, start):
    return [line.removeprefix(start) for line in ran.stdout.splitlines() if line.startswith(start)]


def test_each_test_has_an_outcome(checkout, tmp_path):
    ran = run(checkout, "--workers", "2", "--json", tmp_path / "results.json")
    kept = json.loads((tmp_path / "results.json").read_text())
    assert outcomes(kept, _SMALL) == {
        "crash": "crash",
        "fail": "failed",
        "hang": "hang",
        "pass": "passed",
        "skip": "skipped",
        "subtests": "failed",
        "the_rest_runs_after_a_crash": "passed",
        "test/folder/test_folder.py::test_neighbour": "passed",
        "test/test_script.py::main": "passed",
    }, ran.stderr
    assert list(kept["uncollected"]) == ["test/test_imports.py"]

    assert ran.returncode == 1
    new = lines(ran, "new: ")
    assert [line.partition(": ")[0] for line in new] == ["failed", "hang", "failed"]
    assert new[0].startswith(f"failed: {_SMALL}fail: AssertionError: 'CPU' != 'TPU'")
    assert lines(ran, "passes now, remove it from the list: ") == [f"{_SMALL}pass: mended since"]
    assert lines(ran, "matches no test: ") == ["test/test_gone.py::*: removed"]
    assert "known: 1 uncollected: *: needs not_there" in ran.stdout
    assert "left out: 1 files: for TPUs" in ran.stdout


def test_results_are_kept_where_time_ends(checkout, tmp_path):
    kept = tmp_path / "results.json"
    options = "--workers", "1", "--only", "test/test_small.py", "--json", kept
    assert run(checkout, *options, "--seconds", "0").returncode == 3
    assert json.loads(kept.read_text())["results"] == {}

    kept_before = {"outcome": "passed", "reason": "as it was", "seconds": 0}
    everything = [f"{_SMALL}{name}" for name in ("hang", "crash", "pass")]
    results = {test: kept_before for test in everything[:2]}
    text = json.loads(kept.read_text()) | {"tests": {"test/test_small.py": everything}, "results": results}
    kept.write_text(json.dumps(text))
    resumed = run(checkout, *options, "--resume")
    assert resumed.returncode == 0, resumed.stdout
    assert f"torch_xla {TorchXla.installed_release()} on CPU: 1 files, 3 passed" in resumed.stdout

    other_device = run(checkout, *options, "--resume", "--device", "CUDA")
    assert other_device.returncode == 2
    assert "--json: expected results of torch_xla" in other_device.stderr


def test_checkout_of_another_release_is_refused(checkout):
    (checkout / "setup.py").write_text("version = os.getenv('TORCH_XLA_VERSION', '1.13.0')\n")
    refused = run(checkout)
    assert refused.returncode == 2
    assert "FOLDER: expected a checkout of pytorch/xla" in refused.stderr
    assert "got that of 1.13" in refused.stderr


def test_list_and_rule_can_be_read():
    entries = known.read(ROOT / "tests/outside/torch_xla/known.toml")
    assert {device for entry in entries for device in entry.devices} <= {"CPU", "CUDA"}
    assert {release for entry in entries for release in entry.releases} <= set(PAIRS)
