"""The command line as a whole: help, errors, exit codes, and the few imports of its short commands."""

import os
import subprocess
import sys
from importlib.metadata import packages_distributions

import click
import pytest
from click.testing import CliRunner

from devtool.cli import cli
from tests.conftest import ROOT
from tests.devtool_tree import Tree

COMMANDS = sorted(cli.commands)


@pytest.fixture(scope="module")
def tree(tmp_path_factory):
    tree = Tree(tmp_path_factory.mktemp("cli"))
    tree.tiny_op("tiny")
    assert tree.run("build", "tiny").returncode == 0
    return tree


def test_commands():
    assert COMMANDS == [
        "bench",
        "build",
        "completion",
        "docs",
        "doctor",
        "fuzz",
        "hlo",
        "init",
        "list",
        "lock",
        "new-op",
        "nix",
        "profile",
        "report",
        "run-artifact",
        "test",
        "trace",
        "tune",
        "verify",
        "watch",
        "wheel",
    ]


@pytest.mark.parametrize("name", COMMANDS)
def test_help_says_what_it_does_and_shows_one_example(name):
    result = CliRunner().invoke(cli, [name, "--help"])
    assert result.exit_code == 0
    first, example = [line.strip() for line in cli.commands[name].help.replace("\b", "").splitlines() if line.strip()][
        :2
    ]
    assert len(first) < 60 and not first.endswith(".") and first[0].isupper()
    assert example.startswith(f"Example: devtool {name}")
    assert example in result.output


@pytest.mark.parametrize("name", COMMANDS)
def test_every_option_has_help(name):
    for parameter in cli.commands[name].params:
        assert isinstance(parameter, click.Argument) or parameter.help


GENERAL = "arguments: expected those in its help, got:"
OPS = "expected a folder of kernels/ (simple_add, tiny), got"


@pytest.mark.parametrize(
    ("line", "message", "hint"),
    [
        ("--nope", f"devtool: {GENERAL} No such option", "devtool --help"),
        ("biuld", f"devtool: {GENERAL} No such command 'biuld'", "devtool --help"),
        ("build --cuda maybe", f"devtool build: {GENERAL} Invalid value for '--cuda'", "devtool build --help"),
        ("new-op", f"devtool new-op: {GENERAL} Missing argument 'NAME'", "devtool new-op --help"),
        *(  # options that select benches would do nothing
            (f"bench --load x {more}", f"devtool bench: {GENERAL} --load shows a whole run", "devtool bench --help")
            for more in ("simple_add", "--case small", "--layer raw", "--list")
        ),
        ("build simpel_add", f"build: OP: {OPS} simpel_add", "did you mean simple_add?"),
        ("hlo zzz", f"hlo: OP: {OPS} zzz", "devtool new-op zzz"),
        ("test tiny zzz", f"test: OP: {OPS} zzz", "devtool new-op zzz"),
    ],
)
def test_misuse_exits_with_2(tree, line, message, hint):
    result = tree.run(*line.split())
    assert result.returncode == 2 and result.stdout == ""
    assert result.stderr.startswith(message)
    assert result.stderr.endswith(f"\n\nhint: {hint}\n")


def test_without_arguments_it_shows_its_help(tree):
    result = tree.run()
    assert result.returncode == 2 and result.stderr.startswith("Usage: devtool")


def test_version(tree):
    assert tree.run("--version").stdout.startswith("pyxla 0.")


def test_outside_a_checkout(tmp_path):
    """An installed devtool finds the repository that contains the working directory, or says that there is none."""
    (tmp_path / "site").mkdir()
    subprocess.run(["cp", "-r", ROOT / "devtool", tmp_path / "site"], check=True)
    (tmp_path / "away").mkdir()
    command = [sys.executable, "-P", "-m", "devtool", "build", "zzz"]
    env = {**os.environ, "PYTHONPATH": str(tmp_path / "site")}
    result = subprocess.run(command, cwd=tmp_path / "away", env=env, capture_output=True, text=True)
    assert result.returncode == 1
    assert result.stderr.startswith("devtool: repository: expected kernels/ and a pyproject.toml that declares them")
    inside = subprocess.run(command, cwd=ROOT / "kernels", env=env, capture_output=True, text=True)
    assert inside.stderr.startswith("build: OP: expected a folder of kernels/ (")


def test_reader_that_stops_early(tree):
    """`devtool ... | head -1` must not end in a traceback."""
    script = " ".join(f"'{word}'" for word in tree.command("new-op", "some_op", "--dry-run")) + " | head -1"
    result = subprocess.run(
        ["bash", "-c", script], cwd=tree.root, env=tree.environment(), capture_output=True, text=True
    )
    assert result.stdout == "==> kernels/some_op/__init__.py <==\n"
    assert result.stderr == ""


@pytest.mark.parametrize(
    ("arguments", "packages"),
    [
        (["--help"], set()),
        (["new-op", "some_op", "--dry-run"], {"jinja2", "markupsafe", "lark", "regex", "interegular", "atomicwrites"}),
        (["build", "tiny"], set()),
        (["list"], {"rich"}),
    ],
    ids=["help", "new-op", "build-nothing-to-do", "list"],
)
def test_short_commands_import_little(tree, arguments, packages):
    """Few imports make them fast; benchmarks/bench_devtool.py measures the time.

    This test has no limit of processor time, because a busy machine would exceed it.
    """
    result = tree.run(*arguments, PYTHONPROFILEIMPORTTIME="1")
    assert result.returncode == 0, result.stderr
    lines = [line for line in result.stderr.splitlines() if line.startswith("import time:")]
    imported = {line.rpartition("|")[2].strip().partition(".")[0] for line in lines}
    ours = {"devtool", "pyxla", "pyxla_kernels", "pyxla_torch_backend"}
    assert "click" in imported
    assert imported & packages_distributions().keys() <= ours | {"click", "_distutils_hack"} | packages


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("devtool comp", {"plain,completion"}),
        ("devtool build --cl", {"plain,--clean"}),
        ("devtool test rms", {"plain,rms_norm", "plain,rms_norm_triton"}),
    ],
)
def test_a_shell_completes_commands_options_and_ops(words, expected):
    variables = {"_DEVTOOL_COMPLETE": "bash_complete", "COMP_WORDS": words, "COMP_CWORD": str(words.count(" "))}
    done = subprocess.run([sys.executable, "-m", "devtool"], env=os.environ | variables, capture_output=True, text=True)
    assert {*done.stdout.split()} == expected, done.stderr


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_is_code_of_the_shell(shell):
    """bash runs it; the others may not be here."""
    code = CliRunner().invoke(cli, ["completion", shell]).stdout
    assert f"_DEVTOOL_COMPLETE={shell}_complete" in code
    if shell == "bash":
        done = subprocess.run(
            ["bash", "-c", f"{code}\ncomplete -p devtool"], capture_output=True, text=True, check=True
        )
        assert "_devtool_completion" in done.stdout
