"""A process that has imported torch and pytest: `python -m devtool.testing.warm FD`. It forks for each run of tests.

Each line of stdin is the JSON of pytest's arguments. FD gets `ready`, and for each run `began PID` and `ended STATUS`.
"""

from __future__ import annotations

import json
import os
import signal
import sys


def main(answers: int) -> None:
    """Runs until stdin ends."""
    import pytest
    import torch._dynamo  # noqa: F401

    # Of a Ctrl-C on the terminal the run under way hears, and the process that reads the answers.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _say(answers, "ready")
    for line in sys.stdin:
        child = os.fork()
        if not child:
            signal.signal(signal.SIGINT, signal.default_int_handler)
            status = pytest.main(json.loads(line))
            sys.stdout.flush()
            # Not sys.exit: the parent's own clean-up is not the child's.
            os._exit(int(status))
        _say(answers, f"began {child}")
        _say(answers, f"ended {os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])}")


def _say(answers: int, text: str) -> None:
    os.write(answers, f"{text}\n".encode())


if __name__ == "__main__":
    main(int(sys.argv[1]))
