"""Weights of a folder in the layout of Hugging Face: *.safetensors, in one file or several with an index."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open

from examples.llama.config import LlamaConfig
from examples.llama.weights import Read, hf_shapes
from pyxla import PyxlaError
from pyxla.errors import mismatch

INDEX = "model.safetensors.index.json"


def folder_weights(folder: Path, config: LlamaConfig) -> Read:
    """The tensors of a folder, in one file or several with an index. Checks that all exist; reads none yet.

    Args:
        folder: contains *.safetensors.
        config: determines the tensors and their shapes.

    Raises:
        PyxlaError: a file or tensor is missing or cannot be read, or has another shape; the message names it.
    """
    file_of = {}
    for path in _files(folder):
        with _open(path) as file:
            for name in file.keys():  # noqa: SIM118 - a safe_open, not a dict
                file_of[name] = path
    for name, shape in hf_shapes(config).items():
        if name not in file_of:
            raise PyxlaError(
                mismatch("llama", name, f"a tensor of shape {shape} in {folder}", "none"),
                "the folder is incomplete, or config.json is of another model",
            )
        with _open(file_of[name]) as file:
            got = tuple(file.get_slice(name).get_shape())
        if got != shape:
            raise PyxlaError(
                mismatch("llama", name, f"shape {shape}", got), "the tensor and config.json are of different models"
            )

    def read(name: str) -> torch.Tensor:
        with _open(file_of[name]) as file:
            return file.get_tensor(name)

    return read


def _files(folder: Path) -> list[Path]:
    """The files in the index, or all files."""
    index = folder / INDEX
    if index.is_file():
        try:
            paths = [folder / name for name in sorted(set(json.loads(index.read_text())["weight_map"].values()))]
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            got = f"{type(error).__name__}: {error}"
            raise PyxlaError(mismatch("llama", "weights", f"a weight_map in {index}", got)) from error
    else:
        paths = sorted(folder.glob("*.safetensors"))
    missing = [path for path in paths if not path.is_file()]
    if missing or not paths:
        got = f"no {missing[0].name}" if missing else "no *.safetensors"
        raise PyxlaError(
            mismatch("llama", "weights", f"safetensors files in {folder}", got), "download the whole folder"
        )
    return paths


def _open(path: Path) -> safe_open:
    try:
        return safe_open(path, framework="pt")
    except (SafetensorError, OSError) as error:
        raise PyxlaError(
            mismatch("llama", "weights", f"a whole safetensors file {path}", error), "download it again"
        ) from error
