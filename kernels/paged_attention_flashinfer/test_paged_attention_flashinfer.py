import re

import pytest
import torch
from pyxla_kernels._paged_attention.cases import BATCHES
from pyxla_kernels.common.testing.checks_on_xla import is_cuda
from pyxla_kernels.common.testing.custom_calls import call_handler, to_xla
from pyxla_kernels.paged_attention_flashinfer.cases import BAD_INPUTS, CASES, good
from pyxla_kernels.paged_attention_flashinfer.paged_attention_flashinfer import paged_attention_flashinfer

from pyxla import ArgumentError, PyxlaError, sync, testing

AT_RUN_TIME = [bad for bad in BAD_INPUTS if bad.at_run_time]
BEFORE = [bad for bad in BAD_INPUTS if not bad.at_run_time]


def on_xla(arguments: dict) -> torch.Tensor:
    """The result of the op on XLA tensors, as a CPU tensor."""
    return paged_attention_flashinfer(**to_xla(arguments)).cpu()


# Its own code is CUDA code. On the CPU it shares the handler of paged_attention, whose tests run all these cases.
SMOKE = {"ragged-bf16", "window-1", "cap-0.5"}


def tier(case):
    return pytest.param(case, marks=[] if is_cuda() or case.name in SMOKE else pytest.mark.slow)


@pytest.mark.parametrize("check", testing.CHECKS, ids=lambda check: check.__name__)
@pytest.mark.parametrize("case", [tier(case) for case in CASES], ids=str)
def test_op(check, case):
    check(paged_attention_flashinfer, case)


def test_cases_are_those_of_paged_attention_that_fit():
    names = [case.name for case in CASES]
    assert len(set(names)) == len(names) > 30
    assert {"ragged-bf16", "heads-5-1", "window-1", "cap-0.5", "shared-prefix"} <= set(names)
    assert len(BATCHES) > len(names) and not {"alibi", "sinks", "f8-bf16", "d-80"} & set(names)
    for case in CASES:
        query, _, *lengths = list(case.arguments().values())[:6]
        assert query.dtype in (torch.bfloat16, torch.float16) and query.shape[2] in (64, 128)
        assert all(t.dtype == torch.int32 for t in lengths)


@pytest.mark.parametrize("bad", BEFORE, ids=str)
def test_bad_input(bad):
    testing.check_bad_input(paged_attention_flashinfer, bad)


@pytest.mark.parametrize("bad", AT_RUN_TIME, ids=str)
def test_value_out_of_range(bad):
    """CPU tensors and XLA on the host raise; CUDA cannot, and shows NaN."""
    with pytest.raises(ArgumentError, match=re.escape(bad.message)):
        paged_attention_flashinfer(**bad.arguments())
    if is_cuda():
        assert on_xla(bad.arguments()).isnan().any()
        return
    with pytest.raises(PyxlaError, match=re.escape(bad.message)):
        result = paged_attention_flashinfer(**to_xla(bad.arguments()))  # kept: XLA leaves out what nobody holds
        sync()
    del result
    assert on_xla(good()).isfinite().all()


@pytest.mark.parametrize("bad", BEFORE, ids=str)
def test_handler_checks_what_python_checks(bad):
    with pytest.raises(PyxlaError, match=re.escape(bad.message)):
        call_handler(paged_attention_flashinfer, to_xla(bad.arguments()))


# Views: what they stand for would take gigabytes.
@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"query": torch.ones(1, 1, 1, dtype=torch.bfloat16).expand(2**24, 2, 64)},
         "query: expected fewer than 2^31 elements, got 2147483648"),
        ({"block_tables": torch.zeros(1, 1, dtype=torch.int32).expand(3, 2**28)},
         "block_tables: expected fewer than 2^31 positions, got 6442450944"),
    ],
    ids=["query", "block_tables"],
)  # fmt: skip
def test_sizes_beyond_32_bits(changes, message):
    with pytest.raises(ArgumentError, match=re.escape(f"paged_attention_flashinfer: {message}")):
        paged_attention_flashinfer(**good(**changes))


def test_other_lengths_do_not_recompile():
    a = next(case for case in CASES if case.name == "ragged-bf16").arguments()
    on_xla(a)
    before = testing.compilations()
    for seqs in (0, 3):
        on_xla(a | {"num_seqs": torch.tensor([seqs], dtype=torch.int32)})
    assert testing.compilations() == before
