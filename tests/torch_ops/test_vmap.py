"""torch.func.vmap over ops: the same numbers as a loop over the batch, on every device and in place."""

import warnings

import pytest
import torch
import torch_xla

import pyxla
from pyxla import ArgumentError

OPS = torch.ops.xla_gpu
DEVICES = ["cpu", torch_xla.device()]
on_each_device = pytest.mark.parametrize("device", DEVICES, ids=["cpu", "xla"])


@pytest.fixture(autouse=True)
def no_warning():
    """torch warns once per call and op where it takes its own loop."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        torch._C._functorch._set_vmap_fallback_enabled(False)
        yield
        torch._C._functorch._set_vmap_fallback_enabled(True)


def numbers(*shape: int, device) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape))).to(device)


def equal(got: torch.Tensor, want: torch.Tensor) -> None:
    assert torch.equal(got.cpu(), want.cpu())


RMS_NORM = [OPS.rms_norm, OPS.rms_norm.default, OPS.rms_norm.triton, pyxla.find_op("rms_norm")]


@on_each_device
@pytest.mark.parametrize("how", RMS_NORM, ids=["op", "default", "triton", "object"])
def test_one_result(device, how):
    x, weight = numbers(4, 3, 16, device=device), numbers(16, device=device)
    want = OPS.rms_norm(x, weight, 1e-3)
    equal(torch.vmap(lambda a: how(a, weight, eps=1e-3))(x), want)
    equal(torch.vmap(lambda a: how(a, weight, 1e-3), in_dims=1, out_dims=1)(x), want)
    equal(torch.vmap(torch.vmap(lambda a: how(a, None)))(x), OPS.rms_norm(x, None))
    weights = numbers(4, 16, device=device)
    want = torch.stack([OPS.rms_norm(a, w) for a, w in zip(x, weights, strict=True)])
    equal(torch.vmap(how)(x, weights), want)
    # An operand of the inner batch alone, and one of the outer batch alone.
    equal(torch.vmap(torch.vmap(how, in_dims=(0, None)))(x, weights), want)


@on_each_device
def test_two_results(device):
    positions, table = torch.arange(5, device=device), numbers(10, 16, device=device)
    query, key = numbers(3, 5, 4, 16, device=device), numbers(3, 5, 2, 16, device=device)
    got = torch.vmap(lambda q, k: OPS.rotary_embedding(positions, q, k, table))(query, key)
    for i in range(3):
        for result, want in zip(got, OPS.rotary_embedding(positions, query[i], key[i], table), strict=True):
            equal(result[i], want)


@on_each_device
def test_in_place_with_a_result(device):
    x, residual, weight = (numbers(*shape, device=device) for shape in ((3, 4, 16), (3, 4, 16), (16,)))
    own = [residual[i].clone() for i in range(3)]
    wants = [OPS.fused_add_rms_norm(x[i], own[i], weight) for i in range(3)]
    got = torch.vmap(lambda a, b: OPS.fused_add_rms_norm(a, b, weight))(x, residual)
    equal(got, torch.stack(wants))
    equal(residual, torch.stack(own))


@on_each_device
def test_in_place_without_a_result(device):
    positions, table = torch.arange(5, device=device), numbers(10, 16, device=device)
    query, key = numbers(3, 5, 4, 16, device=device), numbers(3, 5, 2, 16, device=device)
    wants = [OPS.rotary_embedding(positions, query[i], key[i], table) for i in range(3)]
    assert (
        torch.vmap(lambda q, k: OPS.rotary_embedding_inplace(positions, q, k, table), out_dims=None)(query, key) is None
    )
    equal(query, torch.stack([want[0] for want in wants]))
    equal(key, torch.stack([want[1] for want in wants]))


@on_each_device
def test_one_tensor_updated_for_each_element(device):
    x, residual = numbers(3, 4, 16, device=device), numbers(4, 16, device=device)
    with pytest.raises(ArgumentError) as caught:
        torch.vmap(lambda a: OPS.fused_add_rms_norm(a, residual, None))(x)
    expected = "a batched tensor under vmap, as it is updated in place for each element, got one for all of them"
    assert str(caught.value).startswith(f"fused_add_rms_norm: residual: expected {expected}\n\nhint: expand residual ")


@on_each_device
def test_batch_without_elements(device):
    x = numbers(0, 4, 16, device=device)
    assert torch.vmap(lambda a: OPS.rms_norm(a, None))(x).shape == (0, 4, 16)
    assert torch.vmap(lambda a: OPS.fused_add_rms_norm(a, a.clone(), None))(x).shape == (0, 4, 16)
    positions, table = torch.arange(5, device=device), numbers(10, 16, device=device)
    query = numbers(0, 5, 4, 16, device=device)
    got = torch.vmap(lambda q: OPS.rotary_embedding(positions, q, q, table))(query)
    assert [result.shape for result in got] == [query.shape, query.shape]
    assert (
        torch.vmap(lambda q: OPS.rotary_embedding_inplace(positions, q, q.clone(), table), out_dims=None)(query) is None
    )


@on_each_device
def test_a_bad_argument_is_the_op_s_error(device):
    with pytest.raises(ArgumentError, match=r"rms_norm: weight: expected shape \(16,\), got \(15,\)"):
        torch.vmap(lambda a: OPS.rms_norm(a, torch.ones(15, device=device)))(numbers(2, 3, 16, device=device))


@on_each_device
def test_backward_through_it(device):
    x, weight = numbers(4, 3, 16, device=device), numbers(16, device=device)
    grads = []
    for function in (torch.vmap(lambda a, w: OPS.rms_norm(a, w), in_dims=(0, None)), OPS.rms_norm):
        inputs = [x.clone().requires_grad_(), weight.clone().requires_grad_()]
        (function(*inputs) ** 2).sum().backward()
        grads.append([tensor.grad.cpu() for tensor in inputs])
    torch.testing.assert_close(*grads)


def test_compiled_it_is_one_call_for_each_element():
    x, weight = numbers(4, 3, 16, device=DEVICES[1]), numbers(16, device=DEVICES[1])
    function = torch.vmap(lambda a: OPS.rms_norm(a, weight))
    assert len(pyxla.inspect(function, x).calls()) == 4
    equal(torch.compile(function, backend="openxla", fullgraph=True)(x), OPS.rms_norm(x, weight))
