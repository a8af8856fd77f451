"""The op that a Triton kernel makes: what it loads and stores, which numbers are integers, and what is refused."""

import pytest

from devtool.errors import DevtoolError
from devtool.scaffold.origin.triton_kernel import read_kernel
from devtool.scaffold.schema import parse_schema
from tests.devtool.scaffold.origin.refusal import refused

HEAD = "import torch\nimport triton\nimport triton.language as tl\n\n"
ADD = """@triton.jit
def add(x_ptr, y_ptr, out_ptr, n_elements, alpha, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = i < n_elements
    x = tl.load(x_ptr + i, mask=mask)
    tl.store(out_ptr + i, x + alpha * tl.load(y_ptr + i, mask), mask)
"""
ROWS = """@triton.autotune(configs=[], key=["N"])
@triton.jit
def norm(X, Y, W, Rstd, stride, N, eps, BLOCK_SIZE: tl.constexpr):
    row = tl.program_id(0)
    X += row * stride
    rstd = 1 / tl.sqrt(total(X, N, BLOCK_SIZE) / N + eps)
    tl.store(Rstd + row, rstd)
    for offset in range(0, N, BLOCK_SIZE):
        cols = offset + tl.arange(0, BLOCK_SIZE)
        y = tl.load(X + cols, mask=cols < N) * rstd * tl.load(W + cols, mask=cols < N) * SCALE
        tl.store(Y + row * stride + cols, y, mask=cols < N)

@triton.jit
def total(p, count, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    x = tl.load(p + i, mask=i < count, other=0.0)
    return tl.sum(x * x)

SCALE = tl.constexpr(1.5)
"""
MATRIX = """@triton.jit
def product(a_ptr, b_ptr, c_ptr, M, N, K, stride_am, stride_ak, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr):
    a_ptrs = a_ptr + tl.arange(0, BLOCK_M)[:, None] * stride_am + tl.arange(0, BLOCK_N)[None, :] * stride_ak
    block = tl.make_block_ptr(base=b_ptr, shape=(K, N), strides=(N, 1), offsets=(0, 0), block_shape=(BLOCK_M, BLOCK_N))
    acc = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
    for k in range(0, K, BLOCK_M):
        acc += tl.load(a_ptrs) * tl.load(block)
        a_ptrs += BLOCK_M * stride_ak
    tl.atomic_add(c_ptr + M, acc)
"""
# Code -> schema, types of the numbers, constants and grid.
SCHEMAS = {
    ADD: (
        "(Tensor x, Tensor y, float alpha) -> Tensor", {"n_elements": "i32", "alpha": "fp32"}, {"BLOCK": "1024"},
        "cdiv(n_elements, BLOCK)",
    ),
    # Loads through a pointer that is moved, and in another kernel of the file.
    ROWS: (
        "(Tensor x, Tensor w, float eps) -> (Tensor y, Tensor rstd)", {"stride": "i32", "N": "i32", "eps": "fp32"},
        {"BLOCK_SIZE": "1024"}, "1",
    ),
    MATRIX: (
        "(Tensor a, Tensor b, Tensor(a0!) c, int k) -> ()",
        dict.fromkeys(("M", "N", "K", "stride_am", "stride_ak"), "i32"),
        {"BLOCK_M": "32", "BLOCK_N": "32"}, "M",
    ),
}  # fmt: skip


def read(tmp_path, code, *symbols, schema=None):
    path = tmp_path / "kernels.py"
    path.write_text(HEAD + code)
    return read_kernel(path, symbols, parse_schema(schema) if schema else None)


@pytest.mark.parametrize(("code", "expected"), SCHEMAS.items(), ids=("add", "norm", "product"))
def test_schema_of_what_is_loaded_and_stored(tmp_path, code, expected):
    origin = read(tmp_path, code)
    assert (str(origin.schema), origin.code.types, origin.code.constants, origin.code.grid) == expected


def test_kernel_comes_with_what_it_needs_and_without_the_rest(tmp_path):
    origin = read(tmp_path, "def unused(x):\n    return torch.ones(3)\n\n" + ROWS)
    text = origin.code.text
    assert text.index("def total(") < text.index("SCALE = tl.constexpr(1.5)") < text.index("@triton.jit\ndef norm(")
    assert "autotune" not in text and "unused" not in text and "torch" not in text
    assert "@triton.autotune is left out: its choices become VARIANTS" in origin.notes


def test_what_no_kernel_may_import_is_noted(tmp_path):
    code = "from mine import exp\n" + ADD.replace("x + alpha", "exp(x) + alpha * other")
    assert [note for note in read(tmp_path, code).notes if "bring along" in note] == [
        "bring along other, which kernels.py does not define",
        "bring along from mine import exp: an op imports triton and the standard library",
    ]


@pytest.mark.parametrize(
    "schema", ["(Tensor x, Tensor y, float alpha=2.0) -> Tensor", "(Tensor? y, Tensor x, float alpha) -> Tensor sum_of"]
)
def test_schema_of_the_user_wins(tmp_path, schema):
    assert read(tmp_path, ADD, schema=schema).schema == parse_schema(schema)


@pytest.mark.parametrize(
    ("schema", "message"),
    [
        ("(Tensor x, Tensor y, int alpha) -> Tensor", "expected float alpha, got int alpha"),
        ("(Tensor x, Tensor(a!) y, float alpha) -> Tensor", "expected Tensor y, got Tensor(a!) y"),
        ("(Tensor x, Tensor y, Tensor out_ptr, float alpha) -> Tensor",
         "expected Tensor(a!) out_ptr, got Tensor out_ptr"),
        ("(Tensor x, float alpha) -> Tensor", "expected Tensor y, got none"),
        ("(Tensor x, Tensor y, float alpha) -> (Tensor, Tensor)", "expected 1 result (out_ptr), got 2"),
    ],
)  # fmt: skip
def test_schema_that_does_not_fit(tmp_path, schema, message):
    with pytest.raises(DevtoolError) as caught:
        read(tmp_path, ADD, schema=schema)
    assert caught.value.message.startswith(f"new-op: SCHEMA: {message}\n\nhint: ") and caught.value.exit_code == 2


REFUSED = {
    "def f(x):\n    return x\n": ("", "expected a @triton.jit kernel, got f"),
    "": ("", "expected a @triton.jit kernel, got no function"),
    ADD + ADD.replace("def add", "def sub"): ("", "expected one kernel, got add, sub"),
    "@triton.jit\ndef f(x_ptr, n):\n    tl.load(x_ptr + n)\n":
        (":6: f", "expected a pointer that tl.store writes, got none that can be followed"),
    "@triton.jit\ndef f(x_ptr, n):\n    tl.store(x_ptr + n, 1)\n":
        (":6: f", "expected a pointer that tl.load reads, got none that can be followed"),
    "@triton.jit\ndef f(x_ptr, *, n):\n    pass\n": (":6: f", "expected positional parameters, got x_ptr, *, n"),
    "def f(:\n": (":5", "expected Python, got invalid syntax"),
}  # fmt: skip


@pytest.mark.parametrize(("code", "error"), REFUSED.items())
def test_refuses(tmp_path, code, error):
    place, message = error
    with refused(f"{tmp_path / 'kernels.py'}{place}", message):
        read(tmp_path, code)


def test_symbol_chooses(tmp_path):
    assert "def total(" in read(tmp_path, ROWS, "norm").code.text
    assert read(tmp_path, ADD + ADD.replace("def add", "def sub"), "sub").code.camel == "Sub"
    with pytest.raises(DevtoolError, match=r"--symbol: expected a kernel of .*, got nrm\n\nhint: did you mean 'norm'"):
        read(tmp_path, ROWS, "nrm")
