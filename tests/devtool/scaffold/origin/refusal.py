"""How devtool new-op --from refuses code."""

import contextlib
from collections.abc import Iterator

import pytest

from devtool.errors import DevtoolError


@contextlib.contextmanager
def refused(place: str, message: str) -> Iterator[None]:
    """The block refuses the user's code at this place, with a hint."""
    with pytest.raises(DevtoolError) as caught:
        yield
    assert caught.value.message.startswith(f"new-op: --from: {place}: {message}")
    assert "\n\nhint: " in caught.value.message and caught.value.exit_code == 2
