"""A child that os.fork made has its parent's XLA client without the client's threads: a computation would never end.

It may use its CPU tensors, and also XLA if the parent had no client yet.
"""

from __future__ import annotations

import os
import sys

from pyxla.errors import PyxlaError, mismatch
from pyxla.torch_xla_patches.compiled_graphs import before_each_run

_has_parents_client = False


def check_not_forked(where: str) -> None:
    """Refuses to compute on XLA tensors in a child whose parent had started XLA.

    Args:
        where: the op or function, for the message.

    Raises:
        PyxlaError: this process is such a child.
    """
    if _has_parents_client:
        raise PyxlaError(
            mismatch(where, "process", "the one that started XLA", "a child that it forked"),
            'start children with multiprocessing.get_context("spawn"), or use only CPU tensors in them',
        )


def _look_for_client() -> None:
    global _has_parents_client
    # Not imported here: a parent that had no torch_xla has no client.
    torch_xla = sys.modules.get("torch_xla")
    if torch_xla and not _has_parents_client and torch_xla._XLAC._xla_runtime_is_initialized():
        _has_parents_client = True
        before_each_run(lambda _: check_not_forked("compiled graph"))


os.register_at_fork(after_in_child=_look_for_client)
