import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from pyxla_kernels._testing.checks_on_xla import is_cuda
from pyxla_kernels.rotary_and_cache.cases import BAD_INPUTS, CASES, arguments
from pyxla_kernels.rotary_and_cache.rotary_and_cache import rotary_and_cache

from pyxla import testing
from pyxla.testing.tolerance import compare

FLOAT8 = torch.float8_e4m3fn


@pytest.mark.parametrize("check", testing.CHECKS, ids=lambda check: check.__name__)
@pytest.mark.parametrize("case", CASES, ids=str)
def test_op(check, case):
    check(rotary_and_cache, case)


@pytest.mark.parametrize("bad", BAD_INPUTS, ids=str)
def test_bad_input(bad):
    testing.check_bad_input(rotary_and_cache, bad)


def on_xla(arguments: dict) -> tuple[torch.Tensor, torch.Tensor]:
    """The cache and the queries after the op ran on XLA tensors."""
    import torch_xla

    moved = {n: v.to(torch_xla.device()) if isinstance(v, torch.Tensor) else v for n, v in arguments.items()}
    query = rotary_and_cache(**moved)
    return moved["kv_cache"].cpu(), query.cpu()


def test_wrong_positions_and_slots_on_cuda():
    """A wrong position makes a token's rotated elements NaN; a token with a wrong slot keeps its query and is left out.

    A part of each head is not rotated. Of the 13 tokens 0, 4, 8 and 12 have no slot; 1 and 2 have one.
    """
    if not is_cuda():
        pytest.skip("XLA's CPU raises")
    a = arguments(torch.Generator().manual_seed(0), torch.bfloat16, d=80, rot_dim=32)
    positions, slots, without = a["positions"].clone(), a["slot_mapping"].clone(), a["slot_mapping"].clone()
    positions[1], slots[2], without[2] = 50, 48, -1
    cache, query = on_xla(a | {"positions": positions, "slot_mapping": slots})
    want_cache, want_query = on_xla(a | {"slot_mapping": without})
    want_cache.flatten(1, 2)[0, int(slots[1]), :, :32] = torch.nan
    want_query[1, :, :32] = torch.nan
    torch.testing.assert_close(query, want_query, rtol=0, atol=0, equal_nan=True)
    torch.testing.assert_close(cache, want_cache, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("is_neox", [True, False])
def test_reference_against_a_loop_over_tokens(is_neox):
    """A pair is a complex number, and the rotation its product with exp(i * angle).

    Three query heads and two key heads, so that a wrong border shows. Four of twelve elements are not rotated.
    """
    sizes = {"heads": (3, 2), "d": 12, "rot_dim": 8, "table_dtype": torch.float32, "is_neox": is_neox}
    a = arguments(torch.Generator().manual_seed(0), torch.float64, **sizes)
    want = a["kv_cache"].clone()
    queries = []
    for token, slot in enumerate(a["slot_mapping"].tolist()):
        cos, sin = a["cos_sin_cache"][a["positions"][token]].double().chunk(2)
        rotated = a["qkv"][token, :5].clone()
        real, imaginary = (slice(0, 4), slice(4, 8)) if is_neox else (slice(0, 8, 2), slice(1, 8, 2))
        product = torch.complex(rotated[:, real], rotated[:, imaginary]) * torch.complex(cos, sin)
        rotated[:, real], rotated[:, imaginary] = product.real, product.imag
        queries.append(rotated[:3])
        if slot != -1:
            want[0, slot // 8, slot % 8], want[1, slot // 8, slot % 8] = rotated[3:], a["qkv"][token, 5:]
    query = rotary_and_cache.reference(**a)
    torch.testing.assert_close(query, torch.stack(queries))
    torch.testing.assert_close(a["kv_cache"], want)


@settings(max_examples=30)
@given(data=st.data(), dtype=st.sampled_from([torch.float32, torch.bfloat16, torch.float16]))
def test_any_shape(data, dtype):
    """Heads of up to 24 elements: one, two or three vectors, and sizes that no vector divides."""
    blocks, block_size = data.draw(st.integers(0, 5)), data.draw(st.integers(0, 9))
    is_float8, d = data.draw(st.booleans()), data.draw(st.integers(0, 24))
    a = arguments(
        torch.Generator().manual_seed(data.draw(st.integers(0, 9))),
        dtype,
        tokens=data.draw(st.integers(0, blocks * block_size)),
        heads=(data.draw(st.integers(1, 4)), data.draw(st.integers(0, 4))),
        d=d,
        rot_dim=2 * data.draw(st.integers(0, d // 2)),
        table_dtype=data.draw(st.sampled_from([dtype, torch.float32])),
        cache_dtype=FLOAT8 if is_float8 else None,
        index_dtype=data.draw(st.sampled_from([torch.int32, torch.int64])),
        is_neox=data.draw(st.booleans()),
        blocks=blocks,
        block_size=block_size,
        scaled=is_float8 and data.draw(st.booleans()),
        merged=d > 0 and data.draw(st.booleans()),
    )
    for got, wanted in zip(on_xla(a), testing.oracle(rotary_and_cache, a), strict=True):
        compare("rotary_and_cache", got, wanted)


def test_steps_of_one_cache_in_one_graph():
    """Each step finds what the previous ones wrote. Three steps of 13 tokens in 48 slots may write a slot twice."""
    import torch_xla

    generator = torch.Generator().manual_seed(0)
    steps = [arguments(generator, torch.float32) for _ in range(3)]
    cache = steps[0]["kv_cache"]
    moved = cache.to(torch_xla.device())
    for step in steps:
        new = {name: step[name] for name in ("positions", "qkv", "cos_sin_cache", "slot_mapping")}
        rotary_and_cache(kv_cache=moved, **{name: tensor.to(torch_xla.device()) for name, tensor in new.items()})
        rotary_and_cache.reference(kv_cache=cache, **new)
    compare("rotary_and_cache", moved.cpu(), cache.double())
