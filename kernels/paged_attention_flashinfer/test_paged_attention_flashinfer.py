import re

import pytest
import torch
from pyxla_kernels._paged_attention.bad_inputs import Bad, changed, size
from pyxla_kernels._paged_attention.cases import BF16, F8
from pyxla_kernels._testing.custom_calls import call_handler, to_xla
from pyxla_kernels.paged_attention_flashinfer.paged_attention_flashinfer import flashinfer

from pyxla import ArgumentError, PyxlaError, testing

CASES = testing.cases_of(flashinfer)
bad = Bad("paged_attention", lambda **changes: changed(BF16, **changes))


def not_taken(expected: str, got: str, **changes):
    return bad(f"{expected} with implementation flashinfer", got, **changes)


NOT_TAKEN = [
    not_taken("dtype bfloat16 or float16", "float32", query=size(6, 8, 64), kv_cache=size(2, 64, 8, 2, 64)),
    not_taken(
        "a last dimension of 64 or 128", "72", query=size(6, 8, 72).to(BF16), kv_cache=size(2, 64, 8, 2, 72).to(BF16)
    ),
    not_taken("dtype bfloat16", "float8_e4m3fn", kv_cache=size(2, 64, 8, 2, 64).to(F8)),
    not_taken("None", "a tensor", alibi_slopes=size(8)),
    not_taken("None", "a tensor", sinks=size(8)),
]


@pytest.mark.parametrize("check", testing.CHECKS, ids=lambda check: check.__name__)
@pytest.mark.parametrize("case", CASES, ids=str)
def test_op(check, case):
    check(flashinfer, case)


def test_cases_are_those_of_paged_attention_that_fit():
    names = {case.name for case in CASES}
    assert {"ragged-bf16", "d-128-prefill", "window-7", "cap-50", "group-20", "shared-prefix-bfloat16"} <= names
    assert not {"ragged-f32", "alibi", "sinks", "f8-bf16", "d-80"} & names


@pytest.mark.parametrize("bad", NOT_TAKEN, ids=str)
def test_bad_input(bad):
    testing.check_bad_input(flashinfer, bad)


def test_error_says_what_takes_it():
    with pytest.raises(ArgumentError) as error:
        flashinfer(**changed(BF16, sinks=size(8)))
    assert error.value.message == "paged_attention: sinks: expected None with implementation flashinfer, got a tensor"
    assert "pyxla.use_implementation('paged_attention', 'default')" in error.value.hint


# Also one of the op's own checks, which the handler makes too.
@pytest.mark.parametrize("bad", [*NOT_TAKEN, bad("rank 3", "shape (6, 512)", query=size(6, 512).to(BF16))], ids=str)
def test_handler_checks_what_python_checks(bad):
    with pytest.raises(PyxlaError, match=re.escape(bad.message)):
        call_handler(flashinfer, to_xla(bad.arguments()))


# Expanded views, because whole tensors would take gigabytes.
@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"query": torch.ones(1, 1, 1, dtype=BF16).expand(2**24, 2, 64)},
         "query: expected fewer than 2^31 elements with implementation flashinfer, got 2147483648"),
        ({"block_tables": torch.zeros(1, 1, dtype=torch.int32).expand(3, 2**28)},
         "block_tables: expected fewer than 2^31 positions with implementation flashinfer, got 6442450944"),
    ],
    ids=["query", "block_tables"],
)  # fmt: skip
def test_sizes_beyond_32_bits(changes, message):
    with pytest.raises(ArgumentError, match=re.escape(f"paged_attention: {message}")):
        flashinfer(**changed(BF16, **changes))
