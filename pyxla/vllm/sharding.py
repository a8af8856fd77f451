"""The weights of vLLM's layers on several devices: which dimension is split, and the order of fused products.

A layer that is parallel by columns has its part of the outputs on each device, one that is parallel by rows the part of
the inputs that comes from there; XLA sums the results of the latter over the devices. The rows of a fused weight, such
as [q; k; v], are those of the first device, then those of the second, and so on, so that each device has its heads.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.nn.functional import linear
from vllm.model_executor.layers.fused_moe.layer import FusedMoE
from vllm.model_executor.layers.linear import ColumnParallelLinear, RowParallelLinear, UnquantizedLinearMethod
from vllm.model_executor.layers.vocab_parallel_embedding import UnquantizedEmbeddingMethod, VocabParallelEmbedding

from pyxla.vllm.mesh import OPTION, adds_in_op, annotation, devices
from pyxla.vllm.refusal import WHOLE_MODELS, refuse_unless


class _Whole:
    """A result that is a tensor to all that does not know it: to torch's functions, operators and attributes."""

    def whole(self) -> torch.Tensor:
        """The tensor, the same each time: a model may change it in place."""
        raise NotImplementedError

    def __getitem__(self, index: Any) -> torch.Tensor:
        return self.whole()[index]

    def __getattr__(self, name: str) -> Any:
        return getattr(self.whole(), name)

    # Python looks operators up in the class.
    def __add__(self, other: Any) -> torch.Tensor:
        return self.whole() + other

    def __radd__(self, other: Any) -> torch.Tensor:
        return other + self.whole()

    def __mul__(self, other: Any) -> torch.Tensor:
        return self.whole() * other

    def __rmul__(self, other: Any) -> torch.Tensor:
        return other * self.whole()

    def __truediv__(self, other: Any) -> torch.Tensor:
        return self.whole() / other

    @classmethod
    def __torch_function__(cls, function: Callable, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        plain = [arg.whole() if isinstance(arg, _Whole) else arg for arg in args]
        return function(*plain, **(kwargs or {}))


class Columns(_Whole):
    """The outputs of a fused product, by device. A model that splits them again gets each product, without a copy.

    Everything else is done to the whole tensor, [tokens, outputs]; for that XLA moves data between the devices.

    Args:
        by_device: [tokens, devices, outputs of one device].
        sizes: outputs of each product.

    Attributes:
        by_device: as given.
    """

    def __init__(self, by_device: torch.Tensor, sizes: Sequence[int]):
        self.by_device, self._sizes = by_device, list(sizes)
        self._joined: torch.Tensor | None = None

    def split(self, sizes: int | Sequence[int], dim: int = 0) -> Sequence[torch.Tensor]:
        """As torch.Tensor.split."""
        own = dim in (-1, 1) and sizes == self._sizes and self._joined is None
        return self._products() if own else self.whole().split(sizes, dim)

    def chunk(self, chunks: int, dim: int = 0) -> Sequence[torch.Tensor]:
        """As torch.Tensor.chunk."""
        own = dim in (-1, 1) and self._sizes == [self._sizes[0]] * chunks and self._joined is None
        return self._products() if own else self.whole().chunk(chunks, dim)

    def whole(self) -> torch.Tensor:
        """[tokens, outputs], the same tensor each time: a model may change it in place."""
        if self._joined is None:
            self._joined = torch.cat(self._products(), 1)
        return self._joined

    def _products(self) -> list[torch.Tensor]:
        count = self.by_device.shape[1]
        return [part.flatten(1) for part in self.by_device.split([size // count for size in self._sizes], 2)]


class Rows(_Whole):
    """A product that is parallel by rows, not yet computed: a norm with a residual computes it and the sum in one op.

    To everything else it is the whole product, [tokens, outputs], which XLA sums over the devices.

    Args:
        x: [tokens, inputs].
        weight: [outputs, inputs].

    Attributes:
        operands: as given.
    """

    def __init__(self, x: torch.Tensor, weight: torch.Tensor):
        self.operands = x, weight
        self._whole: torch.Tensor | None = None

    @property
    def is_pending(self) -> bool:
        """Whether nobody has asked for the whole product, and perhaps changed it."""
        return self._whole is None

    def whole(self) -> torch.Tensor:
        """[tokens, outputs], the same tensor each time: a model may change it in place."""
        if self._whole is None:
            self._whole = linear(*self.operands)
        return self._whole


class _Pending(UnquantizedLinearMethod):
    """How vLLM's layer computes a product that is parallel by rows."""

    def apply(self, layer: torch.nn.Module, x: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor | Rows:
        plain = isinstance(x, torch.Tensor) and x.dim() == 2 and bias is None
        return Rows(x, layer.weight) if plain else linear(x, layer.weight, bias)


class _Fused(UnquantizedLinearMethod):
    """How vLLM's layer computes a fused product."""

    def __init__(self, sizes: Sequence[int]):
        self._sizes = sizes

    def apply(self, layer: torch.nn.Module, x: torch.Tensor, bias: torch.Tensor | None = None) -> Columns:
        return Columns(linear(x, layer.weight, bias).unflatten(1, (devices(), -1)), self._sizes)


class _Logits(UnquantizedEmbeddingMethod):
    """How vLLM computes logits: each device those of its part of the vocabulary, then all get all."""

    def __init__(self):
        self._part, self._whole = annotation(2, 1), annotation(2, None)

    def apply(self, layer: torch.nn.Module, x: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
        # Without the first mark XLA gathers the weights instead. The host cannot read what is split: that compiles.
        return self._whole(self._part(linear(x, layer.weight, bias)))


def shard(model: torch.nn.Module) -> dict[int, int]:
    """Orders the rows of fused weights by device.

    Args:
        model: vLLM's, loaded, on the host.

    Returns:
        The id of each weight that is split over the devices -> which dimension is.

    Raises:
        PyxlaError: inputs, outputs or a vocabulary that the number of devices does not divide; weights that
            are quantised.
    """
    count, split = devices(), {}
    if count == 1:
        return split

    def divide(size: int, what: str) -> None:
        refuse_unless(size % count == 0, OPTION, f"a divisor of {size}, {what}", count, WHOLE_MODELS)

    for name, module in model.named_modules():
        if isinstance(module, FusedMoE):
            divide(module.intermediate_size_per_partition, f"the inner size of {name}")
            split |= _shard_experts(module, count)
        kind = next((kind for kind in _DIMENSIONS if isinstance(module, kind)), None)
        if kind is None or getattr(module, "disable_tp", False):
            continue
        plain = isinstance(module.quant_method, (UnquantizedLinearMethod, UnquantizedEmbeddingMethod))
        refuse_unless(plain, OPTION, "1 for quantised weights", count, WHOLE_MODELS)
        dimension, side = _DIMENSIONS[kind]
        sizes = getattr(module, "output_sizes", [module.weight.shape[dimension]])
        for size in sizes:
            divide(size, f"{side} of {name}")
        # The bias of a layer that is parallel by rows is added to the sum, on each device.
        tensors = module.parameters(recurse=False) if dimension == 0 else [module.weight]
        split |= {id(tensor): dimension for tensor in tensors}
        if len(sizes) > 1:
            for tensor in module.parameters(recurse=False):
                tensor.data = by_device(tensor.data, sizes, count)
            module.quant_method = _Fused(sizes)
        elif kind is RowParallelLinear and adds_in_op():
            module.quant_method = _Pending()
        elif isinstance(module, VocabParallelEmbedding):
            module.quant_method = _Logits()
    return split


def _shard_experts(layer: FusedMoE, count: int) -> dict[int, int]:
    """As `shard`: each device has a part of all experts."""
    own = dict(layer.named_parameters(recurse=False))
    if layer.activation != "swigluoai":
        # Gates, then factors, where swigluoai's take turns.
        for name in own.keys() & {"w13_weight", "w13_bias"}:
            rows, size = own[name].data, layer.intermediate_size_per_partition
            own[name].data = by_device(rows.transpose(0, 1), [size, size], count).transpose(0, 1).contiguous()
    if "w2_bias" in own:
        # The first device adds it to its part of the sum, the others zeros.
        bias = own["w2_bias"].data
        own["w2_bias"].data = torch.cat([bias, bias.new_zeros((count - 1) * len(bias), bias.shape[1])])
    dimensions = {"w13_weight": 1, "w13_bias": 1, "w2_weight": 2, "w2_bias": 0}
    return {id(own[name]): dimension for name, dimension in dimensions.items() if name in own}


_DIMENSIONS: dict[type, tuple[int, str]] = {
    ColumnParallelLinear: (0, "the outputs"),
    RowParallelLinear: (1, "the inputs"),
    VocabParallelEmbedding: (0, "the padded vocabulary"),
}


def by_device(weight: torch.Tensor, sizes: Sequence[int], count: int) -> torch.Tensor:
    """The rows of a fused weight, or its bias, in the order of the devices.

    Args:
        weight: [outputs, ...]; the rows of the first product, then those of the second, and so on.
        sizes: outputs of each product.
        count: how many devices.
    """
    parts = [part.unflatten(0, (count, -1)) for part in weight.split(list(sizes))]
    return torch.cat(parts, 1).flatten(0, 1)
