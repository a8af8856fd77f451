"""Weights, config and tokenizer of examples/llama from a folder written by transformers, complete or broken."""

import dataclasses
import json
import re
import shutil

import pytest
import safetensors.torch
import torch
import torch_xla

from examples.llama.checkpoint import INDEX, folder_weights
from examples.llama.config import CONFIGS, DTYPES, LlamaConfig, named, read_config
from examples.llama.generate import generate
from examples.llama.runner import ModelRunner
from examples.llama.tokenizer import Bytes, FromFolder
from examples.llama.weights import hf_shapes, load, random_weights
from pyxla import ArgumentError, PyxlaError
from tests.llama_reference import reference, tensors

DEVICE = torch_xla.device()
TINY = CONFIGS["tiny"]
ONE = "model.safetensors"
UP = "model.layers.0.mlp.up_proj.weight"


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """The tiny model saved by transformers: in one file, and in several."""
    folders = {name: tmp_path_factory.mktemp(name) for name in ("one", "several")}
    model = reference(TINY, tensors(TINY))
    model.save_pretrained(folders["one"])
    model.save_pretrained(folders["several"], max_shard_size="200KB")
    return folders


@pytest.fixture
def folder(saved, tmp_path):
    """A copy of the folder, to break."""
    return shutil.copytree(saved["one"], tmp_path / "weights")


@pytest.mark.parametrize("kind", ["one", "several"])
def test_a_folder_that_transformers_saved(kind, saved):
    folder = saved[kind]
    assert (folder / INDEX).is_file() == (kind == "several") == (len(list(folder.glob("*.safetensors"))) > 1)
    config = read_config(folder)
    same = {f.name for f in dataclasses.fields(LlamaConfig)} - {"rope", "eos_token_id", "initializer_range"}
    assert {name: getattr(config, name) for name in same} == {name: getattr(TINY, name) for name in same}
    assert config.rope["rope_type"] == "default"
    read, random_read = folder_weights(folder, config), random_weights(TINY, 0, torch.float32)
    assert all(torch.equal(read(name), random_read(name)) for name in hf_shapes(TINY))


def test_tokens_of_a_folder_are_those_of_the_same_weights_at_random(saved):
    outputs = []
    for read in (folder_weights(saved["several"], TINY), random_weights(TINY, 0, torch.float32)):
        runner = ModelRunner(load(TINY, read, torch.float32, DEVICE), max_seqs=1, max_length=40)
        outputs += generate(runner, [list(b"Once upon a time")], 20)
    assert outputs[0] == outputs[1]


def test_random_weights_go_by_the_seed():
    first, same, other = (random_weights(TINY, seed, torch.float32)(UP) for seed in (0, 0, 1))
    assert torch.equal(first, same) and not torch.equal(first, other)
    assert abs(first.std().item() / TINY.initializer_range - 1) < 0.02


def edited(folder, change):
    """The folder with its tensors changed."""
    weights = safetensors.torch.load_file(folder / ONE)
    change(weights)
    safetensors.torch.save_file(weights, folder / ONE)


def edit_config(folder, **changes):
    path = folder / "config.json"
    values = json.loads(path.read_text()) | changes
    path.write_text(json.dumps({name: v for name, v in values.items() if v is not None}))


BROKEN = {
    "missing tensor": (
        lambda f: edited(f, lambda w: w.pop(UP)),
        rf"llama: {UP}: expected a tensor of shape \(160, 64\) in \S+, got none",
    ),
    "misshaped tensor": (
        lambda f: edited(f, lambda w: w.update({UP: torch.zeros(160, 32)})),
        rf"llama: {UP}: expected shape \(160, 64\), got \(160, 32\)",
    ),
    "no file": (
        lambda f: (f / ONE).unlink(),
        "llama: weights: expected safetensors files in .*, got no \\*.safetensors",
    ),
    "no shard": (
        lambda f: (f / INDEX).write_text(json.dumps({"weight_map": {UP: "model-1.safetensors"}})),
        "llama: weights: expected safetensors files in .*, got no model-1.safetensors",
    ),
    "broken index": (
        lambda f: (f / INDEX).write_text("{}"),
        "llama: weights: expected a weight_map in .*, got KeyError",
    ),
    "cut short": (
        lambda f: (f / ONE).write_bytes((f / ONE).read_bytes()[:5000]),
        "llama: weights: expected a whole safetensors file .*, got ",
    ),
    "no config": (
        lambda f: (f / "config.json").unlink(),
        "llama: config: expected a readable .*, got FileNotFoundError",
    ),
    "config cut short": (
        lambda f: (f / "config.json").write_text('{"vocab'),
        "llama: config: expected a readable .*, got JSONDecodeError",
    ),
    "config of another kind": (lambda f: (f / "config.json").write_text("[]"), "llama: config: expected an object in"),
    "another architecture": (
        lambda f: edit_config(f, model_type="gpt2"),
        "llama: model_type: expected llama in .*, got gpt2",
    ),
    "no sizes": (
        lambda f: edit_config(f, hidden_size=None),
        "llama: hidden_size: expected a count of 1 or more in .*, got",
    ),
    "biases": (lambda f: edit_config(f, attention_bias=True), "llama: attention_bias: expected False in .*, got True"),
    "other rotations": (
        lambda f: edit_config(f, rope_parameters={"rope_type": "yarn", "rope_theta": 1e4, "factor": 2.0}),
        "llama: rope_type: expected default or llama3 in .*, got yarn",
    ),
    "another width": (
        lambda f: edit_config(f, intermediate_size=128),
        r"llama: model.layers.0.mlp.gate_proj.weight: expected shape \(128, 64\), got \(160, 64\)",
    ),
}


@pytest.mark.parametrize("what", BROKEN)
def test_broken_folders(what, folder):
    break_it, message = BROKEN[what]
    break_it(folder)
    with pytest.raises(PyxlaError) as caught:
        folder_weights(folder, read_config(folder))
    assert re.match(message, caught.value.message), caught.value.message


def test_older_configs(folder):
    """With rope_theta and rope_scaling at the top level, no head_dim, and one end token or several."""
    scaling = {"type": "llama3", "factor": 8.0}
    edit_config(folder, rope_parameters=None, rope_theta=5e5, rope_scaling=scaling, head_dim=None, eos_token_id=[1, 2])
    config = read_config(folder)
    assert (config.rope_theta, config.rope["rope_type"], config.rope["factor"]) == (5e5, "llama3", 8.0)
    assert (config.head_dim, config.eos_token_id) == (16, (1, 2))


def test_names_that_do_not_exist():
    with pytest.raises(ArgumentError, match="llama: config: expected tiny or llama-3-8b, got huge"):
        named("huge", "config", CONFIGS)
    with pytest.raises(ArgumentError, match="llama: dtype: expected float32 or bfloat16 or float16, got int8"):
        named("int8", "dtype", DTYPES)


def test_the_8b_config_is_llama_3_8b():
    """8.03 billion weights."""
    shapes = hf_shapes(CONFIGS["llama-3-8b"]).values()
    assert sum(torch.Size(shape).numel() for shape in shapes) == 8_030_261_248


def test_bytes_are_tokens():
    assert Bytes().decode(Bytes().encode("Hé!")) == "H<195><169>!" and Bytes().decode([65, 300]) == "A<300>"


def test_tokenizer_of_a_folder(folder):
    import tokenizers

    with pytest.raises(PyxlaError, match=r"llama: tokenizer: expected a readable \S+tokenizer.json, got "):
        FromFolder(folder)
    words = {"once": 0, "upon": 1, "a": 2, "time": 3, "?": 4}
    made = tokenizers.Tokenizer(tokenizers.models.WordLevel(words, unk_token="?"))
    made.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    made.save(str(folder / "tokenizer.json"))
    tokenizer = FromFolder(folder)
    assert tokenizer.encode("once upon a midnight") == [0, 1, 2, 4]
    assert tokenizer.decode([3, 2]) == "time a"
