"""What hypothesis draws: a case of the op, or what the op's own cases.py draws, and changes to its arguments."""

from __future__ import annotations

import functools
import importlib
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from hypothesis import strategies as st

from pyxla.fuzz.variation import Variation, unchanged
from pyxla.testing import Case, cases_of
from pyxla.testing.case import cases_name
from pyxla.torch_ops.custom_op import CustomOp
from pyxla.torch_ops.implementation import Implementation

# Sizes at which loops, vectors and CTAs begin and end: 0, 1, primes, powers of two and one beside.
SIZES = (
    1,
    2,
    3,
    0,
    4,
    5,
    7,
    8,
    9,
    13,
    15,
    16,
    17,
    31,
    32,
    33,
    61,
    63,
    64,
    65,
    127,
    128,
    129,
    256,
    257,
    509,
    1021,
    1024,
)
# Elements of all tensors of a call: a case with more is not drawn, and sizes do not grow beyond it.
MOST_ELEMENTS = 1 << 15
# Each input is called with the values of so many seeds: to draw it takes longer than to call it.
SEEDS = 4
MOST_SEEDS = 1 << 12
FLOATS = (0.0, 1.0, -1.0, -0.0, 448.0, float("nan"), float("inf"), float("-inf"))
INTEGERS = (0, 1, -1, 2, 7, 127, 2**31 - 1, -(2**31))
ATTRIBUTES = {
    "int": (0, 1, -1, 2, 3, 17, 2**31, 2**62, -(2**63)),
    "float": (0.0, 1.0, -1.0, 1e-6, 0.5, 30.0, 1e-30, float("nan"), float("inf"), float("-inf")),
    "bool": (False, True),
    "str": ("", "none", "tanh"),
}

_Shapes = dict[str, tuple[int, ...]]


class Input(NamedTuple):
    """A drawn input: a case, and changes to its arguments."""

    case: Case
    variation: Variation

    def arguments(self) -> dict[str, Any]:
        """The arguments."""
        return self.variation.arguments(self.case)

    def with_values(self, more: int) -> Input:
        """This input with the values of a seed that is so much larger."""
        return Input(self.case, _replace(self.variation, seed=self.variation.seed + more))


# Made once: hypothesis spends much of an input's time on making and validating strategies.
_ONE_OF_TEN, _ONE_OF_FOUR = st.integers(0, 9), st.integers(0, 3)
_SEED = st.integers(0, MOST_SEEDS).map(lambda number: number * SEEDS)
_SIZE, _PLACES, _PLACE = st.sampled_from(SIZES), st.integers(1, 3), st.integers(0, MOST_ELEMENTS)


def inputs_of(op: CustomOp) -> st.SearchStrategy[Input]:
    """The strategy of an op's inputs.

    cases.py may narrow it: `fuzz(draw)`, or `<op>_fuzz(draw)`, returns a Case made of what it draws; FUZZ_KEEPS has the
    names of arguments that are not changed. An implementation's own module may have more of these names.

    Args:
        op: the op.
    """
    cases = sorted(cases_of(op), key=_elements)
    drawn, kept = _own(op)
    small = [case for case in cases if _elements(case) <= MOST_ELEMENTS]
    always_own = drawn is not None and not small
    small = small or cases[:1]
    linked = _linked_sizes(small)
    one_case, some_changes = st.sampled_from(small), st.lists(st.sampled_from(_CHANGES), max_size=3, unique=True)

    @st.composite
    def inputs(draw: Callable) -> Input:
        own = always_own or (drawn is not None and draw(_ONE_OF_FOUR) > 0)
        case = drawn(draw) if own else draw(one_case)
        variation = Variation(draw(_SEED))
        for change in draw(some_changes):
            variation = change(draw, op, case, variation, kept, linked)
        return Input(case, variation)

    return inputs()


def _own(op: CustomOp | Implementation) -> tuple[Callable | None, frozenset[str]]:
    kept: set[str] = set()
    if isinstance(op, Implementation):
        kept.update(getattr(importlib.import_module(op.package.module(op.library)), "FUZZ_KEEPS", ()))
        op = op.op
    module = importlib.import_module(op.package.module(op.library, "cases"))
    name = cases_name(op).replace("CASES", "FUZZ").lower()
    return getattr(module, name, None), frozenset(kept.union(getattr(module, "FUZZ_KEEPS", ())))


@functools.lru_cache(maxsize=4096)
def _elements(case: Case) -> int:
    return sum(value.numel() for value in case.arguments().values() if isinstance(value, torch.Tensor))


def _tensors(case: Case, variation: Variation, kept: frozenset[str]) -> dict[str, torch.Tensor]:
    return {n: t for n, t in variation.arguments(case).items() if isinstance(t, torch.Tensor) and n not in kept}


def _resize(draw, op, case, variation, kept, linked) -> Variation:
    """Another size of one dimension, and of the dimensions that are always as large; rarely of one of these alone."""
    tensors = _tensors(case, variation, kept)
    places = [(name, dim) for name, tensor in tensors.items() for dim in range(tensor.dim())]
    if not places:
        return variation
    place = draw(st.sampled_from(places))
    group = linked(_shapes(unchanged(case, variation.seed)), place) if draw(_ONE_OF_TEN) < 9 else {place}
    size = draw(_SIZE)
    shapes = {name: list(tensor.shape) for name, tensor in tensors.items()}
    for name, dim in group:
        if name in shapes:
            shapes[name][dim] = size
    changed = {name: tuple(shape) for name, shape in shapes.items() if tuple(shape) != tuple(tensors[name].shape)}
    before = sum(tensor.numel() for tensor in tensors.values())
    if sum(map(_count, shapes.values())) > max(MOST_ELEMENTS, before):
        return variation
    return _replace(variation, sizes=(*variation.sizes, *changed.items()))


def _set_values(draw, op, case, variation, kept, linked) -> Variation:
    """A few elements: zeros, infinities, NaN, denormals; for integers also values that other elements have."""
    tensors = {name: tensor for name, tensor in _tensors(case, variation, kept).items() if tensor.numel()}
    if not tensors:
        return variation
    found = []
    for _ in range(draw(_PLACES)):
        name = draw(st.sampled_from(sorted(tensors)))
        tensor = tensors[name]
        values: list[float] = [*(FLOATS if tensor.is_floating_point() else INTEGERS)]
        if tensor.is_floating_point():
            values += [torch.finfo(tensor.dtype).smallest_normal / 2, torch.finfo(tensor.dtype).smallest_normal]
        elif tensor.dtype == torch.bool:
            values = [False, True]
        else:
            limits = torch.iinfo(tensor.dtype)
            values = [min(max(value, limits.min), limits.max) for value in values] + sorted(
                set(tensor.flatten().tolist())
            )
        found.append((name, draw(_PLACE) % tensor.numel(), draw(st.sampled_from(values))))
    return _replace(variation, values=(*variation.values, *found))


def _set_attribute(draw, op, case, variation, kept, linked) -> Variation:
    """An attribute at an edge of its range, beyond it, or absent."""
    attributes = [a for a in op.schema.attributes if a.name not in kept and a.kind.rstrip("?") in ATTRIBUTES]
    if not attributes:
        return variation
    attribute = draw(st.sampled_from(attributes))
    values = [*ATTRIBUTES[attribute.kind.rstrip("?")], *([None] if attribute.kind.endswith("?") else [])]
    return _replace(variation, attributes=(*variation.attributes, (attribute.name, draw(st.sampled_from(values)))))


def _leave_out(draw, op, case, variation, kept, linked) -> Variation:
    """An optional tensor that is None."""
    there = unchanged(case, variation.seed)
    optional = [a.name for a in op.schema.tensors if a.kind.endswith("?") and there[a.name] is not None]
    changed = {name for name, *_ in (*variation.sizes, *variation.dtypes, *variation.values)}
    optional = [name for name in optional if name not in kept | changed]
    return _replace(variation, absent=(draw(st.sampled_from(optional)),)) if optional else variation


def _set_dtype(draw, op, case, variation, kept, linked) -> Variation:
    """One operand in a dtype that another operand or case has."""
    tensors = _tensors(case, variation, kept)
    if not tensors or variation.values:
        return variation
    name = draw(st.sampled_from(sorted(tensors)))
    dtypes = (torch.float32, torch.bfloat16, torch.float16, torch.int32, torch.int64)
    return _replace(variation, dtypes=((name, draw(st.sampled_from(dtypes))),))


# In the order in which they shrink: the first is the simplest.
_CHANGES = (_set_values, _resize, _set_attribute, _leave_out, _set_dtype)


def _replace(variation: Variation, **changes: Any) -> Variation:
    return Variation(**(vars(variation) | changes))


def _count(shape: Sequence[int]) -> int:
    return functools.reduce(lambda a, b: a * b, shape, 1)


def _linked_sizes(cases: Sequence[Case]) -> Callable[[_Shapes, tuple[str, int]], set[tuple[str, int]]]:
    """Which dimensions are as large as a given one in all cases whose tensors have the same ranks."""
    seen: dict[tuple, list[dict[tuple[str, int], int]]] = defaultdict(list)
    for case in cases:
        shapes = _shapes(case.arguments())
        seen[_ranks(shapes)].append({(n, d): size for n, shape in shapes.items() for d, size in enumerate(shape)})

    def linked(shapes: _Shapes, place: tuple[str, int]) -> set[tuple[str, int]]:
        alike = seen.get(_ranks(shapes), [])
        places = alike[0] if alike else {}
        return {place} | {p for p in places if all(sizes[p] == sizes.get(place) for sizes in alike)}

    return linked


def _shapes(arguments: dict[str, Any]) -> _Shapes:
    return {n: tuple(v.shape) for n, v in arguments.items() if isinstance(v, torch.Tensor)}


def _ranks(shapes: _Shapes) -> tuple:
    return tuple(sorted((name, len(shape)) for name, shape in shapes.items()))
