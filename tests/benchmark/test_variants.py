"""pyxla.benchmark.variants: libraries of one op in turns, each compared with the reference, equal results once."""

import torch

from pyxla.benchmark.variants import _in_turns, _Once, time_variants
from pyxla.library.find import find_library
from pyxla.torch_ops.custom_op import find_op
from tests.benchmark.small_bench import small

SMALL = small()


def test_every_library_is_timed_in_every_round(device):
    library = find_library("simple_add", "xla_gpu")
    told = []
    op, libraries = find_op("simple_add"), {"one": library, "two": library}
    record = time_variants(op, SMALL, SMALL.arguments(), device, libraries, 3, told.append)
    assert {name: len(seconds) for name, seconds in record["seconds"].items()} == {"one": 3, "two": 3}
    assert all(time > 0 for seconds in record["seconds"].values() for time in seconds)
    assert record["refused"] == {} and record["error"]["one"] == record["error"]["two"] < 1
    assert told == ["one", "two", "round 1 of 3", "round 2 of 3", "round 3 of 3"]


def test_order_of_a_round_gives_each_its_turn():
    orders = ["".join(_in_turns("abc", number)) for number in range(6)]
    assert orders == ["abc", "acb", "cab", "cba", "bca", "bac"]


class Counting:
    def __init__(self):
        self.calls = 0

    def compare(self, outputs):
        self.calls += 1
        assert not outputs[0].isnan().any(), "NaN"
        return 0.5


def test_equal_results_are_compared_once():
    counting = Counting()
    once = _Once(counting)
    result = torch.arange(3.0)
    assert [once.compare([result]), once.compare([result.clone()]), counting.calls] == [0.5, 0.5, 1]
    assert [once.compare([result + 1]), counting.calls] == [0.5, 2]
    assert [once.compare([result + 1]), once.compare([result]), counting.calls] == [0.5, 0.5, 2]
