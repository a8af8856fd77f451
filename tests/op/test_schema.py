"""The schema that an op gets from its typed function, and the functions that are rejected."""

import pytest
import torch
from torch import Tensor

from pyxla.errors import DefinitionError
from pyxla.op.schema import Schema


def with_default(default):
    def op(x: Tensor, value: type(default) = default) -> Tensor: ...

    return op


@pytest.mark.parametrize(
    "default", [0.0, -0.0, 1e300, 2.2250738585072014e-308, 2**63 - 1, -(2**63) + 1, "a'b", "ü", True]
)
def test_a_default_comes_back_as_written(default):
    schema = Schema.infer(with_default(default), ())
    assert repr(schema.defaults["value"]) == repr(default)


@pytest.mark.parametrize("default", [5e-324, -1e-310, float("inf"), float("nan"), 2**63, 'a"b', "a\nb"])
def test_a_default_that_torch_cannot_read(default):
    """torch itself would raise `IndexError: stod`, or point into a generated text."""
    with pytest.raises(DefinitionError, match=r"op: schema: expected defaults that torch's schemas can hold, got \("):
        Schema.infer(with_default(default), ())


def test_a_default_that_torch_would_change():
    with pytest.raises(
        DefinitionError, match=r"op: value: expected a default .*, got 'a\\\\b'\n\nhint: strings without"
    ):
        Schema.infer(with_default("a\\b"), ())


def unannotated(x): ...
def nothing(x: Tensor) -> None: ...
def number(x: Tensor) -> int: ...
def lists(x: list[Tensor]) -> Tensor: ...
def optional(x: Tensor | None) -> None: ...
def nowhere(n: int) -> Tensor: ...


@pytest.mark.parametrize(
    ("function", "mutates", "message"),
    [
        (unannotated, (), "unannotated: signature: expected annotations that torch.library accepts, got "),
        (nothing, (), "nothing: results: expected a Tensor or an argument in `mutates`, got neither"),
        (number, (), "number: results: expected Tensors, got int"),
        (lists, (), "lists: x: expected one of Tensor, "),
        (optional, ("x",), "optional: x: expected a Tensor that is always there, as it is mutated, got "),
        (nowhere, (), "nowhere: arguments: expected a Tensor or a torch.device, got neither"),
    ],
)
def test_a_function_that_is_no_op(function, mutates, message):
    with pytest.raises(DefinitionError) as caught:
        Schema.infer(function, mutates)
    assert caught.value.message.startswith(message)


def two(x: Tensor, cache: Tensor) -> tuple[Tensor, Tensor]: ...
def one(x: Tensor) -> Tensor: ...


def test_results_have_the_names_that_the_author_gave():
    schema = Schema.infer(two, ("cache",), ("weights", "ids"))
    assert schema.text == "(Tensor x, Tensor(a1!) cache) -> (Tensor weights, Tensor ids)"
    assert (schema.named_results, schema.result_names) == (("weights", "ids"), ["weights", "ids"])
    assert schema.functional_text() == "(Tensor x, Tensor cache) -> (Tensor, Tensor weights, Tensor ids)"
    assert torch._C.parse_schema(f"xla_gpu::two{schema.functional_text()}").returns[2].name == "ids"
    assert Schema.infer(one, (), ("y",)).text == "(Tensor x) -> Tensor y"
    assert (Schema.infer(two, ()).named_results, Schema.infer(two, ()).result_names) == ((), ["result 0", "result 1"])


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (("weights",), "two: results: expected a name for each of 2 results, got weights\n\nhint: results=[...] of"),
        (("x", "ids"), "two: results: expected names of their own, as Python writes names, got 'x'\n\nhint: "),
        (("ids", "ids"), "two: results: expected names of their own, as Python writes names, got 'ids'\n\nhint: "),
        (("ids", "class"), "two: results: expected names of their own, as Python writes names, got 'class'\n\nhint: "),
        (("ids", "a b"), "two: results: expected names of their own, as Python writes names, got 'a b'\n\nhint: "),
        (("ids", ""), "two: results: expected names of their own, as Python writes names, got ''\n\nhint: "),
    ],
)
def test_names_that_results_cannot_have(names, message):
    with pytest.raises(DefinitionError) as caught:
        Schema.infer(two, (), names)
    assert str(caught.value).startswith(message)


def test_sorts_the_arguments():
    def op(
        x: Tensor, cache: Tensor, weight: Tensor | None, sizes: list[int], eps: float = 1e-6
    ) -> tuple[Tensor, Tensor]: ...

    schema = Schema.infer(op, ("cache",))
    assert [a.name for a in schema.tensors] == ["x", "cache", "weight"]
    assert [(a.name, a.kind) for a in schema.attributes] == [("sizes", "int[]"), ("eps", "float")]
    assert [a.name for a in schema.mutated] == ["cache"]
    assert schema.result_count == 3
    assert (
        schema.functional_text()
        == "(Tensor x, Tensor cache, Tensor? weight, int[] sizes, float eps=1e-06) -> (Tensor, Tensor, Tensor)"
    )
    assert torch._C.parse_schema(f"xla_gpu::op{schema.functional_text()}")
