"""A float8 cache: the tokens of transformers with keys and values rounded to float8, with the checkpoint's scales."""

import json
import shutil

import pytest

from tests.vllm.engine import BLOCK_BYTES, MARKS, MODES, engine, generate, prompts_of, runner_of
from tests.vllm.models import greedy

pytestmark = MARKS
# Of the first layer, then of the second; powers of two and others, for keys and values.
SCALES = [(0.5, 0.03), (0.011, 2.0)]
# A prompt shorter than a block, one of several, and one that is computed in parts.
PROMPTS = (5, 37, 70)


def with_scales(folder, to):
    """A copy of a model's checkpoint with scales, as compressed-tensors writes them."""
    import torch
    from safetensors.torch import load_file, save_file

    shutil.copytree(folder, to)
    scheme = {"num_bits": 8, "type": "float", "strategy": "tensor", "symmetric": True, "dynamic": False}
    config = json.loads((to / "config.json").read_text())
    config["quantization_config"] = {"quant_method": "compressed-tensors", "kv_cache_scheme": scheme}
    (to / "config.json").write_text(json.dumps(config))
    weights = load_file(to / "model.safetensors")
    for layer, scales in enumerate(SCALES):
        for name, scale in zip("kv", scales, strict=True):
            weights[f"model.layers.{layer}.self_attn.{name}_proj.output_scale"] = torch.tensor([scale])
    save_file(weights, to / "model.safetensors", metadata={"format": "pt"})
    return to


def rounding(scales):
    """A cache of transformers that rounds keys and values to float8.

    Args:
        scales: of keys and values, for each layer.
    """
    import torch
    from transformers import DynamicCache

    def rounded(tensor, scale):
        return (tensor / scale).clamp(-448, 448).to(torch.float8_e4m3fn).float() * scale

    class Rounding(DynamicCache):
        def update(self, keys, values, layer, *others):
            scale = scales[layer]
            return super().update(rounded(keys, scale[0]), rounded(values, scale[1]), layer, *others)

    return Rounding


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("scaled", [True, False], ids=["scales of the checkpoint", "no scales"])
def test_tokens_are_those_of_a_rounded_cache(folder_of, tmp_path, scaled, mode):
    folder = folder_of("llama")
    # A byte for a number in the place of four.
    options = {"kv_cache_dtype": "fp8", "kv_cache_memory_bytes": 64 * BLOCK_BYTES // 4}
    llm = engine(with_scales(folder, tmp_path / "scaled") if scaled else folder, mode, **options)
    prompts = prompts_of(*PROMPTS)
    expected = greedy(folder, prompts, 20, rounding(SCALES if scaled else [(1, 1), (1, 1)]))
    assert generate(llm, prompts, 20) == expected
    assert expected != greedy(folder, prompts, 20), "the prompts do not show that keys and values are rounded"
    assert {(str(cache.dtype), cache.shape[1]) for cache in runner_of(llm).caches} == {("torch.float8_e4m3fn", 64)}
