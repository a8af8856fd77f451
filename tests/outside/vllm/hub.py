"""Tiny models under the names in vLLM's tests, in a folder as huggingface_hub's cache: the tests find them offline."""

from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from tests.vllm.models import SIZES

_VOCABULARY = 2048
# Where a tokenizer sets no other: the beginning, the end, padding and what a reasoning model thinks between.
_SPECIAL = ("<s>", "</s>", "<pad>", "<think>", "</think>")
_ROWS, _LENGTH = 16, 128
_REVISION = "0" * 40
_TEMPLATE = "{% for message in messages %}{{ message['role'] }}: {{ message['content'] }}\n{% endfor %}assistant:"


class Model(NamedTuple):
    """A model in place of one in a test.

    Attributes:
        config: its configuration's class in transformers.
        longest: positions.
        options: of the configuration, beside SIZES.
        begins: whether its tokenizer begins a prompt with <s>.
        ends: how likely each token is to be followed by </s>; 0: a text has no end.
    """

    config: str
    longest: int
    options: dict
    begins: bool = True
    ends: float = 0.0


_GEMMA2 = {"head_dim": 16, "query_pre_attn_scalar": 16, "hidden_act": "gelu_pytorch_tanh"}
# vLLM's, where a test names no model.
DEFAULT = "Qwen/Qwen3-0.6B"
MODELS = {
    "meta-llama/Llama-3.2-1B": Model("LlamaConfig", 1024, {"tie_word_embeddings": True}),
    "meta-llama/Llama-3.2-1B-Instruct": Model("LlamaConfig", 8192, {"tie_word_embeddings": True}),
    "meta-llama/Meta-Llama-3.1-8B-Instruct": Model("LlamaConfig", 1024, {}),
    "facebook/opt-125m": Model("OPTConfig", 2048, {"ffn_dim": 128, "word_embed_proj_dim": 64}, ends=0.02),
    "distilbert/distilgpt2": Model("GPT2Config", 1024, {"n_positions": 1024, "n_embd": 64, "n_layer": 2, "n_head": 4}),
    "google/gemma-2-2b-it": Model("Gemma2Config", 8192, _GEMMA2 | {"sliding_window": 1024}),
    "mistralai/Ministral-8B-Instruct-2410": Model("MistralConfig", 1024, {"sliding_window": 512}),
    "Qwen/Qwen2.5-1.5B-Instruct": Model("Qwen2Config", 2048, {}, begins=False),
    "Qwen/Qwen3-1.7B": Model("Qwen3Config", 8192, {"head_dim": 16}, begins=False),
    "deepseek-ai/DeepSeek-R1-Distill-Qwen-1.5B": Model("Qwen2Config", 8192, {}, begins=False),
    "Qwen/Qwen1.5-7B": Model("Qwen2Config", 32768, {}, begins=False),
    DEFAULT: Model("Qwen3Config", 8192, {"head_dim": 16}, begins=False),
}


def make(cache: Path, names: Iterable[str], texts: list[str], steps: int) -> None:
    """Makes models that are not in the cache yet.

    Args:
        cache: the folder, as HF_HUB_CACHE.
        names: some of MODELS.
        texts: what tokenizer and weights are fitted to, so that the models close quotes and end words.
        steps: of the optimizer.
    """
    missing = [name for name in names if not _folder(cache, name).is_dir()]
    if not missing:
        return
    tokenizer = _tokenizer(texts)
    tokens = [token for text in texts for token in tokenizer.encode(text).ids]
    for name in missing:
        model = _fitted(MODELS[name], tokens, steps)
        folder = _folder(cache, name)
        part = folder.with_name("part")
        model.save_pretrained(part)
        _wrapped(tokenizer, MODELS[name].begins).save_pretrained(part)
        reference = folder.parent.parent / "refs/main"
        reference.parent.mkdir(parents=True, exist_ok=True)
        reference.write_text(_REVISION)
        part.rename(folder)


def _folder(cache: Path, name: str) -> Path:
    return cache / f"models--{name.replace('/', '--')}" / "snapshots" / _REVISION


def _tokenizer(texts: list[str]):
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    options = {"special_tokens": list(_SPECIAL), "initial_alphabet": letters, "show_progress": False}
    tokenizer.train_from_iterator(texts, trainers.BpeTrainer(vocab_size=_VOCABULARY, **options))
    return tokenizer


def _wrapped(tokenizer, begins: bool):
    from tokenizers import Tokenizer, processors
    from transformers import PreTrainedTokenizerFast

    own = Tokenizer.from_str(tokenizer.to_str())
    if begins:
        own.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 0)])
    tokens = {"bos_token": "<s>", "eos_token": "</s>", "pad_token": "<pad>"}
    # Without token_type_ids, which these models do not take.
    inputs = ["input_ids", "attention_mask"]
    fast = PreTrainedTokenizerFast(tokenizer_object=own, model_input_names=inputs, **tokens)
    fast.chat_template = _TEMPLATE
    return fast


def _fitted(model: Model, tokens: list[int], steps: int):
    import torch
    import transformers

    sizes = {"vocab_size": _VOCABULARY, "max_position_embeddings": model.longest, "initializer_range": 0.02}
    config = getattr(transformers, model.config)(**(SIZES | sizes | model.options))
    torch.manual_seed(0)
    torch.set_num_threads(1)  # the same weights on any number of cores, and no waiting where others use them
    made = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="eager")
    optimizer = torch.optim.AdamW(made.parameters(), lr=5e-3)
    data = torch.tensor(tokens)
    for _ in range(steps):
        starts = torch.randint(0, len(data) - _LENGTH, (_ROWS,))
        batch = torch.stack([data[start : start + _LENGTH] for start in starts])
        ends = torch.rand(batch.shape) < model.ends
        loss = made(batch, labels=batch.masked_fill(ends, SIZES["eos_token_id"])).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    # The dtype of most weights on the hub, which vLLM takes where a test asks for none.
    return made.to(torch.bfloat16)
