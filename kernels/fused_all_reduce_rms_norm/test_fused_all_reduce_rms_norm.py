"""On one device; tests/spmd/summed has the tests on a mesh."""

from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import pytest
import torch
from pyxla_kernels.fused_all_reduce_rms_norm.cases import BAD_INPUTS, CASES, arguments
from pyxla_kernels.fused_all_reduce_rms_norm.fused_all_reduce_rms_norm import fused_all_reduce_rms_norm

from pyxla import PyxlaError, testing
from pyxla.pjrt.platform import platform_of, requested_device
from pyxla.testing import direct_call
from pyxla.testing.device_memory import CupyMemory, HostMemory, call_in
from pyxla.testing.tolerance import compare


@pytest.mark.parametrize("check", testing.CHECKS, ids=lambda check: check.__name__)
@pytest.mark.parametrize("case", CASES, ids=str)
def test_op(check, case):
    check(fused_all_reduce_rms_norm, case)


@pytest.mark.parametrize("bad", BAD_INPUTS, ids=str)
def test_bad_input(bad):
    testing.check_bad_input(fused_all_reduce_rms_norm, bad)


def test_reference_against_torch_in_float64():
    x, residual, weight = (torch.randn(shape, dtype=torch.float64) for shape in ((3, 6, 33), (6, 33), (33,)))
    want = x[0] + x[1] + x[2] + residual
    got = fused_all_reduce_rms_norm.reference(x, residual, weight, [], 1e-5)
    torch.testing.assert_close(residual, want)
    torch.testing.assert_close(got, torch.nn.functional.rms_norm(want, (33,), weight, 1e-5))


def test_a_device_that_does_not_come():
    """The first call waits and says who is missing; the next one does not wait for a call that was given up."""
    given = arguments(torch.Generator().manual_seed(0), (1, 2, 64), torch.float32, None)
    given |= {"groups": [0, 1, 0], "channel": 7, "timeout": 0.1}
    before = given["residual"].clone()
    for got in ("devices 0", "a call that one of them gave up"):
        call = direct_call.prepare(fused_all_reduce_rms_norm, given, [torch.empty(2, 64)], "Host")
        with pytest.raises(PyxlaError) as caught:
            call(0)
        expected = f"fused_all_reduce_rms_norm: timeout: expected devices 0, 2 within 0.1 s, got {got}"
        assert caught.value.message == expected
    assert given["residual"].equal(before)


# The rows of one call after another: other grids, and each half of the slots. 64 of 4096 in 16 bits are 512 KiB.
ROWS = [1, 5, 64, 2, 2, 64]


@pytest.mark.parametrize("count", [2, 3])
@pytest.mark.parametrize(("hidden", "dtype"), [(4096, torch.bfloat16), (1024, torch.float32), (33, torch.float16)])
def test_handlers_that_meet(count, hidden, dtype):
    """Without XLA: the handlers of several devices, each on a thread and a stream, several calls in a row."""
    platform = platform_of(requested_device())
    generator = torch.Generator().manual_seed(0)
    given = [arguments(generator, (count, rows, hidden), dtype, dtype) for rows in ROWS]
    # An allocation of one thread could wait for the kernels of another, which wait for its own.
    prepared = Barrier(count)

    def run(place):
        memory, calls = HostMemory() if platform == "Host" else CupyMemory(place), []
        for number, one in enumerate(given):
            # The second call's is longer than a clock can hold.
            timeout = 1e300 if number == 1 else 20.0
            own = one | {"x": one["x"][place : place + 1], "groups": [0] * count, "channel": 100, "timeout": timeout}
            calls.append(call_in(memory, fused_all_reduce_rms_norm, own, platform, device=place))
        prepared.wait(timeout=60)
        for call in calls:
            memory.submit(call.launch)
        prepared.wait(timeout=60)
        return [(memory.read(call.operands["residual"]), memory.read(call.results[0])) for call in calls]

    with ThreadPoolExecutor(count) as pool:
        found = list(pool.map(run, range(count)))
    for number, one in enumerate(given):
        want = testing.oracle(fused_all_reduce_rms_norm, one)
        for got, expected in zip(found[0][number], want, strict=True):
            compare(f"call {number}", got, expected)
        for others in found[1:]:
            for got, first in zip(others[number], found[0][number], strict=True):
                assert got.equal(first)
