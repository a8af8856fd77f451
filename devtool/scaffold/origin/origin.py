"""What the templates need of the code that a new op is made from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from devtool.scaffold.origin.parameters import Binding
from devtool.scaffold.schema import Schema


@dataclass(frozen=True)
class Origin:
    """Code that was read, and the op that it makes.

    Attributes:
        what: "scale.cu:12: launch_scale", for a comment.
        schema: of the op.
        templates: the folder of templates that differ from the stub's.
        outcome: what the test of the fresh folder shows.
        notes: what the author has to decide; each becomes a mark.
        copies: files to copy -> their names in the folder.
        bindings: what each parameter of the launch function or kernel gets; empty for a Python function.
        dtypes: tensor or, for a result, its number -> dtype, where it is not the first tensor's.
        anchor_dtypes: of the first tensor.
        code: what these templates alone need.
    """

    what: str
    schema: Schema
    templates: str
    outcome: str
    notes: tuple[str, ...]
    copies: Mapping[Path, str] = field(default_factory=dict)
    bindings: tuple[Binding, ...] = ()
    dtypes: Mapping[str | int, str] = field(default_factory=dict)
    anchor_dtypes: tuple[str, ...] = ("float32", "bfloat16", "float16")
    code: Any = None

    @property
    def sizes(self) -> list[str]:
        """The members of Params for sizes, besides element_count."""
        used = {binding.size for binding in self.bindings}
        return [size for size in ("row_count", "column_count") if size in used]
