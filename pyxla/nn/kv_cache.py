"""The paged cache of keys and values of a model's layers, on the device."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import torch

from pyxla.nn.attention import AttentionMetadata
from pyxla.nn.block_tables import BlockTables, CachedSequence, check
from pyxla.nn.on_mesh import op_on, split
from pyxla.op.dtypes import dtype_name

if TYPE_CHECKING:
    from torch_xla.distributed.spmd import Mesh

FLOAT8 = torch.float8_e4m3fn
_DTYPES = (torch.float32, torch.bfloat16, torch.float16, FLOAT8)


class PagedKVCache(BlockTables):
    """BlockTables with the keys and values of all layers of a model.

    Blocks are numbered once for all layers: block b of a sequence is block b in every layer's buffer. A step is
    `extend`, the model with the metadata that it returns, and a sync. The buffers are updated in place: pass
    `layers[i]` to layer i, in order, and XLA copies none of them.

    Args:
        num_layers: layers of the model.
        num_blocks: blocks of each layer.
        block_size: tokens in a block, up to 256.
        num_kv_heads: heads of keys and values.
        head_size: d, a multiple of 8 up to 256.
        dtype: dtype of keys and values, float32, bfloat16 or float16; or float8_e4m3fn for keys and values of any of
            these. The layer has the scales of float8: `XlaGpuAttention(kv_scales=...)`.
        device: device of the buffers; None: torch_xla.device().
        mesh: torch_xla's mesh with an axis "model": each device holds its heads; None: one device.

    Attributes:
        layers: per layer [2, num_blocks, block_size, num_kv_heads, head_size]; [0] the keys, [1] the values.
        num_blocks, block_size: as given.
        device: device of the buffers.

    Raises:
        ArgumentError: a size or dtype other than the above.
    """

    def __init__(
        self,
        num_layers: int,
        num_blocks: int,
        block_size: int,
        num_kv_heads: int,
        head_size: int,
        *,
        dtype: torch.dtype = torch.bfloat16,
        device: torch.device | None = None,
        mesh: Mesh | None = None,
    ):
        import torch_xla

        check.that(num_layers >= 1, "num_layers", "a count of 1 or more", num_layers)
        check.that(block_size <= 256, "block_size", "at most 256", block_size)
        check.that(num_kv_heads >= 1, "num_kv_heads", "a count of 1 or more", num_kv_heads)
        supported = head_size % 8 == 0 and 8 <= head_size <= 256
        check.that(supported, "head_size", "one of 8, 16, ... 256", head_size)
        names = " or ".join(map(dtype_name, _DTYPES))
        check.that(dtype in _DTYPES, "dtype", names, dtype_name(dtype))
        super().__init__(num_blocks, block_size)
        self.device = torch_xla.device() if device is None else torch.device(device)
        shape = (2, num_blocks, block_size, num_kv_heads, head_size)
        layers = [torch.zeros(shape, dtype=dtype, device=self.device) for _ in range(num_layers)]
        self.layers = [split(layer, mesh, 3) for layer in layers]
        self._mesh = mesh
        self._store = op_on(mesh, "reshape_and_cache", "heads")
        torch_xla.sync()

    def extend(
        self,
        batch: Sequence[tuple[CachedSequence, int]],
        *,
        tokens: int,
        seqs: int,
        max_blocks: int,
        on_host: bool = False,
    ) -> AttentionMetadata:
        """Gives slots to the next tokens of several sequences and describes the step, padded to fixed shapes.

        Shared blocks that will be written are copied on the device at once, before the step.

        Args:
            batch: each sequence once, with the number of its new tokens.
            tokens: rows of the step; at least the new tokens.
            seqs: sequences of the step; at least those of the batch.
            max_blocks: blocks per sequence; at least those of the longest.
            on_host: leaves the metadata on the CPU, for `pyxla.nn.pack`.

        Returns:
            AttentionMetadata on the cache's device, int32.

        Raises:
            ArgumentError: the batch does not fit these shapes, a sequence occurs twice or was closed.
            PyxlaError: too few blocks are free; nothing has changed.
        """
        self._check_batch(batch, tokens, seqs, max_blocks)
        slots, starts, lengths = array("i"), array("i", [0]), array("i")
        table = array("i", bytes(4 * seqs * max_blocks))
        for row, (sequence, count) in enumerate(batch):
            new, copy = self._append(sequence, count)
            if copy is not None:
                self._copy_block(*copy)
            slots.extend(new)
            starts.append(len(slots))
            lengths.append(sequence.length)
            table[row * max_blocks : row * max_blocks + len(sequence.blocks)] = sequence.blocks
        padding = seqs - len(batch)
        starts.extend([starts[-1]] * padding)
        lengths.extend([0] * padding)
        slots.extend([-1] * (tokens - len(slots)))
        metadata = AttentionMetadata(
            slot_mapping=_tensor(slots),
            context_lens=_tensor(lengths),
            # Reshaped here: on the device that would be a graph of its own before a compiled function.
            block_tables=_tensor(table).view(seqs, max_blocks),
            query_start_loc=_tensor(starts),
            num_seqs=_tensor(array("i", [len(batch)])),
        )
        return metadata if on_host else AttentionMetadata(*map(self._to_device, metadata))

    def _check_batch(
        self, batch: Sequence[tuple[CachedSequence, int]], tokens: int, seqs: int, max_blocks: int
    ) -> None:
        """Raises before anything is changed."""
        for name, size in (("tokens", tokens), ("seqs", seqs), ("max_blocks", max_blocks)):
            check.that(size >= 1, name, "a count of 1 or more", size)
        new = sum(count for _, count in batch)
        check.that(new <= tokens, "batch", f"at most {tokens} new tokens", new)
        check.that(len(batch) <= seqs, "batch", f"at most {seqs} sequences", len(batch))
        distinct = len({id(sequence) for sequence, _ in batch})
        check.that(distinct == len(batch), "batch", "each sequence once", f"{len(batch) - distinct} again")
        blocks = max((-(-(s.length + count) // self.block_size) for s, count in batch), default=0)
        check.that(blocks <= max_blocks, "batch", f"at most {max_blocks} blocks of a sequence", blocks)
        self.require_room(batch)

    def _to_device(self, values: torch.Tensor) -> torch.Tensor:
        # Marked as whole on each device, because torch_xla records this once a graph has used the tensor. It would take
        # the next step's tensor, without a mark, for an input that is sharded otherwise, and trace everything anew.
        return split(values.to(self.device), self._mesh, None)

    def _copy_block(self, source: int, target: int) -> None:
        """Copies a block in every layer: gathers it, then writes it like new keys and values, in place."""
        import torch_xla

        first = target * self.block_size
        block = self._to_device(_tensor(array("i", [source])))
        slots = self._to_device(_tensor(array("i", range(first, first + self.block_size))))
        for layer in self.layers:
            _write_block(self._store, layer, block, slots)
        torch_xla.sync()


def _tensor(numbers: array) -> torch.Tensor:
    return torch.frombuffer(numbers, dtype=torch.int32)


def _write_block(store: Callable, layer: torch.Tensor, block: torch.Tensor, slots: torch.Tensor) -> None:
    # A separate function: a tensor that a variable holds when torch_xla syncs becomes a result, for which XLA copies.
    rows = layer.index_select(1, block)[:, 0]
    # The op takes no float8 keys. In float32 they are the same numbers, and unscaled they become the same bits again.
    key, value = rows.float() if rows.dtype == FLOAT8 else rows
    store(key, value, layer, slots)
