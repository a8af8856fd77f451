"""Times the layers of a decode step of Llama 3 8B's shape, raw calls in a CUDA graph: one op in place of several.

python benchmarks/bench_layer.py

Needs a torch that sees the GPU, and no torch_xla. Eight layers, each with its own weights and cache, so that the next
replay does not read from L2; 64 sequences. The variants are replayed in turn.
"""

import statistics

import click
import torch
from torch.nn.functional import linear

HIDDEN, INNER, HEADS, KV_HEADS, D, BLOCK = 4096, 14336, 32, 8, 128, 16
EPS, SCALE = 1e-5, 128**-0.5


@click.command()
@click.option("--layers", default=8)
@click.option("--seqs", default=64)
@click.option("--context", default=1024, help="Tokens in the cache of each sequence")
@click.option("--rounds", default=100)
def main(layers: int, seqs: int, context: int, rounds: int) -> None:
    """Times variants of a layer, after comparing each one's residual stream with that of the separate ops."""
    torch.manual_seed(0)
    model = Model(layers, seqs, context)
    variants = {
        "separate ops": model.separate,
        "fused_decoder_layer": model.fused,
        "fused_decoder_layer_rotary": model.fused_rotary,
    }
    graphs, want = {}, None
    for name, run in variants.items():
        run()  # before the capture, because the first use creates objects
        graphs[name] = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graphs[name]):
            query = run()
        model.reset()
        graphs[name].replay()
        got = model.state(query)
        want = want or got
        check(name, got, want)
    times = {name: [] for name in graphs}
    for _ in range(rounds):
        for name, graph in graphs.items():
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            model.reset()
            start.record()
            graph.replay()
            end.record()
            end.synchronize()
            times[name].append(1e3 * start.elapsed_time(end) / layers)
    for name, layer in times.items():
        click.echo(f"{name:20} {statistics.median(layer):7.1f} us a layer (least {min(layer):.1f})")


def check(variant: str, got: dict[str, torch.Tensor], want: dict[str, torch.Tensor]) -> None:
    """Compares each part of the state: wrong queries and keys hardly change the residual stream."""
    for part, values in got.items():
        error = ((values - want[part]).norm() / want[part].norm()).item()
        # In eight small layers with the host's handlers, 16 bits give an error of 0.011; halved positions give 0.85.
        assert error < 0.05, f"{variant}: {part}: wrong numbers ({error:.2g}), not timed"


class Model:
    """Weights and caches of some layers.

    Each of the three steps begins and ends with a rotation. The last one writes its keys and values to the first
    layer's cache again, and returns the queries.
    """

    def __init__(self, layers: int, seqs: int, context: int):
        from pyxla_kernels.fused_add_rms_norm.fused_add_rms_norm import fused_add_rms_norm
        from pyxla_kernels.fused_decoder_layer.fused_decoder_layer import (
            fused_decoder_layer,
            fused_decoder_layer_rotary,
        )
        from pyxla_kernels.paged_attention.paged_attention import paged_attention
        from pyxla_kernels.rotary_and_cache.rotary_and_cache import rotary_and_cache
        from pyxla_kernels.silu_and_mul.silu_and_mul import silu_and_mul

        self.fused_decoder_layer, self.fused_decoder_layer_rotary = fused_decoder_layer, fused_decoder_layer_rotary
        self.fused_add_rms_norm, self.silu_and_mul = fused_add_rms_norm, silu_and_mul
        self.rotary_and_cache, self.paged_attention = rotary_and_cache, paged_attention
        blocks = -(-(context + 1) // BLOCK)

        def weight(rows: int, columns: int) -> torch.Tensor:
            return torch.randn(rows, columns, device="cuda", dtype=torch.bfloat16) * columns**-0.5

        def norm() -> torch.Tensor:
            return 1 + torch.randn(HIDDEN, device="cuda", dtype=torch.bfloat16) / 8

        self.layers = [
            {
                "weights": (
                    weight(HIDDEN, HEADS * D), norm(), weight(2 * INNER, HIDDEN), weight(HIDDEN, INNER), norm(),
                    weight((HEADS + 2 * KV_HEADS) * D, HIDDEN),
                ),
                "cache": torch.randn(2, seqs * blocks, BLOCK, KV_HEADS, D, device="cuda", dtype=torch.bfloat16),
            }
            for _ in range(layers)
        ]  # fmt: skip
        self.first = torch.randn(seqs, HIDDEN, device="cuda", dtype=torch.bfloat16)
        self.first_qkv = torch.randn(seqs, HEADS + 2 * KV_HEADS, D, device="cuda", dtype=torch.bfloat16)
        self.residual = self.first.clone()
        angle = torch.arange(context + 1, device="cuda")[:, None] * 5e5 ** -(torch.arange(0, D, 2, device="cuda") / D)
        self.cos_sin = torch.cat([angle.cos(), angle.sin()], dim=-1).float()
        self.positions = torch.full((seqs,), context, device="cuda", dtype=torch.int32)
        # Blocks in random order, as in a cache after some time.
        tables = torch.randperm(seqs * blocks, device="cuda").view(seqs, blocks).int()
        self.slots = tables[:, -1] * BLOCK + context % BLOCK
        self.batch = {
            "context_lens": self.positions + 1,
            "block_tables": tables,
            "query_start_loc": torch.arange(seqs + 1, device="cuda", dtype=torch.int32),
            "num_seqs": torch.full((1,), seqs, device="cuda", dtype=torch.int32),
            "scale": SCALE,
        }

    def reset(self) -> None:
        """Sets the residual stream to its value before a step."""
        self.residual.copy_(self.first)

    def state(self, query: torch.Tensor) -> dict[str, torch.Tensor]:
        """The state after a step, in float64."""
        keys_and_values = [layer["cache"].flatten(1, 2)[:, self.slots.long()] for layer in self.layers]
        parts = {"query": query, "residual": self.residual, "keys and values": torch.stack(keys_and_values)}
        return {name: part.double() for name, part in parts.items()}

    def separate(self) -> torch.Tensor:
        """torch's matrix products between pyxla's ops."""
        qkv = self.first_qkv
        for layer in self.layers:
            out, post_norm, gate_up, down, norm, next_qkv = layer["weights"]
            x = linear(self._attend(self._rotate(qkv, layer), layer), out)
            x = _call(self.fused_add_rms_norm, x, x=x, residual=self.residual, weight=post_norm, eps=EPS)
            x = linear(x, gate_up)
            x = linear(_call(self.silu_and_mul, x[:, :INNER], x=x), down)
            x = _call(self.fused_add_rms_norm, x, x=x, residual=self.residual, weight=norm, eps=EPS)
            qkv = linear(x, next_qkv).view_as(qkv)
        return self._rotate(qkv, self.layers[0])

    def fused(self) -> torch.Tensor:
        """One op from attention's result to queries, keys and values."""
        qkv = self.first_qkv
        for layer in self.layers:
            attention = self._attend(self._rotate(qkv, layer), layer)
            qkv = _call(self.fused_decoder_layer, qkv.flatten(1), **self._finish(attention, layer)).view_as(qkv)
        return self._rotate(qkv, self.layers[0])

    def fused_rotary(self) -> torch.Tensor:
        """The same op, which also rotates, and stores keys and values."""
        query = self._rotate(self.first_qkv, self.layers[0])
        for layer, following in zip(self.layers, [*self.layers[1:], self.layers[0]], strict=True):
            finish = self._finish(self._attend(query, layer), layer)
            places = self._places() | {"kv_cache": following["cache"]}
            query = _call(self.fused_decoder_layer_rotary, query, **finish, **places)
        return query

    def _places(self) -> dict:
        return {"positions": self.positions, "cos_sin_cache": self.cos_sin, "slot_mapping": self.slots}

    def _finish(self, attention: torch.Tensor, layer: dict) -> dict:
        names = "o_proj", "post_attention_norm", "gate_up_proj", "down_proj", "input_norm", "qkv_proj"
        weights = dict(zip(names, layer["weights"], strict=True))
        return {"attention": attention.flatten(1), "residual": self.residual, **weights, "eps": EPS}

    def _rotate(self, qkv: torch.Tensor, layer: dict) -> torch.Tensor:
        return _call(self.rotary_and_cache, qkv[:, :HEADS], qkv=qkv, kv_cache=layer["cache"], **self._places())

    def _attend(self, query: torch.Tensor, layer: dict) -> torch.Tensor:
        return _call(self.paged_attention, query, query=query, kv_cache=layer["cache"], **self.batch).flatten(1)


def _call(op, like: torch.Tensor, **arguments) -> torch.Tensor:
    """Calls the op's handler on the current stream; the result is in new memory of this shape."""
    from pyxla.testing import direct_call

    result = torch.empty(like.shape, dtype=like.dtype, device="cuda")
    direct_call.prepare(op, arguments, (result,))(torch.cuda.current_stream().cuda_stream)
    return result


if __name__ == "__main__":
    main()
