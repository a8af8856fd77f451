"""The examples of the docs run: commands, scripts and edits, page by page in one copy of the checkout."""

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from devtool.scaffold.op_folder import rendered
from devtool.scaffold.schema import parse_schema
from devtool.scaffold.stub import Op
from tests.conftest import ROOT
from tests.devtool_tree import Tree
from tests.docs.test_documents import EXAMPLES
from tests.layers.test_imports import IMPLEMENTATIONS, LIBRARIES
from tests.markdown import matches, page, pages


def is_run(block) -> bool:
    return block.words in (("console", "run"), ("python", "run"), ("diff",))


@pytest.fixture(scope="module")
def tree(tmp_path_factory):
    """One copy of the checkout for all pages, with the built libraries of the ops that their scripts call."""
    tree = Tree(tmp_path_factory.mktemp("docs"))
    scripts = "".join(block.text for p in pages() for block in p.blocks if block.words == ("python", "run"))
    tree.library("").parent.mkdir(parents=True)
    called = set(re.findall(r"xla_gpu\.(\w+)", scripts))
    for op in (folder for folder in LIBRARIES if IMPLEMENTATIONS.get(folder, folder) in called):
        shutil.copytree(ROOT / "kernels" / op, tree.kernels / op, dirs_exist_ok=True)
        for name in (f"lib{op}.so", f"lib{op}.json"):
            assert (ROOT / "build/lib" / name).is_file(), f"expected a built library: devtool build {op}"
            shutil.copy(ROOT / "build/lib" / name, tree.root / "build/lib")
    return tree


@pytest.fixture(scope="module")
def interpreter(tree):
    with Interpreter(tree) as interpreter:
        yield interpreter


class Interpreter:
    """Runs each script in a process forked from one that has imported torch_xla, because the import takes seconds.

    It is started again after a new op folder, because `import torch_xla` defines the ops.
    """

    SERVER = """
import json, os, sys, traceback
import torch, torch_xla
for line in sys.stdin:
    script, output, errors = json.loads(line)
    child = os.fork()
    if child == 0:
        os.dup2(os.open(output, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), 1)
        os.dup2(os.open(errors, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), 2)
        try:
            exec(compile(script, "<script>", "exec"), {"__name__": "__main__"})
        except BaseException:
            traceback.print_exc()
            os._exit(1)
        finally:
            sys.stdout.flush()
        os._exit(0)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""

    def __init__(self, tree: Tree):
        self._tree, self._server, self._ops = tree, None, None

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self._server is not None:
            self._server.kill()
            self._server.communicate()

    def run(self, script: str) -> tuple[int, str, str]:
        """Exit status, stdout and stderr of a script."""
        ops = sorted(path.name for path in self._tree.kernels.iterdir())
        if ops != self._ops:
            self.__exit__()
            self._ops = ops
            self._server = subprocess.Popen(
                [sys.executable, "-P", "-c", self.SERVER], cwd=self._tree.root, text=True,
                env=self._tree.environment(PJRT_DEVICE="CPU"), stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            )  # fmt: skip
        streams = [self._tree.root / name for name in ("script.stdout", "script.stderr")]
        print(json.dumps([script, *map(str, streams)]), file=self._server.stdin, flush=True)
        return int(self._server.stdout.readline()), *(path.read_text() for path in streams)


@pytest.mark.slow
@pytest.mark.parametrize("name", [str(p) for p in pages() if any(map(is_run, p.blocks))])
def test_what_is_shown_runs(name, tree, interpreter):
    """Runs a page's blocks marked `run`, its files and its diffs, one after the other."""
    blocks = page(name).blocks
    for number, block in enumerate(blocks):
        place = f"{name}:{block.line}"
        if block.words == ("console", "run"):
            for command, expected in block.commands():
                got = run_command(tree, command)
                assert matches(expected, got), f"{place}: {command}\nexpected:\n{expected}\ngot:\n{got}"
        elif block.words[:2] == ("python", "file"):
            (tree.root / block.words[2]).write_text(block.text)
        elif block.words == ("python", "run"):
            status, output, errors = interpreter.run(block.text)
            assert status == 0, f"{place}:\n{errors}"
            shown = blocks[number + 1 : number + 2]
            if shown and shown[0].words == ("text", "output"):
                assert matches(shown[0].text, output), f"{place} prints:\n{output}"
        elif block.words == ("diff",):
            apply_diff(tree.root, block.text, place)
    stubs = [path for op in EXAMPLES for path in tree.kernels.glob(f"{op}/*") if "replace:" in path.read_text()]
    assert not stubs, f"{name} leaves lines marked `replace:` in {', '.join(path.name for path in stubs)}"


NEW_OP = re.compile(r'^\$ bin/devtool new-op (\w+) "(.*)"$', re.MULTILINE)
NEW_OPS = [(str(p), *words) for p in pages() for words in NEW_OP.findall(p.text)]
EDITED = [new for new in NEW_OPS if f"--- kernels/{new[1]}/" in page(new[0]).text]


@pytest.mark.parametrize(("name", "op", "schema"), EDITED, ids=[new[1] for new in EDITED])
def test_edits_fit_the_stub(name, op, schema, tmp_path):
    """Without a build: each hunk applies to what new-op writes; the result is formatted and has no `replace:`."""
    with rendered(Op(op, parse_schema(schema)), beside=None) as folder:
        shutil.copytree(folder, tmp_path / "kernels" / op)
    for block in page(name).blocks:
        if block.words == ("diff",):
            apply_diff(tmp_path, block.text, f"{name}:{block.line}")
    files = sorted((tmp_path / "kernels" / op).iterdir())
    assert [path.name for path in files if "replace:" in path.read_text()] == []
    cpp = [path for path in files if path.suffix in (".h", ".cc", ".cu")]
    scripts = Path(sysconfig.get_path("scripts"))
    style = f"--style=file:{ROOT / '.clang-format'}"
    subprocess.run([scripts / "clang-format", style, "--dry-run", "-Werror", *cpp], check=True)
    for command in (["check"], ["format", "--check"]):
        ruff = [scripts / "ruff", *command, "--no-cache", "--config", ROOT / "pyproject.toml", tmp_path / "kernels"]
        subprocess.run(ruff, check=True)


def test_pages_that_write_an_op_are_found():
    assert {(name, op) for name, op, _ in EDITED} == {
        ("docs/guide/first-op.md", "soft_cap"),
        ("docs/guide/two-results.md", "topk_softmax"),
    }


def test_scripts_are_run_and_judged(interpreter):
    assert interpreter.run("import os, sys; print(__name__); print('x', file=sys.stderr)") == (0, "__main__\n", "x\n")
    status, output, errors = interpreter.run("print('first')\nraise SystemExit('no')")
    assert (status, output) == (1, "first\n") and errors.endswith("SystemExit: no\n")


def run_command(tree: Tree, command: str) -> str:
    """The command's stdout and stderr, in order."""
    words = shlex.split(command)
    assert words[0] in ("devtool", "bin/devtool"), command
    done = subprocess.run(
        tree.command(*words[1:]), cwd=tree.root, env=tree.environment(), text=True,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip
    return done.stdout


def apply_diff(root: Path, text: str, place: str) -> None:
    """Applies each hunk to the file named in the first line; a hunk's old lines must occur there exactly once."""
    first, *hunks = re.split(r"^@@\n", text, flags=re.MULTILINE)
    path = root / first.removeprefix("--- ").strip()
    content = path.read_text()
    for hunk in hunks:
        lines = hunk.splitlines(keepends=True)
        assert all(line[0] in " +-" for line in lines), f"{place}: expected a diff, got {hunk}"
        old = "".join(line[1:] for line in lines if line[0] in " -")
        new = "".join(line[1:] for line in lines if line[0] in " +")
        assert content.count(old) == 1, (
            f"{place}: expected this once in {first.strip()}, got {content.count(old)}:\n{old}"
        )
        content = content.replace(old, new)
    path.write_text(content)


def test_readme_s_example_works():
    (example,) = [block.text for block in page("README.md").blocks if block.words[:1] == ("python",)]
    script = f"{example}\nassert y.cpu().shape == (4, 4096) and bool(y.cpu().isfinite().all())"
    kept = {name: value for name, value in os.environ.items() if name not in ("LD_PRELOAD", "XLA_FLAGS")}
    command = [sys.executable, "-P", "-c", script]
    done = subprocess.run(command, env=kept | {"PJRT_DEVICE": "CPU"}, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
