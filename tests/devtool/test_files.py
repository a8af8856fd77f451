"""devtool.files: where and how a file is written, and that commands check this before they start their work."""

import os
import stat
import threading

import pytest
from click.testing import CliRunner

from devtool.cli import cli
from devtool.errors import DevtoolError
from devtool.files import require_writable, write_atomic


@pytest.mark.parametrize("existing", [None, "before"])
def test_file_is_replaced_as_a_whole(tmp_path, existing):
    path = tmp_path / "file"
    if existing:
        path.write_text(existing)
    write_atomic(path, "after")
    assert path.read_text() == "after" and list(tmp_path.iterdir()) == [path]


def test_link_stays_a_link(tmp_path):
    (tmp_path / "there").mkdir()
    target, link = tmp_path / "there/file", tmp_path / "link"
    link.symlink_to(target)
    for text in ("first", "second"):
        write_atomic(link, text)
        assert link.is_symlink() and target.read_text() == text


def test_pipe_stays_a_pipe(tmp_path):
    """A new file must not replace the path itself: as root that could be /dev/stdout or /dev/null."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    said = []
    reader = threading.Thread(target=lambda: said.append(pipe.read_text()))
    reader.start()
    require_writable("report: --output", pipe)
    write_atomic(pipe, "page")
    reader.join(timeout=20)
    assert said == ["page"] and stat.S_ISFIFO(pipe.stat().st_mode)


@pytest.mark.parametrize(("name", "expected"), [("none/run", "in a folder that exists"), ("", "that can be written")])
def test_place_where_no_file_can_be(tmp_path, name, expected):
    with pytest.raises(DevtoolError, match=f"^bench: --json: expected a file {expected}, got ") as caught:
        require_writable("bench: --json", tmp_path / name)
    assert caught.value.exit_code == 2


@pytest.mark.parametrize(
    ("where", "arguments"),
    [
        ("bench: --json", ["bench", "simple_add", "--json", "FILE"]),
        ("bench: --plot", ["bench", "simple_add", "--plot", "FILE.png"]),
        ("hlo: --graph", ["hlo", "script.py", "--graph", "FILE"]),
        ("trace: --json", ["trace", "--json", "FILE", "script.py"]),
        ("report: --output", ["report", "--output", "FILE"]),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_commands_ask_before_they_work(tmp_path, monkeypatch, where, arguments):
    """Otherwise bench would measure for minutes, fail to write the file, and show no table."""

    def work(*arguments, **options):
        raise AssertionError("works before it knows that there is a place for the result")

    works = ("bench.session.measure", "hlo.lowered.inspect_script", "trace.script.run_through", "report.page._probe")
    for name in works:
        monkeypatch.setattr(f"devtool.{name}", work)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "script.py").touch()
    file = f"{tmp_path}/none/file"
    result = CliRunner().invoke(cli, [a.replace("FILE", file) for a in arguments], standalone_mode=False)
    assert isinstance(result.exception, DevtoolError)
    assert result.exception.message.startswith(f"{where}: expected a file in a folder that exists, got {file}")
