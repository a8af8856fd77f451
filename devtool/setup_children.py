"""Children of a set-up: Ctrl-C interrupts it only where it knows them all, and they end with it."""

import contextlib
import ctypes
import os
import signal
from collections.abc import Iterator


@contextlib.contextmanager
def interrupts(how: int) -> Iterator[None]:
    """Holds Ctrl-C back (SIG_BLOCK) until the end of the block, or lets it through (SIG_UNBLOCK) in the block."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [])
    try:
        signal.pthread_sigmask(how, [signal.SIGINT])
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def die_with(parent: int) -> None:
    """Has this new child end when its parent ends, and at Ctrl-C even before its program starts."""
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # 1: PR_SET_PDEATHSIG
    if os.getppid() != parent:  # the parent was killed between fork and prctl
        os._exit(1)
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGINT])
