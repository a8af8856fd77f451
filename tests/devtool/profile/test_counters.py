"""The figures of a kernel that ran, from a page of Nsight Compute 2025.3 about a decode of paged_attention on an H100.

data/raw.csv has the columns that are read, and a few others, as ncu wrote them.
"""

from pathlib import Path

import pytest

from devtool.errors import DevtoolError
from devtool.profile.advice import advice_of
from devtool.profile.counters import Row, kernel_of, number_of, read_raw
from devtool.profile.figures import BY_KEY, FIGURES, LIMITS, STALLS
from devtool.profile.occupancy import occupancy_of

DATA = Path(__file__).parent / "data"


@pytest.fixture(scope="module")
def row() -> Row:
    (found,) = read_raw((DATA / "raw.csv").read_text())
    return found


def test_figures_are_in_base_units(row):
    figures = kernel_of(row)["figures"]
    assert figures.keys() == {figure.key for figure in FIGURES if figure.metric}
    assert figures["seconds"] == pytest.approx(361.408e-6)
    assert figures["dram_read"] == pytest.approx(1.074546e9) and figures["dram_written"] == pytest.approx(2.73792e6)
    assert figures["dram_rate"] == pytest.approx(2.980798e12) and figures["dram_share"] == pytest.approx(0.88927634)
    # DRAM bytes and their rate are counted in different passes.
    assert figures["dram_read"] + figures["dram_written"] == pytest.approx(
        figures["dram_rate"] * figures["seconds"], rel=1e-3
    )
    assert (figures["shared_static"], figures["shared_dynamic"]) == (2944, 96 * 1024)
    assert (figures["registers"], figures["threads"], figures["ctas"], figures["spills"]) == (146, 192, 264, 0)
    assert figures["wavefronts"] == 17119656 and figures["conflicts"] == pytest.approx(43008 / 17119656)
    assert figures["sectors"] == 33927872 and figures["excess"] == pytest.approx(98832 / 33927872)


def test_stalls_are_shares_of_the_cycles_without_an_issue(row):
    stalls = kernel_of(row)["stalls"]
    assert list(stalls)[:2] == ["long_sb", "wait"] and sum(stalls.values()) == pytest.approx(1)
    latency, selected = 22.505538, 1.000007  # of an instruction, in cycles
    assert stalls["long_sb"] == pytest.approx(18.125005 / (latency - selected), rel=0.01)
    assert stalls.keys() <= STALLS.keys() - {"selected"}


def test_occupancy_computed_from_the_code_is_that_of_the_counters(row):
    figures = kernel_of(row)["figures"]
    # The machine code for sm_90 has the driver's 1 KiB in its shared memory.
    shared = figures["shared_static"] + figures["shared_dynamic"] + 1024
    found = occupancy_of("sm_90a", int(figures["registers"]), int(shared), int(figures["threads"]))
    assert found.share == figures["theoretical"] == 0.1875
    assert {LIMITS[m]: row.value(m) for m in LIMITS if LIMITS[m] in found.ctas} == found.ctas
    assert list(found.limited_by) == kernel_of(row)["limited_by"] == ["registers", "shared memory"]


@pytest.mark.parametrize(
    ("architecture", "registers", "shared", "threads", "share", "limited_by"),
    [
        ("sm_80", 32, 0, 1024, 1.0, ()),
        ("sm_80", 33, 0, 1024, 0.5, ("registers",)),  # 40 registers are allocated
        ("sm_80", 32, 40 * 1024, 128, 1 / 4, ("shared memory",)),  # 4 CTAs of 41 KiB in 164 KiB
        ("sm_90a", 32, 41 * 1024, 128, 5 / 16, ("shared memory",)),  # 5 in 228 KiB
        ("sm_90", 16, 0, 32, 0.5, ("CTAs of an SM",)),
        ("sm_90", 16, 0, 96 * 32 // 2, 0.75, ("CTA size",)),
        ("sm_90", 255, 0, None, 0.125, ("registers",)),
        ("sm_86", 40, 0, 1536 // 2, 1.0, ()),
    ],
)
def test_occupancy(architecture, registers, shared, threads, share, limited_by):
    found = occupancy_of(architecture, registers, shared, threads)
    assert (found.share, found.limited_by) == (share, limited_by)


def test_occupancy_of_an_unknown_architecture():
    assert occupancy_of("sm_75", 32, 0, 128) is None


@pytest.mark.parametrize(("text", "number"), [("1,234.5", 1234.5), ("no data", None), ("nan", None), ("", None)])
def test_cell(text, number):
    assert number_of(text) == number


def test_page_without_a_kernel():
    head, units, _ = (DATA / "raw.csv").read_text().splitlines()
    for text in ("", f"{head}\n{units}\n", "==WARNING== No kernels were profiled.\n"):
        with pytest.raises(
            DevtoolError, match="profile: ncu: expected a kernel between the marks of the profiler, got"
        ):
            read_raw(text)


def test_counter_that_was_not_taken(row):
    texts = row.texts | {"gpu__time_duration.sum": "n/a", "memory_l1_wavefronts_shared": "0"}
    figures = kernel_of(Row(texts, row.units))["figures"]
    assert "seconds" not in figures and figures["wavefronts"] == 0 and "conflicts" not in figures


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({}, "The DRAM is at 88.9 % of its peak: only fewer bytes make the kernel faster."),
        (
            {"dram_share": 0.5},
            "83.9 % of the stalls wait for global or local memory: load earlier, or keep more loads in",
        ),
        ({"spills": 12000, "local_loads": 6000}, "12.0 k spill loads and stores ran: the registers do not suffice."),
        ({"local_loads": 512}, "512 local loads and stores ran: an array is indexed at run time."),
        ({"conflicts": 0.25}, "25.0 % of the wavefronts of shared memory are bank conflicts: pad or swizzle it."),
        (
            {"excess": 0.5},
            "50.0 % of the sectors of global memory are moved for nothing: let neighbouring threads access",
        ),
        ({"waves": 0.25}, "The grid has 0.25 waves of CTAs: more CTAs would fill the GPU."),
        ({"achieved": 0.1}, "The occupancy is 10.0 % where 18.8 % is possible: CTAs end at different times."),
    ],
)
def test_advice_follows_from_a_counter(row, changes, sentence):
    kernel = kernel_of(row)
    before = advice_of(kernel)
    assert len(before) == 1
    found = advice_of(kernel | {"figures": kernel["figures"] | changes})
    assert any(text.startswith(sentence) for text in found)
    assert len(found) == len(before) + bool(changes.keys() - {"dram_share"})


@pytest.mark.parametrize(
    ("key", "value", "text"),
    [
        ("seconds", 361.408e-6, "361 us"),
        ("executed", 41004960, "41.0 M"),
        ("executed", 9999, "9999"),
        ("executed", 12345, "12.3 k"),
        ("dram_read", 1.074546e9, "1.00 GiB"),
        ("shared_static", 512, "512 B"),
        ("dram_rate", 2.980798e12, "2.98 TB/s"),
        ("achieved", 0.18257, "18.3 %"),
    ],
)
def test_text_of_a_figure(key, value, text):
    assert BY_KEY[key].text(value) == text
