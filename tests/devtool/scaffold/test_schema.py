"""The schema parser of `devtool new-op`: what it accepts, as torch does, what it rejects, and where it points."""

import string

import pytest
from hypothesis import given
from hypothesis import strategies as st

from devtool.errors import MISUSED, DevtoolError
from devtool.scaffold.names import argument_problem
from devtool.scaffold.schema import Argument, Schema, parse_schema


def test_reads_every_kind():
    schema = parse_schema(
        "(Tensor? w, Tensor(a!) cache, Tensor x, bool flag, int[] d, float[] g, int n, int? k=None, "
        "float? f=2, bool b=True, str s='x', float e = -1e-3, Tensor? last=None) -> (Tensor, Tensor)"
    )
    assert schema.results == ("", "")
    assert schema.arguments == (
        Argument("w", "Tensor?"),
        Argument("cache", "Tensor", mutated=True),
        Argument("x", "Tensor"),
        Argument("flag", "bool"),
        Argument("d", "int[]"),
        Argument("g", "float[]"),
        Argument("n", "int"),
        Argument("k", "int?", has_default=True, default=None),
        Argument("f", "float?", has_default=True, default=2.0),
        Argument("b", "bool", has_default=True, default=True),
        Argument("s", "str", has_default=True, default="x"),
        Argument("e", "float", has_default=True, default=-1e-3),
        Argument("last", "Tensor?", has_default=True, default=None),
    )


@pytest.mark.parametrize(
    ("text", "results"),
    [
        ("(Tensor(a!) x) -> ()", ()),
        ("(Tensor x)->Tensor", ("",)),
        (" ( Tensor  x\n,int [ ]  y ) -> ( Tensor ) ", ("",)),
        ('(Tensor x, str s="a->b)") -> (Tensor,Tensor,Tensor)', ("", "", "")),
        ("(Tensor x) -> Tensor y", ("y",)),
        ("(Tensor gating, int k) -> (Tensor weights,Tensor\nids)", ("weights", "ids")),
    ],
)
def test_reads_results_and_odd_spacing(text, results):
    assert parse_schema(text).results == results


# In each text « and » enclose the mistake; if they enclose nothing, it is before the next character.
MISTAKES = [
    ("«»", "'('", "the end"),
    ("(Tensor x«»", "')' or ',' or '='", "the end"),
    ("«foo»(Tensor x) -> Tensor", "'('", "'foo'"),
    ("(Tensor x,«)» -> Tensor", "a name", "')'"),
    ("(Tensor x«;») -> Tensor", "')' or ',' or '='", "';'"),
    ("(Tensor x) -> Tensor y «z»", "the end", "'z'"),
    ("(Tensor x) -> (Tensor «x»)", "a name of its own", "'x'"),
    ("(Tensor x) -> (Tensor y, Tensor «y»)", "a name of its own", "'y'"),
    ("(Tensor x) -> (Tensor y, «Tensor»)", "a name for each result or for none", "none here"),
    ("(Tensor x) -> («Tensor», Tensor y)", "a name for each result or for none", "none here"),
    ("(Tensor x) -> Tensor «class»", "a name that is no keyword of Python", "'class'"),
    ("(Tensor x, «*», int y) -> Tensor", "an argument", "'*'"),
    ("(«Tenso» x) -> Tensor", "one of Tensor, Tensor?, int", "Tenso"),
    ("(Tensor x, «int[2]» y) -> Tensor", "one of Tensor, Tensor?, int", "int[2]"),
    ("(Tensor x, «SymInt» y) -> Tensor", "one of Tensor, Tensor?, int", "SymInt"),
    ("(Tensor x, int «x») -> Tensor", "a name of its own", "'x'"),
    ("(Tensor «class») -> Tensor", "a name that is no keyword of Python", "'class'"),
    ("(Tensor «template») -> Tensor", "a name that C++ does not reserve", "'template'"),
    ("(Tensor «a__b») -> Tensor", "a name that C++ does not reserve", "'a__b'"),
    ("(Tensor «self») -> Tensor", "a name that the op's own files do not use", "'self'"),
    ("(Tensor «Query») -> Tensor", "lower case letters", "'Query'"),
    ("(Tensor «_x») -> Tensor", "lower case letters", "'_x'"),
    ("(int x«)» -> Tensor", "a Tensor among the arguments", "none"),
    ("(«)» -> Tensor", "a Tensor among the arguments", "none"),
    ("(Tensor? x«)» -> Tensor", "a Tensor among the arguments", "none"),
    ("(Tensor x, Tensor? «out») -> Tensor", "another name where there are results", "'out'"),
    ("(Tensor x«)» -> ()", "a result, or an argument to update in place", "neither"),
    ("(Tensor x) -> Tensor(«a»!)", "a result without an alias", "one"),
    ("(Tensor x) -> «Tensor?»", "Tensor as a result", "Tensor?"),
    ("(Tensor x) -> (Tensor, «int»)", "Tensor as a result", "int"),
    ("(Tensor(«a») x) -> Tensor", "an alias of the form Tensor(a!)", "one without '!'"),
    ("(Tensor x, Tensor(«a»!)? y) -> Tensor", "an alias of the form Tensor(a!)", "one on Tensor?"),
    ("(Tensor(a!) x, Tensor(«a»!) y) -> ()", "an alias letter of its own", "'a'"),
    ("(Tensor x, float y=1, int «z») -> Tensor", "a default, as the argument before has one", "none"),
    ("(Tensor x=«None») -> Tensor", "no default as the default of type Tensor", "None"),
    ("(Tensor x, int y=«1.5») -> Tensor", "a 64-bit integer as the default of type int", "1.5"),
    ("(Tensor x, int y=«9223372036854775808») -> Tensor", "a 64-bit integer", "9223372036854775808"),
    ("(Tensor x, int y=«None») -> Tensor", "a 64-bit integer", "None"),
    ("(Tensor x, float? y=«True») -> Tensor", "a number or None as the default of type float?", "True"),
    ("(Tensor x, float y=«1e999») -> Tensor", "a number", "1e999"),
    ("(Tensor x, float y=«inf») -> Tensor", "a number", "inf"),
    ("(Tensor x, float y=«-1e-310») -> Tensor", "a number", "-1e-310"),
    ("(Tensor x, bool y=«1») -> Tensor", "True or False", "1"),
    ("(Tensor x, str y=«'a\"b'») -> Tensor", "a string without quotes or backslashes", "'a\"b'"),
    ("(Tensor x, str y=«'a\x7fb'») -> Tensor", "a string without quotes or backslashes in it, all", "'a\x7fb'"),
    ("(Tensor x, int[] y=«[1, 2]») -> Tensor", "no default", "[1, 2]"),
]  # fmt: skip


@pytest.mark.parametrize(("marked", "expected", "got"), MISTAKES, ids=str)
def test_points_at_the_mistake(marked, expected, got):
    start = marked.index("«")
    length = max(marked.index("»") - start - 1, 1)
    text = marked.replace("«", "").replace("»", "")
    with pytest.raises(DevtoolError) as caught:
        parse_schema(text)
    first, blank, shown, place, blank2, hint = caught.value.message.split("\n")
    assert first.startswith(f"new-op: schema: expected {expected}") and first.endswith(f", got {got}")
    assert (blank, blank2) == ("", "") and hint.startswith("hint: ")
    assert shown == "  " + text.replace("\x7f", " ")
    assert place == "  " + " " * start + "^" * length
    assert caught.value.exit_code == MISUSED


@pytest.mark.parametrize(("kind", "expected"), [("int", "a 64-bit integer"), ("float", "a number")])
@pytest.mark.parametrize("digits", [400, 5000])
def test_number_of_many_digits(kind, expected, digits):
    """Python's int reads at most 4300 digits, and its float takes no int of more than 309."""
    with pytest.raises(DevtoolError, match=f"expected {expected} as the default of type {kind}, got 999"):
        parse_schema(f"(Tensor x, {kind} y={'9' * digits}) -> Tensor")


def test_hint_names_the_nearest_type():
    with pytest.raises(DevtoolError, match=r"hint: did you mean 'Tensor\?'\?"):
        parse_schema("(Tensor x, Tenser? y) -> Tensor")


def test_torch_takes_at_most_64_arguments():
    arguments = ", ".join(f"Tensor x{i}" for i in range(64))
    assert len(parse_schema(f"({arguments}) -> Tensor").arguments) == 64
    with pytest.raises(DevtoolError, match="expected at most 64 arguments, as torch, got 65"):
        parse_schema(f"({arguments}, int n) -> Tensor")


def test_control_characters_do_not_move_the_caret():
    with pytest.raises(DevtoolError) as caught:
        parse_schema("(Tensor\tx,\nint[9]\ty) -> Tensor")
    _, _, shown, place, *_ = caught.value.message.split("\n")
    assert shown == "  (Tensor x, int[9] y) -> Tensor"
    assert place.index("^") == shown.index("int[9]")


NAMES = st.from_regex(r"[a-z][a-z0-9_]{0,8}", fullmatch=True).filter(lambda name: argument_problem(name) is None)
PLAIN_TEXT = st.text(alphabet=sorted(set(string.printable) - set("\"'\\\n\r\t\v\f")), max_size=8)
DEFAULTS = {
    "int": st.integers(-(2**63), 2**63 - 1),
    "int?": st.none() | st.integers(-1000, 1000),
    "float": st.floats(allow_nan=False, allow_infinity=False, allow_subnormal=False),
    "float?": st.none() | st.floats(-1e6, 1e6, allow_subnormal=False),
    "bool": st.booleans(),
    "str": PLAIN_TEXT,
    "Tensor?": st.none(),
}


@st.composite
def schemas(draw) -> Schema:
    names, results = draw(st.lists(NAMES, min_size=1, max_size=8, unique=True)), ()
    if draw(st.booleans()):
        results = tuple(draw(st.lists(NAMES.filter(lambda name: name not in names), max_size=4, unique=True)))
    first = Argument(names[0], "Tensor", mutated=draw(st.booleans()))
    required = [
        Argument(name, kind, mutated=kind == "Tensor" and draw(st.booleans()))
        for name in names[1:5]
        for kind in [draw(st.sampled_from(["Tensor", "int[]", "float[]", *DEFAULTS]))]
    ]
    defaulted = [
        Argument(name, kind, has_default=True, default=draw(DEFAULTS[kind]))
        for name in names[5:]
        for kind in [draw(st.sampled_from(sorted(DEFAULTS)))]
    ]
    arguments = (first, *required, *defaulted)
    least = 0 if any(argument.mutated for argument in arguments) else 1
    return Schema(arguments, results or ("",) * draw(st.integers(least, 4)))


@given(schemas())
def test_text_and_back(schema):
    assert parse_schema(str(schema)) == schema


@given(schemas())
def test_agrees_with_torch(schema):
    import torch

    theirs = torch._C.parse_schema(f"xla_gpu::op{schema}")
    assert [a.name for a in theirs.arguments] == [a.name for a in schema.arguments]
    assert [a.has_default_value() for a in theirs.arguments] == [a.has_default for a in schema.arguments]
    for their, our in zip(theirs.arguments, schema.arguments, strict=True):
        kind = f"Optional[{our.kind[:-1]}]" if our.kind.endswith("?") else our.kind
        assert str(their.type) == (f"List[{kind[:-2]}]" if kind.endswith("[]") else kind)
        assert bool(their.alias_info and their.alias_info.is_write) == our.mutated
        if our.has_default:
            assert their.default_value == our.default
    assert tuple(r.name for r in theirs.returns) == schema.results


@pytest.mark.parametrize("text", ["5e-324", "1e-310"])
def test_torch_refuses_what_the_parser_refuses(text):
    import torch

    with pytest.raises(IndexError, match="stod"):
        torch._C.parse_schema(f"xla_gpu::op(Tensor x, float y={text}) -> Tensor")
    with pytest.raises(DevtoolError, match="expected a number as the default"):
        parse_schema(f"(Tensor x, float y={text}) -> Tensor")


@given(st.text(alphabet="(Tensor)x,=int[]?a!->.1 \n'\"*", max_size=40))
def test_any_text_is_read_or_refused(text):
    try:
        assert parse_schema(str(parse_schema(text))) == parse_schema(text)
    except DevtoolError as error:
        assert error.message.startswith("new-op: schema: expected ")
