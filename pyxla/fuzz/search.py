"""hypothesis's search for an input that is wrong."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import hypothesis
from hypothesis import HealthCheck, Phase, Verbosity
from hypothesis.database import DirectoryBasedExampleDatabase

Drawn = TypeVar("Drawn")


def smallest(
    strategy: hypothesis.strategies.SearchStrategy[Drawn],
    is_wrong: Callable[[Drawn], bool],
    examples: int,
    seed: str,
    kept: Path,
) -> Drawn | None:
    """The smallest wrong input that hypothesis comes to; None if all are right.

    hypothesis.find would keep nothing: a seed switches off the database, unless the settings come after it.

    Args:
        strategy: of the inputs.
        is_wrong: whether an input is wrong.
        examples: how many inputs to draw at most.
        seed: of all choices.
        kept: the folder of inputs that were wrong before; they are tried first.

    Raises:
        hypothesis.errors.Flaky: an input was wrong once and right another time.
    """
    found = None
    settings = hypothesis.settings(
        max_examples=examples,
        deadline=None,
        database=DirectoryBasedExampleDatabase(kept),
        phases=(Phase.reuse, Phase.generate, Phase.shrink),
        report_multiple_bugs=False,
        suppress_health_check=list(HealthCheck),
        verbosity=Verbosity.quiet,
    )

    @settings
    @hypothesis.seed(seed)
    @hypothesis.given(strategy)
    def search(drawn: Drawn) -> None:
        nonlocal found
        if is_wrong(drawn):
            found = drawn
            raise AssertionError

    try:
        search()
    except AssertionError:
        if found is None:  # of is_wrong
            raise
    return found
