"""The lines with samples, from pages of Nsight Compute 2025.3 about a decode of paged_attention on an H100.

The files of data/ have some two dozen instructions, most of them those with the most samples, and the lines that they
belong to, as ncu wrote them; the folder of the sources has another name.
"""

import csv
from pathlib import Path

import pytest

from devtool import project
from devtool.profile.source import annotated, read_instructions, read_lines

DATA = Path(__file__).parent / "data"
KERNEL = "kernels/paged_attention/decode/kernel.cuh"


@pytest.fixture
def pages(tmp_path, monkeypatch) -> tuple[str, str]:
    """The page with lines and the one without, and a repository that has the files of the kernel and no other."""
    monkeypatch.setattr(project, "root", lambda: tmp_path)
    lined, code = ((DATA / f"source_{name}.csv").read_text() for name in ("cuda_sass", "sass"))
    for line in lined.splitlines():
        if line.startswith('"File Path","/build/pyxla/'):
            path = tmp_path / line.removeprefix('"File Path","/build/pyxla/').rstrip('"')
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text("".join(f"{path.name} {number}\n" for number in range(1, 200)))
    return lined, code


def test_each_instruction_counts_once(pages):
    lines, code = map(lambda read, page: read(page), (read_lines, read_instructions), pages)
    assert sum(len(line.code) for line in lines) == len(code) == 26
    samples = [int(row[2]) for row in csv.reader(pages[1].splitlines()) if row[0].startswith("0x")]
    assert sum(line.samples for line in lines) == sum(samples) > 30000
    assert [line.samples for line in code] == samples
    assert [line.number for line in code] == list(range(1, 27)) and {line.file for line in code} == {""}


def test_hottest_lines(pages):
    first, second = sorted(read_lines(pages[0]), key=lambda line: -line.samples)[:2]
    assert (first.file, first.number, first.samples) == (KERNEL, 74, 17287)
    assert (second.file, second.number, second.samples) == (KERNEL, 115, 12069 + 1159)
    assert [instruction.name for instruction in second.code] == ["PRMT", "BRA"]
    assert second.code[0].executed == 134144 and second.code[0].stalls.most_common(1)[0][0] == "long_sb"


def test_inlined_instruction_counts_at_the_call_in_the_repository(pages):
    """SHFL is at two lines of a header of CUDA and at its call; IMAD at a function of one line and at its call."""
    places = {(line.file, line.number): [i.name for i in line.code] for line in read_lines(pages[0])}
    assert places["kernels/paged_attention/decode/query.cuh", 72] == ["SHFL.IDX"]
    assert not any(file.startswith("sm_30") for file, _ in places)
    # A call that has three of the instructions in it, and the lines of two of them.
    assert places["kernels/paged_attention/decode/mainloop_mma.cuh", 62] == ["HMMA.16816.F32.BF16"]
    assert places["kernels/paged_attention/decode/mainloop_mma.cuh", 31] == ["UMOV"]


def test_annotated_source_has_the_text_of_the_repository_around_the_lines(pages):
    found = annotated(read_lines(pages[0]))
    assert [(e["file"], e["line"]) for e in found] == sorted({(e["file"], e["line"]) for e in found})
    near = [e for e in found if e["file"] == KERNEL and 113 <= e["line"] <= 115]
    assert [e["text"] for e in near] == ["kernel.cuh 113", "kernel.cuh 114", "kernel.cuh 115"]
    assert [e["share"] > 0 for e in near] == [False, False, True]
    total = sum(line.samples for line in read_lines(pages[0]))
    assert near[2]["share"] == pytest.approx((12069 + 1159) / total)
    assert (near[2]["stall"], near[2]["code"]) == ("long_sb", ["PRMT", "BRA"])
    assert sum(e["share"] for e in found) == pytest.approx(1, abs=0.01)


def test_without_the_files_the_text_is_that_of_the_page(pages, tmp_path, monkeypatch):
    monkeypatch.setattr(project, "root", lambda: tmp_path / "none")
    found = annotated(read_lines(pages[0]))
    hottest = max(found, key=lambda e: e["share"])
    assert hottest["text"].startswith("const int warp = threadIdx.x / kWarpSize") and hottest["share"] > 0.5
    assert all(e["share"] for e in found)


def test_library_without_lines(pages):
    assert read_lines(pages[1]) == []
    found = annotated(read_instructions(pages[1]))
    hottest = max(found, key=lambda e: e["share"])
    assert hottest["text"].startswith("LOP3.LUT R64") and (hottest["file"], hottest["stall"]) == ("", "long_sb")
