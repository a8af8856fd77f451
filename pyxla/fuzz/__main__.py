"""The process that calls an op: `python -m pyxla.fuzz JOB`, a JSON file with the fields of Job.

It writes what it has done to the job's folder: `state` after each round of inputs, and `found` if one is wrong.
"""

from __future__ import annotations

import itertools
import json
import random
import signal
import sys
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

# Inputs of one round; a crash is looked for again in its round alone.
ROUND = 500
# An input that takes longer is as wrong as a crash.
INPUT_S = 60


@dataclass(frozen=True)
class Job:
    """What to do.

    Attributes:
        op: name of the op.
        platform: "Host" or "CUDA".
        seed: of all choices.
        first: the first round.
        rounds: how many; None: until calls or seconds are over.
        calls: how many inputs at most; None: no limit.
        seconds: for how long at most; None: no limit.
        isolated: whether each input has a process of its own, which may crash.
        folder: for `state` and `found`.
        kept: the folder in which hypothesis keeps inputs that were wrong.
    """

    op: str
    platform: str
    seed: int
    first: int
    rounds: int | None
    calls: int | None
    seconds: float | None
    isolated: bool
    folder: str
    kept: str


def run(job: Job) -> None:
    """Does a job."""
    import hypothesis
    from hypothesis.database import DirectoryBasedExampleDatabase
    from hypothesis.errors import Flaky, NoSuchExample

    from pyxla.fuzz.check import check_input, limit_threads
    from pyxla.fuzz.inputs import inputs_of
    from pyxla.fuzz.isolated import check_isolated
    from pyxla.fuzz.variation import code_of
    from pyxla.torch_ops.custom_op import find_op

    limit_threads()
    op, counts, wrong = find_op(job.op), Counter(), {}
    strategy, check = inputs_of(op), check_isolated if job.isolated else check_input

    def is_wrong(drawn) -> bool:
        signal.alarm(INPUT_S)
        outcome = check(op, drawn, job.platform)
        signal.alarm(0)
        counts[outcome.kind] += 1
        if outcome.problem:
            # Only inputs that are wrong in the same way count, so that hypothesis shrinks one mistake.
            wrong.setdefault("kind", outcome.kind)
            if outcome.kind == wrong["kind"]:
                wrong.update(problem=outcome.problem)
                return True
        return False

    begin = time.monotonic()
    for number in itertools.count(job.first) if job.rounds is None else range(job.first, job.first + job.rounds):
        _write(job, "state", round=number, counts=counts, seconds=time.monotonic() - begin)
        done = counts.total()
        if (job.calls is not None and done >= job.calls) or (job.seconds and time.monotonic() - begin >= job.seconds):
            break
        settings = hypothesis.settings(
            max_examples=min(ROUND, (job.calls or done + ROUND) - done),
            deadline=None,
            database=DirectoryBasedExampleDatabase(job.kept),
            suppress_health_check=list(hypothesis.HealthCheck),
        )
        choices = random.Random(f"{job.seed} {number}")
        try:
            drawn = hypothesis.find(
                strategy, is_wrong, settings=settings, random=choices, database_key=op.qualified_name.encode()
            )
        except NoSuchExample:
            continue
        except Flaky:
            _write(job, "found", kind="not the same each time", problem=wrong.get("problem", ""), code="")
            break
        is_wrong(drawn)
        arguments = drawn.arguments()
        why = f"found by devtool fuzz: {wrong['kind']}"
        _write(job, "found", **wrong, code=code_of(f"fuzz-{number}", why, drawn.case, arguments))
        break
    _write(job, "state", round=number, counts=counts, seconds=time.monotonic() - begin)


def _write(job: Job, name: str, **fields) -> None:
    """All or nothing, as the process may end at any time."""
    path = Path(job.folder, name)
    path.with_suffix(".new").write_text(json.dumps(fields))
    path.with_suffix(".new").replace(path)


if __name__ == "__main__":
    run(Job(**json.loads(Path(sys.argv[1]).read_text())))
