"""The process that calls an op: `python -m pyxla.fuzz JOB`, a JSON file with the fields of Job.

It writes what it has done to the job's folder, which jobs that run at the same time share: `state-<first round>` every
two seconds and after each round of inputs, and `found` if one is wrong. A file `over` in it ends all of them.
"""

from __future__ import annotations

import itertools
import json
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
# How often a process says how far it is, for who interrupts it.
STATE_S = 2.0


@dataclass(frozen=True)
class Job:
    """What to do.

    Attributes:
        op: name of the op.
        platform: "Host" or "CUDA".
        seed: of all choices.
        first: the first round.
        step: from one round to the next.
        rounds: how many; None: until calls or seconds are over.
        calls: how many inputs at most; None: no limit.
        seconds: for how long at most; None: no limit.
        isolated: whether each input has a process of its own, which may crash.
        folder: for `state-<first>`, `found` and `over`.
        kept: the folder in which hypothesis keeps inputs that were wrong.
    """

    op: str
    platform: str
    seed: int
    first: int
    step: int
    rounds: int | None
    calls: int | None
    seconds: float | None
    isolated: bool
    folder: str
    kept: str


def run(job: Job) -> None:
    """Does a job."""
    from hypothesis.errors import Flaky

    from pyxla.fuzz.check import REFUSED, check_input, limit_threads
    from pyxla.fuzz.inputs import SEEDS, Input, inputs_of
    from pyxla.fuzz.isolated import check_isolated
    from pyxla.fuzz.search import smallest
    from pyxla.fuzz.variation import code_of
    from pyxla.torch_ops.custom_op import find_op

    limit_threads()
    op, counts, wrong, wrong_at = find_op(job.op), Counter(), {}, None
    strategy, check = inputs_of(op), check_isolated if job.isolated else check_input
    begin = said = time.monotonic()

    def say_state(number: int) -> None:
        nonlocal said
        said = time.monotonic()
        _write(job, f"state-{job.first}", round=number, counts=counts, seconds=said - begin)

    def is_over() -> bool:
        # Also within a round, which takes minutes under memcheck.
        calls_left = job.calls is None or counts.total() < job.calls
        seconds_left = job.seconds is None or time.monotonic() - begin < job.seconds
        return not (calls_left and seconds_left) or Path(job.folder, "over").exists()

    def first_wrong(drawn: Input) -> Input | None:
        """The first of a drawn input's seeds that is wrong; while hypothesis shrinks, only the seed found is tried."""
        nonlocal wrong_at
        for more in [wrong_at] if wrong_at is not None else range(SEEDS):
            if not wrong and is_over():
                break
            # An isolated input's own process ends itself.
            signal.alarm(0 if job.isolated else INPUT_S)
            one = drawn.with_values(more)
            outcome = check(op, one, job.platform)
            signal.alarm(0)
            counts[outcome.kind] += 1
            if time.monotonic() - said > STATE_S:
                say_state(number)
            # Only inputs that are wrong in the same way count, so that hypothesis shrinks one mistake.
            if outcome.problem and outcome.kind == wrong.setdefault("kind", outcome.kind):
                wrong.update(problem=outcome.problem)
                Path(job.folder, "over").touch()
                wrong_at = more
                return one
            if outcome.kind == REFUSED:  # whatever the values
                break
        return None

    for number in itertools.islice(itertools.count(job.first, job.step), job.rounds):
        say_state(number)
        if is_over():
            break
        examples = min(ROUND, job.calls - counts.total()) if job.calls else ROUND
        kept = Path(job.kept, op.qualified_name.replace("::", "."))
        try:
            drawn = smallest(
                strategy, lambda drawn: first_wrong(drawn) is not None, examples, f"{job.seed} {number}", kept
            )
        except Flaky:
            _write(job, "found", kind="not the same each time", problem=wrong.get("problem", ""), code="")
            break
        if drawn is None:
            continue
        found, why = first_wrong(drawn) or drawn, f"found by devtool fuzz: {wrong['kind']}"
        _write(job, "found", **wrong, code=code_of(f"fuzz-{number}", why, found.case, found.arguments()))
        break
    say_state(number)


def _write(job: Job, name: str, **fields) -> None:
    """All or nothing, as the process may end at any time."""
    path = Path(job.folder, name)
    path.with_suffix(".new").write_text(json.dumps(fields))
    path.with_suffix(".new").replace(path)


if __name__ == "__main__":
    run(Job(**json.loads(Path(sys.argv[1]).read_text())))
