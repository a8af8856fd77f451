"""tuning.h chooses as tuning.py counts, in the kernels' C++; and those of this checkout are the tables' own."""

import itertools
import subprocess

import pytest

from devtool import project
from devtool.building.tools import compiler
from devtool.tune.header import flags, header_text
from devtool.tune.record import is_current, read_table
from devtool.tune.space import Space, read_space

CLASSES = {"rows": (4, 16), "width": (8,)}
SHAPES = list(itertools.product((4, 16, None), (8, None)))
# Neighbours with equal values, in both keys.
VALUES = ((1, 128), (1, 128), (2, 128), (2, 256), (1, 128), (4, 512))
TABLE = dict(zip(SHAPES, VALUES, strict=True))
SPACE = Space("tiny", "cpu", {"stages": (1, 2, 4), "cta_threads": (128, 256, 512)}, CLASSES, tuple({*VALUES}), TABLE)
KEYS = list(itertools.product((0, 3, 4, 5, 16, 17, 1 << 40), (0, 8, 9)))
PROGRAM = """
#include <cstdio>
#include <initializer_list>
#include "tuning.h"
int main() {
  for (long rows : {%s}) {
    for (long width : {%s}) {
      tiny::Tuning::Choose(rows, width, [](auto tuned) {
        std::printf("%%d %%d\\n", decltype(tuned)::kStages, decltype(tuned)::kCtaThreads);
      });
    }
  }
}
"""


def compiled(folder, options: str = "") -> list[tuple[int, ...]]:
    """What the header chooses for each of KEYS, in a program built with these options."""
    (folder / "tuning.h").write_text(header_text(SPACE, TABLE))
    numbers = (", ".join(f"{n}L" for n in dict.fromkeys(key[i] for key in KEYS)) for i in range(2))
    (folder / "main.cc").write_text(PROGRAM % tuple(numbers))
    command = [compiler(), "-std=c++20", "-Wall", "-Wextra", "-Werror", *options.split(), "main.cc", "-o", "main"]
    subprocess.run(command, cwd=folder, check=True)
    lines = subprocess.run(["./main"], cwd=folder, check=True, capture_output=True, text=True).stdout.splitlines()
    return [tuple(map(int, line.split())) for line in lines]


def test_header_chooses_as_tuning_py_counts(tmp_path):
    expected = [TABLE[SPACE.class_of({"rows": rows, "width": width})] for rows, width in KEYS]
    assert len({*expected}) == 4
    assert compiled(tmp_path) == expected


def test_options_of_a_variant_give_all_shapes_its_values(tmp_path):
    assert flags(SPACE, (2, 256)) == "-DPYXLA_TUNE_STAGES=2 -DPYXLA_TUNE_CTA_THREADS=256"
    assert compiled(tmp_path, flags(SPACE, (2, 256))) == [(2, 256)] * len(KEYS)


def test_classes_in_words():
    assert [SPACE.class_text(shape) for shape in SHAPES[:3]] == [
        "rows <= 4, width <= 8",
        "rows <= 4, width > 8",
        "4 < rows <= 16, width <= 8",
    ]


def test_space_without_classes_has_one():
    space = Space("tiny", "cpu", {"stages": (1, 2)}, {}, ((1,), (2,)), {(): (2,)})
    assert space.class_of({}) == () and space.class_text(()) == "any shape"
    assert "Choose(const Body& body) {" in header_text(space, {(): (2,)})


TUNED = sorted(path.parent.name for path in project.kernels().glob("[a-z]*/tuning.py"))


def test_ops_are_found():
    assert len(TUNED) >= 2


@pytest.mark.parametrize("op", TUNED)
def test_header_of_an_op_is_that_of_its_record(op):
    space = read_space(op)
    assert len(space.variants) <= 24
    assert is_current(space, read_table(space)), f"devtool tune {op}"


@pytest.mark.parametrize("op", TUNED)
def test_every_bench_of_an_op_has_a_class(op):
    """key() takes the arguments of the benches; the sizes come from them, and so does the class."""
    import importlib

    space = read_space(op)
    key = importlib.import_module(project.module(op, "tuning")).key
    benches = importlib.import_module(project.module(op, "cases")).BENCHES
    small = [bench for bench in benches if "cpu" in bench.devices]
    assert small and all(space.class_of(key(**bench.arguments())) in space.start for bench in small)
