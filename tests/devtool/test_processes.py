"""Processes that devtool starts end with it, including those that a program in between does not signal."""

import sys
import time
from pathlib import Path

import pytest

from devtool.processes import event_in, run_lines

# Like ninja with a command that started during Ctrl-C: it waits for a command that missed the signal.
WAITS = """import signal, subprocess, sys
signal.signal(signal.SIGINT, lambda *_: None)
command = subprocess.Popen([sys.executable, "-c", sys.argv[1]], process_group=0, stdout=subprocess.PIPE, text=True)
command.stdout.readline()
print(command.pid, flush=True)
command.wait()
"""
HEARS = "import time; print('started', flush=True); time.sleep(1000)"
IS_DEAF = f"import signal; signal.signal(signal.SIGINT, signal.SIG_IGN); {HEARS}"


def runs(process: int) -> bool:
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@pytest.mark.slow
@pytest.mark.parametrize(("command", "seconds"), [(HEARS, (0, 8)), (IS_DEAF, (10, 60))], ids=["told again", "killed"])
def test_command_that_missed_the_interrupt(command, seconds):
    """A second signal ends it and its waiting parent; a process that ignores signals is killed after ten seconds."""
    started = []

    def interrupt(line: str) -> None:
        started.append(int(line))
        raise KeyboardInterrupt

    begin = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        run_lines([sys.executable, "-c", WAITS, command], interrupt)
    least, most = seconds
    assert least <= time.monotonic() - begin <= most
    while runs(started[0]):
        assert time.monotonic() - begin < most + 10
        time.sleep(0.02)


@pytest.mark.parametrize("line", ["debug: imported", "1", "[]", ""])
def test_what_an_op_prints_is_no_event(line, capsys):
    assert event_in(line) == {}
    assert capsys.readouterr().err == f"{line}\n"


def test_event_in_a_line(capsys):
    assert event_in('{"tell": "round 1"}') == {"tell": "round 1"}
    assert capsys.readouterr().err == ""
