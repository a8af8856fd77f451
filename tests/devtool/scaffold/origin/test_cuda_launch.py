"""The op that a CUDA launch function or kernel makes: its schema, what each parameter gets, and what is refused."""

import pytest

from devtool.errors import DevtoolError
from devtool.scaffold.origin.cuda_launch import read_launch
from devtool.scaffold.schema import parse_schema
from tests.devtool.scaffold.origin.refusal import refused

KERNEL = "__global__ void k(const float* x, float* out, int n) { if (threadIdx.x < n) out[0] = x[0]; }\n"
# Code -> the schema.
SCHEMAS = {
    "void f(const float* x, float* out, int n, float alpha = 2.0f, cudaStream_t stream = 0) {}":
        "(Tensor x, float alpha=2.0) -> Tensor",
    # The name says that it is updated; without const nothing says which one is read.
    "void f(const __half* update, __half* cache, int64_t start, cudaStream_t) {}":
        "(Tensor update, Tensor(a0!) cache, int start) -> ()",
    "void f(float* x, float* y, int n, cudaStream_t s) {}": "(Tensor(a0!) x) -> Tensor",
    "void f(float* data, int n, cudaStream_t s) {}": "(Tensor(a0!) data) -> ()",
    # Several results have names; a pointer to integers is a tensor too.
    "void f(float const* __restrict__ gating, float* weights, int32_t* ids, int num_tokens, int k, bool sorted, "
    "cudaStream_t s) {}": "(Tensor gating, int k, bool sorted) -> (Tensor weights, Tensor ids)",
    # Names become those of a schema.
    "void f(const float *d_X, float *outPtr, const unsigned long long numElements, double lambda, cudaStream_t s) {}":
        "(Tensor x, float lambda_) -> Tensor",
    "template <typename T> void f(const T* x, T out[], size_t n, cudaStream_t s) {}": "(Tensor x) -> Tensor",
    "void f(const void* x, void* out, int n, cudaStream_t s) {}": "(Tensor x) -> Tensor",
    KERNEL: "(Tensor x) -> Tensor",
    # Of several functions that launch, the one that no other calls; main is none of them.
    KERNEL + "static void g(const float* x, float* y) { k<<<1, 2>>>(x, y, 3); }\n"
    "namespace a { void f(const float* x, float* out, float s) { g(x, out); k<<<1, 2>>>(x, out, 3); } }\n"
    "int main() { k<<<1, 1>>>(nullptr, nullptr, 0); }": "(Tensor x, float s) -> Tensor",
}  # fmt: skip


def read(tmp_path, code, *symbols, schema=None, name="scale.cu"):
    path = tmp_path / name
    path.write_text(code)
    return read_launch(path, symbols, "my_op", parse_schema(schema) if schema else None)


@pytest.mark.parametrize(("code", "schema"), SCHEMAS.items())
def test_schema_of_the_parameters(tmp_path, code, schema):
    assert str(read(tmp_path, code).schema) == schema


def bindings(origin) -> dict[str, object]:
    return {
        b.parameter.name: next(value for value in (b.argument, b.result, b.size) if value is not None)
        for b in origin.bindings
    }


@pytest.mark.parametrize(
    ("sizes", "expected"),
    [
        ("int n", {"n": "element_count"}),
        ("int rows, int hidden_size", {"rows": "row_count", "hidden_size": "column_count"}),
        # Together they stay inside the tensor: a name for all elements means the other dimension.
        ("int rows, int n", {"rows": "row_count", "n": "column_count"}),
        ("int n, int dim", {"n": "row_count", "dim": "column_count"}),
        ("int M, int N", {"M": "row_count", "N": "column_count"}),
        ("int n, int64_t row_stride", {"n": "column_count", "row_stride": "column_count"}),
        ("int stride_m, int stride_n", {"stride_m": "1", "stride_n": "1"}),
    ],
)
def test_integers_that_are_sizes(tmp_path, sizes, expected):
    origin = read(tmp_path, f"void f(const float* x, float* out, {sizes}, cudaStream_t s) {{}}")
    assert bindings(origin) == {"x": "x", "out": 0} | expected
    assert str(origin.schema) == "(Tensor x) -> Tensor"
    for name in expected:
        assert any(name in note and "taken for" in note for note in origin.notes)


def test_dtypes_are_those_of_the_pointers(tmp_path):
    origin = read(tmp_path, "void f(const __nv_bfloat16* x, const int* ids, float* y, int64_t* z, cudaStream_t s) {}")
    assert (origin.anchor_dtypes, origin.dtypes) == (("bfloat16",), {"ids": "int32", 0: "float32", 1: "int64"})
    origin = read(tmp_path, "template <class T> void f(const T* x, const float* w, T* y, cudaStream_t s) {}")
    assert (origin.anchor_dtypes, origin.dtypes) == (("float32",), {})
    assert "only float32 is taken; x may be of other dtypes too" in origin.notes


def test_what_the_call_is(tmp_path):
    code = "namespace a::b { template <typename T> cudaError_t f(cudaStream_t s, const T* x, T* y) { return g<T>(); } }"
    call = read(tmp_path, code).code
    assert (call.function, call.stream, call.returns_status, call.is_kernel) == ("::a::b::f<float>", 0, True, False)
    call = read(tmp_path, KERNEL).code
    assert (call.function, call.stream, call.returns_status, call.is_kernel) == ("::k", None, False, True)


def test_what_a_handler_may_not_do_is_noted(tmp_path):
    code = KERNEL + "void f(const float* x, float* out) {\n float* y; cudaMalloc(&y, 4);\n k<<<1, 2>>>(x, out, 3); }"
    assert read(tmp_path, code).code.notes == (
        "line 3 of the file, cudaMalloc: a handler neither allocates nor waits",
        "f launches on the default stream: give it a cudaStream_t and pass `stream`",
    )


def test_headers_beside_the_file_come_along(tmp_path):
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub/b.cuh").write_text('#include "../a.h"\n#include <cuda_fp16.h>\n')
    (tmp_path / "a.h").write_text('#include "pyxla/ceil_div.h"\n')
    origin = read(tmp_path, '#include "sub/b.cuh"\n#include "gone.h"\n' + KERNEL)
    assert {path.name: copy for path, copy in origin.copies.items()} == {
        "scale.cu": "scale.cuh", "b.cuh": "sub/b.cuh", "a.h": "a.h",
    }  # fmt: skip
    assert [note for note in origin.notes if "bring along" in note] == [
        'bring along "gone.h", which scale.cu includes and which is not beside it'
    ]


SCALE = "void f(const float* x, float* out, int n, int k, float a, cudaStream_t s) {}"


@pytest.mark.parametrize(
    ("schema", "expected"),
    [
        ("(Tensor x, int k, float a) -> Tensor", {"out": 0, "n": "element_count", "k": "k", "a": "a"}),
        # An integer that is no argument is a size.
        (
            "(Tensor? w, Tensor x, float a=3.0) -> Tensor y",
            {"out": 0, "n": "element_count", "k": "element_count", "a": "a"},
        ),
        ("(Tensor x, float a) -> Tensor", {"out": 0, "rows": "row_count", "k": "column_count", "a": "a"}),
        ("(Tensor(a!) out, Tensor x, float a, int n, int k) -> ()", {"out": "out", "n": "n", "k": "k", "a": "a"}),
    ],
)  # fmt: skip
def test_schema_of_the_user_wins(tmp_path, schema, expected):
    code = SCALE.replace("int n", "const float* w, int n") if "w" in schema else SCALE
    code = code.replace("int n", "int rows") if "rows" in expected else code
    origin = read(tmp_path, code, schema=schema)
    assert origin.schema == parse_schema(schema)
    expected = {"x": "x", **({"w": "w"} if "w" in schema else {}), **expected}
    assert bindings(origin) == expected


@pytest.mark.parametrize(
    ("schema", "message"),
    [
        ("(Tensor x, int a) -> Tensor", "expected float a, got int a"),
        ("(Tensor(a!) x, float a) -> Tensor", "expected Tensor x, got Tensor(a!) x"),
        ("(Tensor x, float a) -> (Tensor, Tensor)", "expected 1 result (out), got 2"),
        ("(Tensor x, float a, float b) -> Tensor", "expected arguments among x, out, n, k, a, got b"),
        ("(Tensor x) -> Tensor", "expected float a, got none"),
        ("(Tensor y, float a) -> Tensor", "expected Tensor x, got none"),
    ],
)
def test_schema_that_does_not_fit(tmp_path, schema, message):
    with pytest.raises(DevtoolError) as caught:
        read(tmp_path, SCALE, schema=schema)
    assert caught.value.message.startswith(f"new-op: SCHEMA: {message}\n\nhint: ") and caught.value.exit_code == 2


TYPES = "a pointer to float, __half, __nv_bfloat16, a template's type or an integer, a number, or cudaStream_t"
TORCH = "expected a function of pointers and numbers, got torch::Tensor x of torch"
# Code -> the place after the path, and what is said.
REFUSED = {
    "int g(int x) { return x; }": ("", "expected a function that takes a cudaStream_t or launches a kernel"),
    SCALE + SCALE.replace("void f", "void g"): ("", "expected one launch function, got f, g"),
    SCALE + "\n" + SCALE.replace("int k", "long k"):
        (": f", "expected one function of this name, got those of lines 1 and 2"),
    "void f(\n  const float* x,\n  float3 v, cudaStream_t s) {}": (":3: f: v", f"expected {TYPES}, got float3 v"),
    "void f(const float** x, cudaStream_t s) {}": (":1: f: x", f"expected {TYPES}, got const float** x"),
    "void f(const double* x, float* y, cudaStream_t s) {}": (":1: f: x", f"expected {TYPES}, got const double* x"),
    "void f(const int* x, float* y, cudaStream_t s) {}":
        (":1: f", "expected a first tensor of floating point, got const int* x"),
    "void f(const float* x, cudaStream_t s) {}": (":1: f", "expected a pointer without const, to what is computed"),
    "void f(int n, cudaStream_t s) {}": (":1: f", "expected a pointer to a tensor, got none"),
    "torch::Tensor f(torch::Tensor x, double eps) { k<<<1, 2>>>(x.data_ptr<float>()); }": (":1: f", TORCH),
    "#include <torch/extension.h>\n" + SCALE: (":2: f", "expected a function of pointers and numbers, got torch/ext"),
    "template <typename T, int N> void f(const T* x, T* y, cudaStream_t s) {}":
        (":1: f", "expected at most one template parameter, a type, got template <typename T, int N>"),
    "namespace {\n" + KERNEL + "}\n" + SCALE:
        (":2: k", "expected a kernel in a named namespace, got an anonymous one"),
}  # fmt: skip


@pytest.mark.parametrize(("code", "error"), REFUSED.items())
def test_refuses(tmp_path, code, error):
    place, message = error
    with refused(f"{tmp_path / 'scale.cu'}{place}", message):
        read(tmp_path, code)


def test_symbol_chooses(tmp_path):
    code = KERNEL + SCALE + SCALE.replace("void f", "void g").replace("float a", "bool a")
    assert str(read(tmp_path, code, "g").schema) == "(Tensor x, int k, bool a) -> Tensor"
    assert read(tmp_path, code, "k").code.is_kernel
    with pytest.raises(
        DevtoolError, match=r"--symbol: expected a launch function of .*scale.cu, got h\n\nhint: .* has f, g, k"
    ):
        read(tmp_path, code, "h")
    with pytest.raises(DevtoolError, match=r"--symbol: expected one name with --from, got f, g"):
        read(tmp_path, code, "f", "g")


def test_file_with_a_name_or_text_that_cannot_be(tmp_path):
    with pytest.raises(DevtoolError, match="expected a file name of letters, digits"):
        read(tmp_path, SCALE, name="my kernel.cu")
    (tmp_path / "bytes.cu").write_bytes(b"\xff\xfe")
    with pytest.raises(DevtoolError, match="expected text in UTF-8"):
        read_launch(tmp_path / "bytes.cu", (), "my_op", None)
    (tmp_path / "my_op.h").touch()
    with pytest.raises(DevtoolError, match=r"expected a header of another name than the op's, got my_op\.h"):
        read(tmp_path, '#include "my_op.h"\n' + SCALE)
