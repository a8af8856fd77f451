"""`devtool watch`: what it does after a file is saved."""

import os
import re
import signal
import subprocess
import time

import pytest

from tests.devtool_tree import Tree

PATIENCE_S = 90
GREEN, RED = "watch: green", "watch: red"


class Watched:
    """A running `devtool watch simple_add`."""

    def __init__(self, tree: Tree, *arguments: str):
        self.tree, self.log = tree, tree.root / "watch.log"
        command = tree.command("watch", "simple_add", "--device", "cpu", "--", *arguments)
        with self.log.open("w") as output:
            self.process = subprocess.Popen(
                command, cwd=tree.root, env=tree.environment(), stdout=output, stderr=output, process_group=0
            )

    def said(self, *words: str) -> str:
        """What it has said since the last call, once that has these words."""
        until = time.monotonic() + PATIENCE_S
        while time.monotonic() < until:
            text = self.log.read_text()[self.seen :]
            if all(word in text for word in words):
                self.seen += len(text)
                return text
            assert self.process.poll() is None, text
            time.sleep(0.05)
        raise AssertionError(f"expected {words}, got {self.log.read_text()[self.seen :]}")

    seen = 0


@pytest.fixture
def watched(tmp_path):
    watched = Watched(Tree(tmp_path), "-k", "check_raw and f32-3x5")
    yield watched
    watched.process.kill()
    watched.process.wait()


def test_from_green_to_red_and_back(watched):
    """After C++ it builds, after Python it does not; what cannot be built is not tested; Ctrl-C ends it."""
    source, cases = (watched.tree.kernels / "simple_add" / name for name in ("simple_add_ffi.cc", "cases.py"))
    right = source.read_text()
    assert "1 passed" in watched.said("build: built simple_add", GREEN)

    source.write_text(right.replace("scale * pyxla", "2 * scale * pyxla"))
    text = watched.said("watch: kernels/simple_add/simple_add_ffi.cc", "build: built simple_add", RED)
    assert "simple_add[f32-3x5]: values: expected" in text

    source.write_text(right.replace("scale * pyxla", "scales * pyxla"))
    assert "1 failed" not in watched.said("'scales' was not declared", "hint: ")

    source.write_text(right)
    watched.said("build: built simple_add", GREEN)
    cases.write_text(cases.read_text().replace('"3x5": ((3, 5)', '"3x5": ((3, 6)'))
    text = watched.said("watch: kernels/simple_add/cases.py", GREEN)
    assert "build:" not in text

    os.killpg(watched.process.pid, signal.SIGINT)
    assert watched.process.wait(10) == 0
    assert not re.search("Traceback|KeyboardInterrupt", watched.log.read_text())


def test_file_saved_during_the_first_build(watched):
    until = time.monotonic() + PATIENCE_S
    while not (watched.tree.root / "build").exists() and time.monotonic() < until:
        time.sleep(0.05)
    (watched.tree.kernels / "simple_add/__init__.py").write_text("# changed\n")
    assert "build:" not in watched.log.read_text()
    watched.said("build: built simple_add", "watch: kernels/simple_add/__init__.py", GREEN)


def test_another_ops_file_changes_nothing(watched):
    watched.tree.tiny_op("tiny")
    watched.said(GREEN)
    (watched.tree.kernels / "tiny/tiny_ffi.cc").write_text("")
    (watched.tree.kernels / "simple_add/notes.md").write_text("")
    time.sleep(0.5)
    (watched.tree.kernels / "simple_add/__init__.py").write_text("# changed\n")
    text = watched.said("watch: ", GREEN)
    assert re.findall("watch: kernels/.*", text) == ["watch: kernels/simple_add/__init__.py"]
