"""Two runs of `devtool bench` side by side: ratios, their intervals, and what is a regression."""

import contextlib
import copy
import json
import math
import random
import re
import statistics

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from devtool.bench import compare
from devtool.bench.compare import compare_runs, shift
from devtool.errors import DevtoolError
from devtool.records.run_file import parse_run
from tests.bench_run import document, run

TIMES = st.lists(st.floats(1e-6, 10), min_size=6, max_size=15)


@settings(max_examples=100)
@given(before=TIMES, now=TIMES, factor=st.floats(0.1, 10))
def test_ratio_and_interval(before, now, factor):
    value, low, high = shift(before, now)
    assert low <= value <= high
    pairs = [b / a for a in before for b in now]
    assert min(pairs) * 0.999 <= value <= max(pairs) * 1.001
    back = shift(now, before)
    assert (value, low, high) == pytest.approx((1 / back[0], 1 / back[2], 1 / back[1]))
    assert shift(before, [factor * t for t in now]) == pytest.approx((factor * value, factor * low, factor * high))
    same = shift(before, before)
    assert same[0] == pytest.approx(1) and same[1] <= 1 <= same[2]


def test_interval_by_hand():
    """Eight by eight: 64 ratios; 32 - 2.576 * sqrt(64 * 17 / 12) = 7.47, so the seventh from each end."""
    before, now = [float(n) for n in range(1, 9)], [float(n) for n in range(11, 19)]
    ratios = sorted(b / a for a in before for b in now)
    assert shift(before, now) == pytest.approx((math.sqrt(ratios[31] * ratios[32]), ratios[6], ratios[-7]))


def test_too_few_samples_say_nothing():
    assert shift([1.0] * 3, [2.0] * 3) == (pytest.approx(2), 0.0, math.inf)


def test_interval_holds_the_ratio_as_often_as_it_says():
    """Times have a long tail; the true ratio is 1.3 in each of 400 comparisons."""
    generator = random.Random(0)
    sample = lambda factor: [factor * (1 + generator.expovariate(5)) for _ in range(20)]  # noqa: E731
    intervals = [shift(sample(1.0), sample(1.3)) for _ in range(400)]
    assert statistics.mean(low <= 1.3 <= high for _, low, high in intervals) > 0.975


def verdicts(before, now, noise=0.05) -> dict[str, str]:
    return {r.layer: r.verdict for r in compare_runs(before, now, noise) if r.case == "rms_norm small"}


def test_same_run_twice():
    assert set(verdicts(run(), run()).values()) == {""}
    compare.require_no_regression(compare_runs(run(), run(), 0.05))


def test_regression_of_ours():
    ratios = compare_runs(run(), run(xla_step=1.2), 0.05)
    assert {r.layer for r in ratios if r.verdict} == {"xla step"}
    with pytest.raises(DevtoolError) as caught:
        compare.require_no_regression(ratios)
    assert re.search(r"got rms_norm small xla step 1\.20 \(1\.1\d to 1\.2\d\), rms_norm large ", caught.value.message)


def test_change_within_the_noise_or_for_the_better():
    assert verdicts(run(), run(raw=1.04))["raw"] == ""
    assert verdicts(run(), run(raw=1.04), noise=0.01)["raw"] == "slower"
    assert verdicts(run(), run(raw=0.8))["raw"] == "faster"
    compare.require_no_regression(compare_runs(run(), run(raw=0.8), 0.05))


def test_peer_may_be_slower():
    ratios = compare_runs(run(), run(torch=1.5), 0.05)
    assert {r.layer for r in ratios if r.verdict == "slower"} == {"torch"}
    compare.require_no_regression(ratios)


def test_slower_machine_is_no_regression():
    """Every layer takes 1.5 times as long, and so does the reference run."""
    everything = dict.fromkeys(("raw", "raw_step", "xla_step", "torch", "torch_compile", "control"), 1.5)
    assert set(verdicts(run(), run(**everything)).values()) == {""}
    assert verdicts(run(), run(**everything | {"raw": 2.0}))["raw"] == "slower"


def test_case_or_layer_that_is_lost():
    less = document()
    del less["cases"][1]
    del less["cases"][0]["layers"][2]
    with pytest.raises(DevtoolError, match="got none of rms_norm small xla step, rms_norm large"):
        compare.check_cases(run(), parse_run(less), selected=False)
    compare.check_cases(run(), parse_run(less), selected=True)


@pytest.mark.parametrize(("ops", "is_lost"), [(None, True), (("gone", "rms_norm"), True), (("rms_norm",), False)])
def test_op_that_is_lost_with_all_its_cases(ops, is_lost):
    """It counts if it was asked for, or everything was."""
    more = document()
    more["cases"].append(copy.deepcopy(more["cases"][0]) | {"op": "gone"})
    with pytest.raises(DevtoolError, match="got none of gone small") if is_lost else contextlib.nullcontext():
        compare.check_cases(parse_run(more), run(), selected=False, ops=ops)


def test_another_library_of_the_run_before_is_no_layer_of_ours():
    """A run with --against is a run to compare with, whatever the next one is timed against."""
    both, slower = document(), document()
    for found, factor in ((both, 1.0), (slower, 2.0)):
        for case in found["cases"]:
            other = copy.deepcopy(case["layers"][0]) | {"name": "HEAD raw"}
            other["seconds"] = [factor * seconds for seconds in other["seconds"]]
            case["layers"].insert(1, other)
            case["against"] = "HEAD"
    compare.check_cases(parse_run(both), run(), selected=False)
    ratios = compare_runs(parse_run(both), parse_run(slower), 0.05)
    compare.require_no_regression(ratios)
    assert {ratio.layer for ratio in ratios} == {ratio.layer for ratio in compare_runs(run(), run(), 0.05)}


def test_other_cases_cannot_be_compared():
    other = document()
    for case in other["cases"]:
        case["op"] = "simple_add"
    with pytest.raises(DevtoolError, match=r"got one with others \(rms_norm small, rms_norm large\)"):
        compare.check_cases(run(), parse_run(other), selected=False)


def test_new_case_is_said_and_not_judged(capsys):
    more = document()
    more["cases"].append(copy.deepcopy(more["cases"][0]) | {"case": "new"})
    now = parse_run(more)
    compare.check_cases(run(), now, selected=False)
    ratios = compare_runs(run(), now, 0.05)
    compare.print_ratios(ratios, run(), now)
    printed = capsys.readouterr().out
    assert "new, not compared: rms_norm new" in printed
    assert re.search(r"rms_norm small +control +\d\d\.\d ms +\d\d\.\d ms +1\.00 +[01]\.\d\d to 1\.\d\d", printed)


def test_regression_is_an_exit_status(tmp_path):
    from click.testing import CliRunner

    from devtool.cli import cli

    before, now = tmp_path / "before.json", tmp_path / "now.json"
    before.write_text(json.dumps(document()))
    now.write_text(json.dumps(document(raw=1.3)))
    result = CliRunner().invoke(cli, ["bench", "--load", str(now), "--compare", str(before)], standalone_mode=False)
    assert isinstance(result.exception, DevtoolError) and result.exception.exit_code == 1
    assert "slower" in result.output and "1.30" in result.output
    good = CliRunner().invoke(cli, ["bench", "--load", str(before), "--compare", str(before)], standalone_mode=False)
    assert (good.exit_code, good.exception) == (0, None)
