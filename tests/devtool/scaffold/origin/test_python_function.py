"""The op that a Python function makes: the schema of its hints, its body as the reference, and what is refused."""

import sys

import pytest

from devtool.errors import DevtoolError
from devtool.scaffold.origin.python_function import find_module, read_function
from devtool.scaffold.schema import parse_schema
from tests.devtool.scaffold.origin.refusal import refused

HEAD = (
    "import math\nimport typing\nfrom typing import List, Optional, Union\n\nimport torch\nfrom torch import Tensor\n\n"
)
# Head of f and its body -> the schema.
SCHEMAS = {
    ("x: Tensor, y: torch.Tensor", "Tensor", "return x + y"): "(Tensor x, Tensor y) -> Tensor",
    ("x: 'torch.Tensor', w: Optional[Tensor] = None", "'Tensor'", "return x"): "(Tensor x, Tensor? w=None) -> Tensor",
    ("x: Tensor, w: Tensor | None, v: Union[None, Tensor]", "Tensor", "return x"):
        "(Tensor x, Tensor? w, Tensor? v) -> Tensor",
    ("x: Tensor, k: int, s: float = -1, b: bool = True, m: str = 'a'", "Tensor", "return x"):
        "(Tensor x, int k, float s=-1.0, bool b=True, str m=\"a\") -> Tensor",
    ("x: Tensor, d: list[int], e: List[float], k: int | None = None, f: typing.Optional[float] = 2", "Tensor",
     "return x"):
        "(Tensor x, int[] d, float[] e, int? k=None, float? f=2.0) -> Tensor",
    ("x: Tensor, eps: float = EPS", "Tensor", "return x"): "(Tensor x, float eps=1e-06) -> Tensor",
    ("x: Tensor", "tuple[Tensor, torch.Tensor]", "return x, x"): "(Tensor x) -> (Tensor, Tensor)",
    # Without a hint the returns tell, or one tensor is assumed.
    ("x: Tensor", None, "return x, x + 1"): "(Tensor x) -> (Tensor, Tensor)",
    ("x: Tensor", None, "return x.topk(2)"): "(Tensor x) -> Tensor",
    # Updates in place.
    ("x: Tensor, y: Tensor", "None", "x.copy_(y)"): "(Tensor(a0!) x, Tensor y) -> ()",
    ("x: Tensor, y: Tensor", "None", "x[1:] = y"): "(Tensor(a0!) x, Tensor y) -> ()",
    ("x: Tensor, y: Tensor", "None", "x[0, ...] += y"): "(Tensor(a0!) x, Tensor y) -> ()",
    ("x: Tensor, y: Tensor", "Tensor", "y *= 2; return x + y"): "(Tensor x, Tensor(a0!) y) -> Tensor",
    ("x: Tensor, y: Tensor", "None", "torch.add(x, 1, out=y)"): "(Tensor x, Tensor(a0!) y) -> ()",
    ("x: Tensor, y: Tensor", "Tensor", "return x.add_(y).clone()"): "(Tensor(a0!) x, Tensor y) -> Tensor",
    # What is returned is the argument itself, so that there is no result.
    ("x: Tensor, y: Tensor", "Tensor", "x.add_(y); return x"): "(Tensor(a0!) x, Tensor y) -> ()",
    # Another tensor under the parameter's name; a number.
    ("x: Tensor", "Tensor", "x = x * 2; x.add_(1); return x"): "(Tensor x) -> Tensor",
    ("x: Tensor, k: int", "Tensor", "k += 1; return x * k"): "(Tensor x, int k) -> Tensor",
}  # fmt: skip


def read(tmp_path, code, name="f", schema=None):
    path = tmp_path / "layers.py"
    path.write_text(code)
    return read_function(path, name, "my_op", parse_schema(schema) if schema else None)


def code_of(parameters, result, body):
    return f"{HEAD}EPS = 1e-6\n\n\ndef f({parameters}){f' -> {result}' if result else ''}:\n    {body}\n"


@pytest.mark.parametrize(("function", "schema"), SCHEMAS.items())
def test_schema_of_the_hints(tmp_path, function, schema):
    assert str(read(tmp_path, code_of(*function)).schema) == schema


NORM = (
    HEAD
    + '''
from mine.layers import rotate
from .near import shift
EPS, COUNT = 1e-6, 3
SCALE = math.sqrt(2.0) * HALF
HALF = 0.5
TABLE = torch.ones(3)


def wide(x: Tensor) -> Tensor:
    return x.double() * SCALE


@torch.no_grad()
def f(x: Tensor, w: Optional[Tensor] = None) -> Tensor:
    """The norm of x.

    Of each row.
    """
    # In float64.
    x = wide(x)
    for row in [rotate(x) for _ in range(COUNT)]:
        x = shift(x) + TABLE
    return x.float()  # rounded
'''
)


def test_reference_is_the_body_with_what_it_needs(tmp_path):
    origin = read(tmp_path, NORM)
    code = origin.code
    assert code.body == (
        "# In float64.\nx = wide(x)\nfor row in [rotate(x) for _ in range(COUNT)]:\n    x = shift(x) + TABLE\n"
        "return x.float()  # rounded"
    )
    assert (code.summary, code.docstring) == ("The norm of x", '"""The norm of x.\n\nOf each row.\n"""')
    assert sorted(code.imports) == ["from torch import Tensor", "import math"]
    assert [text.partition("\n")[0] for text in code.definitions] == [
        "SCALE = math.sqrt(2.0) * HALF", "HALF = 0.5", "def wide(x: Tensor) -> Tensor:",
    ]  # fmt: skip
    assert sorted(origin.notes) == [
        "bring along COUNT of layers.py:11, which is no function, constant or import",
        "bring along TABLE of layers.py:14, which is no function, constant or import",
        "bring along from .near import shift: an op imports pyxla, torch and the standard library",
        "bring along from mine.layers import rotate: an op imports pyxla, torch and the standard library",
        "complete the docstring: Args, Returns, Raises and Source",
        "f's decorator @torch.no_grad() is left out",
        "float32 in layers.py:31: the tests run the reference in float64, use accumulation_dtype(dtype)",
    ]


def test_names_that_the_file_uses_itself_stay_behind(tmp_path):
    others = "def check(x): return x\n\ndef my_op(x): return x\n\n"
    code = HEAD + others + "def f(x: Tensor) -> Tensor:\n    return check(my_op(x))\n"
    assert sorted(read(tmp_path, code).notes) == [
        "bring along check, a name that this file uses itself: rename it",
        "bring along my_op, a name that this file uses itself: rename it",
    ]


def test_returned_arguments_are_no_results(tmp_path):
    """The return statements are changed; what stands beside them stays."""
    code = HEAD + (
        "def f(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:\n"
        "    x.add_(y)\n    y.zero_()\n    if x.numel() == 0:\n"
        "        return (\n            x,\n            y,\n        )  # nothing\n"
        "    # both\n    return x, y\n"
    )
    origin = read(tmp_path, code)
    assert str(origin.schema) == "(Tensor(a0!) x, Tensor(a1!) y) -> ()"
    assert origin.code.body == "x.add_(y)\ny.zero_()\nif x.numel() == 0:\n    return  # nothing\n# both\nreturn"


def test_function_on_one_line(tmp_path):
    assert read(tmp_path, HEAD + "def f(x: Tensor) -> Tensor: return x + 1\n").code.body == "return x + 1"


def test_schema_of_the_user_wins(tmp_path):
    code = HEAD + "def f(x, y, scale=math.tau):\n    y.mul_(scale)\n    return x, y\n"
    with pytest.raises(DevtoolError, match=r"layers\.py:8: f: x: expected a type hint, got none"):
        read(tmp_path, code)
    schema = "(Tensor x, Tensor(a!) y, float scale=6.28) -> (Tensor out_a, Tensor out_b)"
    assert read(tmp_path, code, schema=schema).schema == parse_schema(schema)


@pytest.mark.parametrize(
    ("schema", "message"),
    [
        ("(Tensor x) -> Tensor", "expected the arguments x, k, got x"),
        ("(Tensor k, Tensor x) -> Tensor", "expected the arguments x, k, got k, x"),
        ("(Tensor(a!) x, float k) -> Tensor", "expected int k, got float"),
        ("(Tensor(a!) x, int k) -> (Tensor, Tensor)", "expected 1 result, got 2"),
        ("(Tensor x, int k) -> Tensor", "expected Tensor(a!) x, got Tensor"),
    ],
)
def test_schema_that_does_not_fit(tmp_path, schema, message):
    with pytest.raises(DevtoolError) as caught:
        read(tmp_path, HEAD + "def f(x: Tensor, k: int) -> Tensor:\n    x.mul_(k)\n    return x + 1\n", schema=schema)
    assert caught.value.message.startswith(f"new-op: SCHEMA: {message}\n\nhint: ") and caught.value.exit_code == 2


RESULTS = "torch.Tensor, tuple[torch.Tensor, torch.Tensor] or None as the result"
HINTS = "one of torch.Tensor, torch.Tensor | None, int, "
# Parameters and result of f -> the place, and what is said.
REFUSED = {
    ("x: Tensor, *, eps: float", "Tensor"): (": eps", "expected a positional parameter, got a keyword-only one"),
    ("x: Tensor, *rest: Tensor", "Tensor"): (": rest", "expected parameters of a known number, got *rest"),
    ("x: Tensor, **more: int", "Tensor"): (": more", "expected parameters of a known number, got **more"),
    ("x: Tensor, scale", "Tensor"): (": scale", "expected a type hint, got none"),
    ("x: Tensor, d: torch.dtype", "Tensor"): (": d", f"expected {HINTS}"),
    ("x: Tensor, d: tuple[int, ...]", "Tensor"): (": d", f"expected {HINTS}"),
    ("x: Tensor, d: list[str]", "Tensor"): (": d", f"expected {HINTS}"),
    ("x: Tensor, b: bool | None", "Tensor"): (": b", f"expected {HINTS}"),
    ("X: Tensor", "Tensor"): (": X", "expected lower case letters, digits and _"),
    ("x: Tensor, check: int", "Tensor"): (": check", "expected a name that the op's own files do not use"),
    ("x: Tensor, s: float = math.pi", "Tensor"): (": s", "expected a literal as the default, got math.pi"),
    ("x: Tensor, d: list[int] = [1]", "Tensor"): (": d", "expected no default, got [1]"),
    ("x: Tensor, k: int = 1.5", "Tensor"): ("", "expected a 64-bit integer as the default of type int, got 1.5"),
    ("x: int", "Tensor"): ("", "expected a Tensor among the arguments, got none"),
    ("x: Tensor, out: Tensor", "Tensor"): ("", "expected another name where there are results, got 'out'"),
    ("x: Tensor", "int"): ("", f"expected {RESULTS}, got int"),
    ("x: Tensor", "tuple[Tensor, ...]"): ("", f"expected {RESULTS}, got tuple[Tensor, ...]"),
    ("x: Tensor", "None"): ("", "expected a result, or an argument to update in place, got neither"),
}  # fmt: skip


@pytest.mark.parametrize(("function", "error"), REFUSED.items())
def test_refuses(tmp_path, function, error):
    place, message = error
    with refused(f"{tmp_path / 'layers.py'}:11: f{place}", message):
        read(tmp_path, code_of(*function, "pass"))


OTHER_FORMS = {
    "def g(x): pass\n": "new-op: --from: expected a function of PATH (g), got f\n\nhint: def f(",
    "class A:\n    def f(self): pass\n": "new-op: --from: expected a function of PATH (there is none), got f",
    "def f(x): pass\ndef f(y): pass\n":
        "new-op: --from: PATH: f: expected one function of this name, got those of lines 1 and 2",
    "async def f(x): pass\n": "new-op: --from: PATH:1: f: expected a plain function, got an async one",
    "def f(x): yield x\n": "new-op: --from: PATH:1: f: expected a function that returns tensors, got a generator",
    "import triton\n@triton.jit\ndef f(x): pass\n":
        "new-op: --from: PATH:3: f: expected a function of tensors, got a Triton kernel\n\nhint: --from PATH --symbol",
    "def f(x:\n": "new-op: --from: PATH:1: expected Python, got '(' was never closed",
}  # fmt: skip


@pytest.mark.parametrize(("code", "message"), OTHER_FORMS.items())
def test_refuses_what_is_no_plain_function(tmp_path, code, message):
    with pytest.raises(DevtoolError) as caught:
        read(tmp_path, code)
    assert caught.value.message.startswith(message.replace("PATH", str(tmp_path / "layers.py")))


def test_module_is_found_and_not_run(tmp_path, monkeypatch):
    """Neither it nor a package above it."""
    folder = tmp_path / "deep/inner"
    folder.mkdir(parents=True)
    for path in (tmp_path / "deep/__init__.py", folder / "__init__.py", folder / "layers.py"):
        path.write_text("raise SystemExit('was run')\n")
    monkeypatch.chdir(tmp_path)
    assert find_module("deep.inner.layers") == folder / "layers.py"
    assert find_module("deep") == tmp_path / "deep/__init__.py"
    assert find_module("torch.nn.functional").parts[-3:] == ("torch", "nn", "functional.py")
    assert "deep" not in sys.modules
    for name in ("deep.outer.layers", "deep.inner.layers.norm", "nothing_of_that_name"):
        with pytest.raises(DevtoolError, match="--from: expected a module that Python finds, got "):
            find_module(name)
    with pytest.raises(DevtoolError, match="expected a module written in Python, got math"):
        find_module("math")
