"""Each variant and shape is a graph of the same Python code, of which torch compiles 8 unless told otherwise."""

import pytest
import torch


@pytest.fixture(autouse=True)
def many_graphs():
    with torch._dynamo.config.patch(recompile_limit=256):
        yield
