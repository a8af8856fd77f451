"""Saved runs of `devtool bench`: read, shown and plotted."""

import copy
import json
import math
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from devtool.bench import plot, table
from devtool.errors import DevtoolError
from devtool.records import run_file
from devtool.records.run_file import parse_run, read_run, write_run
from tests.bench_run import assert_is_picture, document, run

# Files.


def test_schema_and_layers_are_those_of_pyxla():
    from pyxla.benchmark import run as measuring
    from pyxla.benchmark.xla_step import NAME

    assert run_file.SCHEMA == measuring.SCHEMA
    assert run_file.OURS == ("raw", "raw step", NAME)


def test_what_a_run_means():
    small, large = run().cases
    assert (small.bound, small.floor) == ("copy", pytest.approx(1e-3))
    assert (large.bound, large.floor) == ("matrix", pytest.approx(1e-2))
    assert small.layer("raw").median == pytest.approx(1e-3, rel=0.02)
    assert 0 < small.layer("raw").spread < 0.02
    assert small.layer("flashinfer decode") is None
    assert run().device == "A processor, 2 threads"


def test_file_of_a_run_is_read_as_it_was_written(tmp_path):
    path = tmp_path / "run.json"
    write_run(path, run())
    assert read_run("--load", path).document == document()
    assert [p.name for p in tmp_path.iterdir()] == ["run.json"]


@settings(max_examples=30)
@given(share=st.floats(0, 0.999))
def test_file_that_is_cut_short(share, tmp_path_factory):
    path = tmp_path_factory.mktemp("cut") / "run.json"
    text = json.dumps(document())
    path.write_text(text[: int(share * len(text))])
    with pytest.raises(
        DevtoolError, match="bench: --compare: expected a run that devtool bench --json wrote, got invalid JSON"
    ):
        read_run("--compare", path)


ANY_JSON = st.recursive(
    st.none() | st.booleans() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)


@settings(max_examples=60)
@given(content=ANY_JSON)
def test_file_of_something_else(content, tmp_path_factory):
    path = tmp_path_factory.mktemp("other") / "run.json"
    path.write_text(json.dumps(content))
    with pytest.raises(DevtoolError, match=r"bench: --load: expected a run that devtool bench --json wrote"):
        read_run("--load", path)


@settings(max_examples=100)
@given(data=st.data(), value=ANY_JSON)
def test_file_in_which_a_value_was_changed_is_a_run_or_refused(data, value, tmp_path_factory):
    changed = document()
    place, key = changed, None
    while isinstance(place, dict | list) and place:
        parent, key = place, data.draw(st.sampled_from(sorted(place) if isinstance(place, dict) else range(len(place))))
        place = parent[key]
        if data.draw(st.booleans()):
            break
    parent[key] = value
    path = tmp_path_factory.mktemp("changed") / "run.json"
    path.write_text(json.dumps(changed))
    try:
        found = read_run("--load", path)
    except DevtoolError as error:
        assert error.message.startswith("bench: --load: expected a run that devtool bench --json wrote")
    else:
        list(table.remarks(found))
        assert all(math.isfinite(s) and s > 0 for case in found.cases for la in case.layers for s in la.seconds)


def test_file_of_another_schema(tmp_path):
    path = tmp_path / "run.json"
    path.write_text(json.dumps(document() | {"schema": 2}))
    with pytest.raises(DevtoolError, match=r"\(schema 1\), got another schema \(schema 2\) in"):
        read_run("--load", path)


def test_file_that_is_not_there(tmp_path):
    with pytest.raises(DevtoolError, match="wrote, got No such file or directory: "):
        read_run("--compare", tmp_path / "none.json")


def test_folder_that_is_not_there(tmp_path):
    with pytest.raises(DevtoolError, match=r"bench: a file cannot be read or written \(No such file"):
        write_run(tmp_path / "none/run.json", run())


# Tables and plots.


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(1.234e-6, "1.23 us"), (12.34e-6, "12.3 us"), (5e-8, "0.050 us"), (0.1234, "123 ms"), (1.0, "1.00 s"),
     (0.0099996, "10.0 ms"), (12.34, "12.3 s")],
)  # fmt: skip
def test_durations(seconds, text):
    assert table.duration(seconds) == text


@pytest.mark.parametrize(
    ("per_second", "bound", "text"),
    [(4.237e12, "copy", "4.24 TB/s"), (7.7e14, "matrix", "770 TFLOP/s"), (5e3, "copy", "5000 B/s")],
)
def test_rates(per_second, bound, text):
    assert table.rate(per_second, bound) == text


def test_remarks_say_what_was_left_out():
    busy = document() | {"load": 3.14}
    busy["rates"]["copy"]["measured"] = [2.5e10, 1.2e10]
    text = "\n".join(table.remarks(parse_run(busy)))
    assert "not timed: flashinfer decode (1 of 2 cases): for CUDA only" in text
    assert "a sample of rows was compared with the reference, the others were searched for NaN: 1 of 2 cases" in text
    assert "the machine's speed changed: copy rate 25.0 GB/s and 12.0 GB/s before and after" in text
    assert "the machine was busy: 3.1 running processes per core" in text


@pytest.mark.parametrize("cases", [1, 2, 30])
def test_picture(tmp_path, cases):
    drawn = document()
    drawn["cases"] = [copy.deepcopy(drawn["cases"][n % 2]) | {"case": f"case-{n}"} for n in range(cases)]
    plot.plot_run(parse_run(drawn), tmp_path / "run.png")
    assert_is_picture(tmp_path / "run.png")


def test_picture_of_nothing(tmp_path):
    """Every case was refused, so no layer has times."""
    empty = document()
    empty["cases"] = [case | {"layers": [], "refused": "wrong"} for case in empty["cases"]]
    plot.plot_run(parse_run(empty), tmp_path / "run.png")
    assert_is_picture(tmp_path / "run.png")


def test_picture_that_cannot_be_written(tmp_path):
    with pytest.raises(DevtoolError, match=r"bench: a file cannot be read or written \(No such file"):
        plot.plot_run(run(), tmp_path / "none/run.png")


def test_picture_of_another_format():
    with pytest.raises(
        DevtoolError, match=r"bench: --plot: expected a file that ends in \.png, got run\.svg"
    ) as caught:
        plot.check_plot(Path("run.svg"))
    assert caught.value.exit_code == 2


def test_picture_without_matplotlib(monkeypatch):
    monkeypatch.setattr(plot.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(DevtoolError, match=r"bench: --plot: expected matplotlib, got none\n\nhint: .*pip install"):
        plot.check_plot(Path("run.png"))
