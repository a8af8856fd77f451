"""transformers' LlamaForCausalLM with the decoder's weights: the independent reference of examples/llama."""

import os

# No request to a hub.
os.environ["HF_HUB_OFFLINE"] = "1"

import torch

from examples.llama.config import LlamaConfig
from examples.llama.weights import hf_shapes, random_weights


def tensors(config: LlamaConfig, dtype: torch.dtype = torch.float32, seed: int = 0) -> dict[str, torch.Tensor]:
    """Random weights by their Hugging Face names."""
    read = random_weights(config, seed, dtype)
    return {name: read(name) for name in hf_shapes(config)}


def reference(config: LlamaConfig, weights: dict[str, torch.Tensor], dtype: torch.dtype = torch.float32):
    """The reference model with these weights."""
    import transformers

    names = set(transformers.LlamaConfig().to_dict()) & set(vars(config))
    theirs = transformers.LlamaConfig(
        **{name: getattr(config, name) for name in names - {"eos_token_id"}},
        eos_token_id=None,
        rope_scaling=config.rope,
    )
    model = transformers.LlamaForCausalLM(theirs).eval()
    state = dict(weights)
    if config.tie_word_embeddings:
        state["lm_head.weight"] = state["model.embed_tokens.weight"]
    model.load_state_dict(state)
    return model.to(dtype)


@torch.no_grad()
def logits(model, tokens: list[int], cache=None) -> torch.Tensor:
    """[tokens, vocabulary] of one text; `cache` is one of transformers'."""
    return model(torch.tensor([tokens]), past_key_values=cache).logits[0]


def float8_cache():
    """A cache of transformers that returns keys and values rounded to float8."""
    import transformers

    class Float8Cache(transformers.DynamicCache):
        def update(self, keys, values, *arguments, **named):
            stored = [t.clamp(-448, 448).to(torch.float8_e4m3fn).to(t.dtype) for t in (keys, values)]
            return super().update(*stored, *arguments, **named)

    return Float8Cache()
