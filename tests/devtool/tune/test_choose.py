"""Which values a class of shapes gets from given times."""

import random

import pytest

from devtool.tune.choose import TABLE, choose, library_name
from devtool.tune.space import Space
from devtool.tune.table import remarks

SPACE = Space("op", "cpu", {"tile": (1, 2, 4)}, {"rows": (10,)}, ((1,), (2,), (4,)), {(10,): (1,), (None,): (1,)})
TODAY = {(10,): (1,), (None,): (2,)}


def case(name: str, rows: int, **times: float) -> dict:
    """A case whose samples are these times, with noise of 0.1 % that all share but for a tenth of it."""
    numbers = random.Random(name)
    shared = [1 + numbers.gauss(0, 0.001) for _ in range(40)]
    samples = {n: [time * s * (1 + numbers.gauss(0, 0.0001)) for s in shared] for n, time in times.items()}
    return {
        "case": name,
        "key": {"rows": rows},
        "seconds": {TABLE if name == TABLE else f"tile-{name[1:]}": values for name, values in samples.items()},
        "refused": {},
    }


def chosen(*cases: dict, noise: float = 0.02) -> dict:
    return {choice.shape: choice.values for choice in choose(SPACE, TODAY, cases, noise)}


def test_names_of_libraries():
    assert [library_name(SPACE, values) for values in SPACE.variants] == ["tile-1", "tile-2", "tile-4"]


def test_each_class_has_its_own_fastest():
    small = case("small", 10, table=1.0, t1=1.0, t2=0.9, t4=0.95)
    large = case("large", 11, table=9.0, t1=9.5, t2=9.0, t4=8.0)
    assert chosen(small, large) == {(10,): (2,), (None,): (4,)}
    assert chosen(small) == {(10,): (2,)}


def test_a_gain_within_the_noise_changes_nothing():
    small = case("small", 10, table=1.0, t1=1.0, t2=0.99, t4=1.1)
    assert chosen(small) == {(10,): (1,)}
    assert chosen(small, noise=0.001) == {(10,): (2,)}


def test_a_bench_that_gets_slower_decides():
    """On average the variant is 20 % faster, but one bench of the class would take longer than today."""
    first = case("first", 1, table=1.0, t1=1.0, t2=0.6, t4=0.9)
    second = case("second", 2, table=1.0, t1=1.0, t2=1.05, t4=0.9)
    assert chosen(first) == {(10,): (2,)}
    assert chosen(first, second) == {(10,): (4,)}
    (choice,) = choose(SPACE, TODAY, [first, second], 0.02)
    assert [(c.values, c.is_slower) for c in choice.candidates] == [((2,), True), ((4,), False), ((1,), False)]


def test_variant_that_was_refused_in_one_bench_is_none():
    first, second = (case(name, 1, table=1.0, t1=1.0, t2=0.5, t4=0.9) for name in ("first", "second"))
    del second["seconds"]["tile-2"]
    assert chosen(first, second) == {(10,): (4,)}


def test_runner_up_is_against_the_chosen_one():
    (choice,) = choose(SPACE, TODAY, [case("small", 1, table=1.0, t1=1.0, t2=0.5, t4=0.55)], 0.02)
    assert choice.before == (1,) and choice.is_changed and choice.runner_up.values == (4,)
    assert choice.runner_up.ratio == pytest.approx(1.1, rel=1e-3)
    assert choice.runner_up.low < 1.1 < choice.runner_up.high
    assert choice.seconds == pytest.approx(0.5, rel=1e-2)


def test_few_rounds_decide_nothing():
    small = case("small", 1, table=1.0, t1=1.0, t2=0.1, t4=1.0)
    small["seconds"] = {name: samples[:3] for name, samples in small["seconds"].items()}
    assert chosen(small) == {(10,): (1,)}


def test_kernel_that_passes_another_key_is_remarked():
    """The table's library is slower than a build with the same values: it chose those of another class."""
    cases = [case("small", 10, table=1.5, t1=1.0, t2=1.2, t4=1.3)]
    (line,) = remarks(SPACE, choose(SPACE, TODAY, cases, 0.02), cases, 0.02)
    assert line.startswith("tune: rows <= 10: the table takes 1.50 (1.50 to 1.50) times as long as a build")
    cases = [case("small", 10, table=1.0, t1=1.0, t2=1.2, t4=1.3)]
    assert remarks(SPACE, choose(SPACE, TODAY, cases, 0.02), cases, 0.02) == []
