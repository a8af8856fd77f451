"""A step's data: made on the host, copied to the device as one tensor, taken apart inside the graph."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import torch

from pyxla.nn import AttentionMetadata, unpack
from pyxla.vllm.runner.buckets import Bucket


class Inputs(NamedTuple):
    """What the graph of a step takes, int32, on the host or on the device.

    Attributes:
        tokens: [tokens]; -1 - r means the token that the step before has generated for its r-th request.
        positions: [tokens].
        metadata: of paged attention.
    """

    tokens: torch.Tensor
    positions: torch.Tensor
    metadata: AttentionMetadata


class Layout:
    """Where in the packed tensor of a bucket each part is.

    Args:
        bucket: the bucket.
        max_blocks: blocks of the longest request.
    """

    def __init__(self, bucket: Bucket, max_blocks: int):
        tokens, requests = bucket
        self.shapes = [
            (tokens,),
            (tokens,),
            (tokens,),
            (requests,),
            (requests, max_blocks),
            (requests + 1,),
            (1,),
        ]
        self._bounds = np.cumsum([0, *map(math.prod, self.shapes)]).tolist()

    def empty(self) -> tuple[torch.Tensor, list[np.ndarray]]:
        """A packed step without requests, and its parts, which share its memory: padding has no slot and length 0."""
        packed = torch.zeros(self._bounds[-1], dtype=torch.int32)
        data, bounds = packed.numpy(), zip(self._bounds, self._bounds[1:], strict=False)
        parts = [data[a:b].reshape(shape) for (a, b), shape in zip(bounds, self.shapes, strict=True)]
        parts[2].fill(-1)
        return packed, parts

    def unpack(self, packed: torch.Tensor) -> Inputs:
        """The parts of a tensor on the device; call it inside the graph."""
        tokens, positions, *metadata = unpack(packed, self.shapes)
        return Inputs(tokens, positions, AttentionMetadata(*metadata))
