"""The checks that every op passes, for its test file: `@pytest.mark.parametrize("check", testing.CHECKS)`.

A case is run lazily on XLA tensors, compiled with backend "openxla", and on CPU tensors; numbers are compared with the
reference in float64. Each check leaves a record; `devtool test` shows the records as a table.

pytest needs `-p pyxla.pytest_plugin`, which `devtool test` passes: it sets the device (`--device cpu|cuda`), makes XLA
dump its modules, and writes the records (`--pyxla-records FILE`); `--raw` keeps only `check_raw`. It marks as `slow`
the checks of CHECKS_OF_A_FORM for a case if an earlier case of the op has the same form of call.
"""

from pyxla.hlo.dump import compilations
from pyxla.testing.bad_input_checks import check_bad_input
from pyxla.testing.case import BadInput, Case, cases_of
from pyxla.testing.op_checks import (
    CHECKS,
    CHECKS_OF_A_FORM,
    check_compiled,
    check_cpu,
    check_hlo,
    check_in_place,
    check_lazy,
    check_opcheck,
    check_raw,
    oracle,
)
from pyxla.testing.triton_check import check_triton

__all__ = [
    "CHECKS",
    "CHECKS_OF_A_FORM",
    "BadInput",
    "Case",
    "cases_of",
    "check_bad_input",
    "check_compiled",
    "check_cpu",
    "check_hlo",
    "check_in_place",
    "check_lazy",
    "check_opcheck",
    "check_raw",
    "check_triton",
    "compilations",
    "oracle",
]
