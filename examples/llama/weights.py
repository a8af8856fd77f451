"""The model's weights on the device, from tensors under Hugging Face's names; and random ones by seed."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import torch

from examples.llama.config import LlamaConfig, check
from examples.llama.model import Llama
from pyxla.nn import split

if TYPE_CHECKING:
    from torch_xla.distributed.spmd import Mesh

Read = Callable[[str], torch.Tensor]
# The dimension that is split over the devices of a mesh; the other weights are whole on each.
SPLIT = {"qkv": 0, "out": 1, "gate_up": 0, "down": 1, "head": 0}


def load(
    config: LlamaConfig,
    read: Read,
    dtype: torch.dtype,
    device: torch.device,
    mesh: Mesh | None = None,
    *,
    fused: bool | None = None,
    fused_rotary: bool = True,
    fused_sums: bool | None = None,
) -> Llama:
    """The model with these weights on a device.

    Args:
        config: its shape.
        read: returns the tensor with a Hugging Face name, of any floating dtype, on the CPU.
        dtype: of weights and activations.
        device: the model's device.
        mesh, fused, fused_rotary, fused_sums: arguments of Llama.

    Returns:
        Llama.

    Raises:
        ArgumentError: heads or the MLP's inner size that the mesh's devices do not divide.
    """
    model = Llama(config, dtype, mesh, fused=fused, fused_rotary=fused_rotary, fused_sums=fused_sums)
    devices = 1 if mesh is None else mesh.shape()["model"]
    for name in ("num_key_value_heads", "intermediate_size"):
        size = getattr(config, name)
        check.that(size % devices == 0, name, f"a size that {devices} devices divide", size)
    for name, sources in parts_of(config).items():
        tensors = [read(source) for source in sources]
        weight = tensors[0]
        if len(tensors) > 1:
            weight = torch.cat([t.unflatten(0, (devices, -1)) for t in tensors], dim=1).flatten(0, 1)
        owner, _, attribute = name.rpartition(".")
        moved = split(weight.to(dtype).to(device), mesh, SPLIT.get(attribute))
        setattr(model.get_submodule(owner), attribute, torch.nn.Parameter(moved, requires_grad=False))
    if config.tie_word_embeddings:
        model.head = model.embedding
    model.cos_sin = model.cos_sin.to(device)
    return model


def parts_of(config: LlamaConfig) -> dict[str, list[str]]:
    """Weight of the model -> the Hugging Face tensors that are concatenated in it, for each device its part."""
    parts = {"embedding": ["model.embed_tokens.weight"], "norm": ["model.norm.weight"]}
    if not config.tie_word_embeddings:
        parts["head"] = ["lm_head.weight"]
    for number in range(config.num_hidden_layers):
        theirs = f"model.layers.{number}"
        ours = f"layers.{number}"
        parts |= {
            f"{ours}.qkv": [f"{theirs}.self_attn.{name}_proj.weight" for name in "qkv"],
            f"{ours}.out": [f"{theirs}.self_attn.o_proj.weight"],
            f"{ours}.gate_up": [f"{theirs}.mlp.{name}_proj.weight" for name in ("gate", "up")],
            f"{ours}.down": [f"{theirs}.mlp.down_proj.weight"],
            f"{ours}.attention_norm": [f"{theirs}.input_layernorm.weight"],
            f"{ours}.mlp_norm": [f"{theirs}.post_attention_layernorm.weight"],
        }
    return parts


def hf_shapes(config: LlamaConfig) -> dict[str, tuple[int, ...]]:
    """The name and shape of every tensor that the model needs."""
    hidden, inner = config.hidden_size, config.intermediate_size
    queries, keys = config.num_attention_heads * config.head_dim, config.num_key_value_heads * config.head_dim
    ends = {
        "embed_tokens": (config.vocab_size, hidden),
        "lm_head": (config.vocab_size, hidden),
        "q_proj": (queries, hidden),
        "k_proj": (keys, hidden),
        "v_proj": (keys, hidden),
        "o_proj": (hidden, queries),
        "gate_proj": (inner, hidden),
        "up_proj": (inner, hidden),
        "down_proj": (hidden, inner),
        **dict.fromkeys(("norm", "input_layernorm", "post_attention_layernorm"), (hidden,)),
    }
    return {name: ends[name.split(".")[-2]] for sources in parts_of(config).values() for name in sources}


def random_weights(config: LlamaConfig, seed: int, dtype: torch.dtype) -> Read:
    """Norms are ones; other weights are normal with deviation `initializer_range`, equal on every machine for a seed.

    Args:
        config: shape and deviation.
        seed: determines the weights.
        dtype: the dtype in which they are drawn.
    """
    shapes = hf_shapes(config)
    names = list(shapes)

    def draw(name: str) -> torch.Tensor:
        if len(shapes[name]) == 1:
            return torch.ones(shapes[name], dtype=dtype)
        # Each tensor has a generator of its own, so that they can be drawn in parallel.
        generator = torch.Generator().manual_seed(seed * len(names) + names.index(name))
        return torch.empty(shapes[name], dtype=dtype).normal_(0, config.initializer_range, generator=generator)

    with ThreadPoolExecutor() as pool:
        drawn = dict(zip(names, pool.map(draw, names), strict=True))
    return drawn.pop
