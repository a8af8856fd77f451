"""Tiny models with seeded weights, in folders as vLLM and transformers load them; no download."""

from pathlib import Path
from typing import NamedTuple

PAD, VOCABULARY, LONGEST = 2, 288, 256
SIZES = {
    "vocab_size": VOCABULARY,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "bos_token_id": 0,
    "eos_token_id": 1,
    "pad_token_id": PAD,
    # Far from transformers' 0.02, so that the likeliest token is so by far.
    "initializer_range": 0.2,
}
LLAMA3_ROPE = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
# Factors of the 8 pairs of a head. A step in which one token is past the original length takes the long ones for all of
# its tokens, on vLLM's own devices too; so all prompts of the tests are longer.
LONGROPE = {
    "type": "longrope",
    "short_factor": [1.0 + pair / 8 for pair in range(8)],
    "long_factor": [2.0 + pair for pair in range(8)],
}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 128}

EXPERTS = {"num_experts": 8, "num_experts_per_tok": 3, "moe_intermediate_size": 48, "norm_topk_prob": True}


class Architecture(NamedTuple):
    """An architecture.

    Attributes:
        config: its configuration's class in transformers.
        why: what it has that the others lack.
        options: of the configuration, beside SIZES.
    """

    config: str
    why: str
    options: dict


ARCHITECTURES = {
    "llama": Architecture(
        "LlamaConfig", "biases, tied embeddings", {"attention_bias": True, "tie_word_embeddings": True}
    ),
    "llama3_rope": Architecture(
        "LlamaConfig",
        "LLaMA 3's angles, as many heads of keys as of queries",
        {"rope_scaling": LLAMA3_ROPE, "rope_theta": 500000.0, "num_key_value_heads": 4},
    ),
    "mistral": Architecture("MistralConfig", "a window in every layer", {"sliding_window": 24}),
    "qwen2_yarn": Architecture("Qwen2Config", "YaRN's angles, biases of q, k and v", {"rope_scaling": YARN}),
    "qwen3": Architecture("Qwen3Config", "norms of q and k, heads wider than the model", {"head_dim": 32}),
    "gemma": Architecture(
        "GemmaConfig", "GEGLU, scaled embeddings", {"head_dim": 16, "hidden_activation": "gelu_pytorch_tanh"}
    ),
    "gemma2": Architecture(
        "Gemma2Config",
        "soft caps of attention and logits, a window in every other layer",
        {"head_dim": 16, "sliding_window": 32, "query_pre_attn_scalar": 16, "hidden_act": "gelu_pytorch_tanh"},
    ),
    "gemma3": Architecture(
        "Gemma3TextConfig",
        "two kinds of angles",
        {"head_dim": 16, "sliding_window": 32, "query_pre_attn_scalar": 16, "sliding_window_pattern": 2},
    ),
    "phi3_longrope": Architecture(
        "Phi3Config",
        "one weight for q, k and v, one for gate and up; longrope's angles",
        {"rope_scaling": LONGROPE, "original_max_position_embeddings": 3},
    ),
    "opt": Architecture(
        "OPTConfig",
        "LayerNorm, learned positions",
        {"ffn_dim": 128, "word_embed_proj_dim": 64, "init_std": 0.2},
    ),
    "gpt2": Architecture(
        "GPT2Config", "transposed weights", {"n_positions": 512, "n_embd": 64, "n_layer": 2, "n_head": 4}
    ),
    "gpt_neox": Architecture("GPTNeoXConfig", "attention next to the MLP, angles for a quarter of a head", {}),
    "bloom": Architecture("BloomConfig", "ALiBi", {"n_layer": 2, "n_head": 4}),
    "stablelm": Architecture("StableLmConfig", "LayerNorm with angles", {}),
    "olmo2": Architecture("Olmo2Config", "norms after attention and MLP", {}),
    "granite": Architecture("GraniteConfig", "multipliers", {"residual_multiplier": 0.5, "logits_scaling": 2.0}),
    "cohere": Architecture("CohereConfig", "interleaved pairs of the angles", {}),
    "mixtral": Architecture(
        "MixtralConfig", "experts, weights of two renormalised", {"num_local_experts": 4, "num_experts_per_tok": 2}
    ),
    "qwen2_moe": Architecture(
        "Qwen2MoeConfig",
        "an expert that sees every token, dense layers between",
        EXPERTS | {"shared_expert_intermediate_size": 96, "decoder_sparse_step": 2},
    ),
    "qwen3_moe": Architecture("Qwen3MoeConfig", "many small experts", EXPERTS | {"head_dim": 16, "num_experts": 16}),
    "gpt_oss": Architecture(
        "GptOssConfig",
        "sinks, experts with biases, gates and factors that take turns",
        {
            "head_dim": 16,
            "num_local_experts": 4,
            "num_experts_per_tok": 2,
            "sliding_window": 24,
            # vLLM 0.11.0 does not know "truncate" and always does so.
            "rope_scaling": YARN | {"beta_fast": 32.0, "beta_slow": 1.0, "truncate": True},
        },
    ),
    "olmoe": Architecture(
        "OlmoeConfig", "weights of the experts as the router gives them", {"num_experts": 8, "num_experts_per_tok": 3}
    ),
}


def make(name: str, folder: Path, **changes) -> Path:
    """Makes a model of ARCHITECTURES, float32, and its tokenizer: a byte is a token.

    Args:
        name: the architecture.
        folder: where its folder goes.
        changes: of its configuration.

    Returns:
        The model's folder.
    """
    import torch
    import transformers

    config, _, options = ARCHITECTURES[name]
    made = getattr(transformers, config)(**(SIZES | options | changes))
    made.torch_dtype = torch.float32
    torch.manual_seed(0)
    model = transformers.AutoModelForCausalLM.from_config(made).float()
    with torch.no_grad():
        # Biases, which transformers makes zero.
        for parameter in model.parameters():
            if parameter.abs().max() == 0:
                parameter.normal_(0, 0.05)
    model.save_pretrained(folder / name)
    _tokenizer().save_pretrained(folder / name)
    return folder / name


def _tokenizer():
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {"<s>": 0, "</s>": 1, "<pad>": PAD} | {letter: 3 + i for i, letter in enumerate(alphabet)}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>", pad_token="<pad>")
    fast.chat_template = "{% for message in messages %}{{ message['content'] }}{% endfor %}"
    return fast


def greedy(folder: Path, prompts: list[list[int]], count: int, cache=None) -> list[list[int]]:
    """The likeliest tokens after each prompt, by transformers in float32.

    Args:
        folder: of the model.
        prompts: the prompts.
        count: of the tokens.
        cache: a class of transformers' caches; None: its own choice.
    """
    import torch
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    found = []
    for prompt in prompts:
        ids = torch.tensor([prompt])
        tokens = model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=count,
            min_new_tokens=count,
            do_sample=False,
            eos_token_id=None,
            pad_token_id=PAD,
            past_key_values=cache and cache(),
        )
        found.append(tokens[0, len(prompt) :].tolist())
    return found


def logits_of(folder: Path, tokens: list[int]):
    """[tokens, vocabulary]; the logits after each token, by transformers in float32."""
    import torch
    from transformers import AutoModelForCausalLM

    with torch.no_grad():
        return (
            AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()(torch.tensor([tokens])).logits[0]
        )
