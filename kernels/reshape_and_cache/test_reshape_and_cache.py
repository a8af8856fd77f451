import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from pyxla_kernels._testing.checks_on_xla import is_cuda
from pyxla_kernels.reshape_and_cache.cases import BAD_INPUTS, CASES, arguments
from pyxla_kernels.reshape_and_cache.reshape_and_cache import reshape_and_cache

from pyxla import testing
from pyxla.testing.tolerance import compare

FLOAT8 = torch.float8_e4m3fn


@pytest.mark.parametrize("check", testing.CHECKS, ids=lambda check: check.__name__)
@pytest.mark.parametrize("case", CASES, ids=str)
def test_op(check, case):
    check(reshape_and_cache, case)


@pytest.mark.parametrize("bad", BAD_INPUTS, ids=str)
def test_bad_input(bad):
    testing.check_bad_input(reshape_and_cache, bad)


def on_xla(arguments: dict) -> torch.Tensor:
    """The cache after the op ran on XLA tensors."""
    import torch_xla

    moved = {n: v.to(torch_xla.device()) if isinstance(v, torch.Tensor) else v for n, v in arguments.items()}
    reshape_and_cache(**moved)
    return moved["kv_cache"].cpu()


def test_token_whose_slot_is_out_of_range_is_left_out_on_cuda():
    if not is_cuda():
        pytest.skip("XLA's CPU raises")
    a = arguments(torch.Generator().manual_seed(0), torch.bfloat16)
    wrong, without = a["slot_mapping"].clone(), a["slot_mapping"].clone()
    wrong[1:3], without[1:3] = torch.tensor([-7, 48]), -1
    assert torch.equal(on_xla(a | {"slot_mapping": wrong}), on_xla(a | {"slot_mapping": without}))


def test_reference_against_a_loop_over_tokens():
    given_arguments = arguments(torch.Generator().manual_seed(0), torch.float64, merged=True)
    want = given_arguments["kv_cache"].clone()
    for token, slot in enumerate(given_arguments["slot_mapping"].tolist()):
        if slot != -1:
            want[0, slot // 8, slot % 8] = given_arguments["key"][token].flatten()
            want[1, slot // 8, slot % 8] = given_arguments["value"][token].flatten()
    reshape_and_cache.reference(**given_arguments)
    assert torch.equal(given_arguments["kv_cache"], want)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_every_float8_and_what_lies_between(dtype):
    """Every float8 number, the ties between neighbours, values on each side of a tie, and values that saturate."""
    numbers = torch.arange(256, dtype=torch.uint8).view(FLOAT8).float()
    numbers = numbers[numbers.isfinite()].sort().values
    ties = (numbers[1:] + numbers[:-1]) / 2
    beyond = torch.tensor([449.0, 464.0, 465.0, 1e4, torch.inf, torch.nan])
    values = torch.cat([numbers, ties, ties * (1 + 2**-8), ties * (1 - 2**-8), beyond, -beyond])
    values = torch.nn.functional.pad(values, (0, -len(values) % 8)).to(dtype)
    key = values.reshape(1, 1, -1)
    cache = torch.zeros(2, 1, 1, 1, len(values)).to(FLOAT8)
    got = on_xla({"key": key, "value": -key, "kv_cache": cache, "slot_mapping": torch.tensor([0])}).float().flatten(1)
    want = values.float().clamp(-448, 448).to(FLOAT8).float()
    torch.testing.assert_close(got, torch.stack([want, -want]), rtol=0, atol=0, equal_nan=True)


@settings(max_examples=30)
@given(data=st.data(), dtype=st.sampled_from([torch.float32, torch.bfloat16, torch.float16]))
def test_any_shape(data, dtype):
    blocks, block_size = data.draw(st.integers(0, 5)), data.draw(st.integers(0, 9))
    is_float8 = data.draw(st.booleans())
    given_arguments = arguments(
        torch.Generator().manual_seed(data.draw(st.integers(0, 9))),
        dtype,
        tokens=data.draw(st.integers(0, blocks * block_size)),
        heads=data.draw(st.integers(0, 4)),
        d=data.draw(st.integers(0, 24)),
        blocks=blocks,
        block_size=block_size,
        cache_dtype=FLOAT8 if is_float8 else None,
        scaled=is_float8 and data.draw(st.booleans()),
        merged=data.draw(st.booleans()),
        slot_dtype=data.draw(st.sampled_from([torch.int32, torch.int64])),
    )
    (want,) = testing.oracle(reshape_and_cache, given_arguments)
    compare("reshape_and_cache", on_xla(given_arguments), want)


def test_steps_of_one_cache_in_one_graph():
    """Each step finds what the previous one wrote."""
    import torch_xla

    generator = torch.Generator().manual_seed(0)
    steps = [arguments(generator, torch.float32) for _ in range(3)]
    cache = steps[0]["kv_cache"]
    moved = cache.to(torch_xla.device())
    for step in steps:
        new = {name: step[name] for name in ("key", "value", "slot_mapping")}
        reshape_and_cache(kv_cache=moved, **{name: tensor.to(torch_xla.device()) for name, tensor in new.items()})
        reshape_and_cache.reference(kv_cache=cache, **new)
    assert torch.equal(moved.cpu(), cache)
