"""Text to tokens and back: the tokenizer of a weights folder, or bytes where weights are random."""

from __future__ import annotations

from pathlib import Path

from pyxla import PyxlaError
from pyxla.errors import mismatch


class Bytes:
    """A token is a byte of UTF-8; tokens above 255, which random weights also generate, are shown as `<300>`."""

    def encode(self, text: str) -> list[int]:
        """The text's bytes."""
        return list(text.encode())

    def decode(self, tokens: list[int]) -> str:
        """Printable ASCII unchanged, every other token as `<number>`."""
        return "".join(chr(token) if 32 <= token < 127 else f"<{token}>" for token in tokens)


class FromFolder:
    """A folder's tokenizer.json.

    Args:
        folder: a weights folder.

    Raises:
        PyxlaError: there is no tokenizer.json, or it cannot be read.
    """

    def __init__(self, folder: Path):
        import tokenizers

        path = folder / "tokenizer.json"
        try:
            self._tokenizer = tokenizers.Tokenizer.from_file(str(path))
        except Exception as error:  # tokenizers raises nothing more specific
            raise PyxlaError(
                mismatch("llama", "tokenizer", f"a readable {path}", error), "download the whole folder"
            ) from error

    def encode(self, text: str) -> list[int]:
        """The text's tokens, with those that the tokenizer puts around a text."""
        return self._tokenizer.encode(text).ids

    def decode(self, tokens: list[int]) -> str:
        """The text, without special tokens."""
        return self._tokenizer.decode(tokens)
