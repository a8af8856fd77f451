"""The tests of tests/spmd/summed, in processes with several devices."""

import pytest

from tests.conftest import check_on_devices


@pytest.mark.slow
@pytest.mark.parametrize("count", [2, 4, 8])
def test_on_a_mesh(count):
    check_on_devices(count, "tests/spmd/summed")
