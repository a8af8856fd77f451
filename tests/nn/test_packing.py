"""pack and unpack: small tensors go to the device in one copy."""

import pytest
import torch
import torch_xla
import torch_xla.debug.metrics as metrics
from hypothesis import given
from hypothesis import strategies as st

from examples.llama.config import CONFIGS
from examples.llama.generate import stream
from examples.llama.runner import ModelRunner
from examples.llama.weights import load, random_weights
from pyxla import ArgumentError
from pyxla.nn import in_mode, pack, unpack

# Rank 0 has one element; a dimension of 0 has none.
SHAPES = st.lists(st.lists(st.integers(0, 4), max_size=3).map(tuple), min_size=1, max_size=6)


def numbered(shapes):
    return [torch.arange(torch.Size(s).numel(), dtype=torch.int32).view(s) + 100 * i for i, s in enumerate(shapes)]


@given(shapes=SHAPES)
def test_what_was_packed_comes_back(shapes):
    tensors = numbered(shapes)
    got = unpack(pack(tensors, "cpu"), shapes)
    assert all(torch.equal(a, b) for a, b in zip(got, tensors, strict=True))


@pytest.mark.parametrize("mode", ["direct", "compile"])
def test_on_the_device(mode):
    shapes = [(3,), (2, 4), (1,)]
    tensors = numbered(shapes)

    def run(packed):
        return [part + 1 for part in unpack(packed, shapes)]

    got = in_mode(run, mode)(pack(tensors, torch_xla.device()))
    assert all(torch.equal(a.cpu(), b + 1) for a, b in zip(got, tensors, strict=True))


@pytest.mark.parametrize("mode", ["direct", "compile"])
def test_a_step_of_the_decoder_copies_once(mode):
    model = load(CONFIGS["tiny"], random_weights(CONFIGS["tiny"], 0, torch.float32), torch.float32, torch_xla.device())
    steps = stream(ModelRunner(model, max_seqs=2, max_length=32, mode=mode), [[1, 2, 3], [4, 5]], 8)
    copies = []
    for _ in range(5):
        before = transfers()
        next(steps)
        copies.append(transfers() - before)
    assert copies[1:] == [1] * 4  # the first one starts two steps


def transfers():
    return (metrics.metric_data("TransferToDeviceTime") or (0,))[0]


@pytest.mark.parametrize(
    ("tensors", "device", "message"),
    [
        ([torch.zeros(2)], "cpu", "pack: tensors: expected int32, got float32"),
        ([torch.zeros(2, dtype=torch.int32, device="meta")], "cpu", "pack: tensors: expected tensors on cpu, got meta"),
        ([], "cpu", "pack: tensors: expected at least one, got none"),
    ],
)
def test_pack_refuses(tensors, device, message):
    with pytest.raises(ArgumentError, match=message):
        pack(tensors, device)


@pytest.mark.parametrize("shapes", [[(3,), (2,)], [(3,), (2, 2)]])
def test_unpack_refuses(shapes):
    packed = torch.zeros(6, dtype=torch.int32)
    elements = sum(torch.Size(shape).numel() for shape in shapes)
    with pytest.raises(ArgumentError, match=f"unpack: shapes: expected shapes of 6 elements, got {elements}"):
        unpack(packed, shapes)
