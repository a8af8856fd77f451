"""Modules read from text: attributes, users of results, copies, memory; also from text that XLA never prints."""

import re

import pytest

import pyxla
from pyxla.hlo import attributes as hlo_attributes
from pyxla.hlo.buffer_assignment import read_memory_plan
from pyxla.hlo.graph import Graph, bytes_of
from pyxla.hlo.module import read_module
from pyxla.inspection.inspection import read_files


@pytest.mark.parametrize(
    ("text", "want"),
    [
        ("", {}),
        ("a = 0x7F800000 : f32, b = 0xFC00 : f16, c = 1.5 : bf16", {"a": float("inf"), "b": float("-inf"), "c": 1.5}),
        ('a = {b = [1 : i32, "c"], d}', {"a": {"b": [1, "c"], "d": True}}),
        ("a = array<i1: true, false>, b = array<f64>, c = 7 : i64", {"a": [True, False], "b": [], "c": 7}),
        ("a = dense<[1, -2]> : tensor<2xi64>, b = dense<> : tensor<0xf64>", {"a": [1, -2], "b": []}),
        ("a = dense<0x7FF0000000000000> : tensor<2xf64>, b = #other", {"a": [float("inf")] * 2, "b": "#other"}),
        ('a = dense<"0x010000000200000003000000"> : tensor<3xi32>', {"a": [1, 2, 3]}),
        ('a = dense<"0x01"> : tensor<3xi32>', {"a": 'dense<"0x01"> : tensor<3xi32>'}),
        ("a = dense<[[1, 2]]> : tensor<1x2xi64>", {"a": "dense<[[1, 2]]> : tensor<1x2xi64>"}),
    ],
)
def test_attributes_of_other_custom_calls(text, want):
    assert hlo_attributes.decode(text) == want


CUDA_TEXT = """\
HloModule SyncTensorsGraph.9, is_scheduled=true, input_output_alias={ {0}: (0, {}, may-alias) }

%fused (p: f32[4,8]) -> f32[8,4] {
  %p = f32[4,8]{1,0} parameter(0)
  ROOT %t = f32[8,4]{1,0} transpose(%p), dimensions={1,0}
}

%command_buffer (a: f32[4,8], b: f32[8,4]) -> (f32[8,4], u8[64]) {
  %a = f32[4,8]{1,0} parameter(0)
  %b = f32[8,4]{1,0} parameter(1)
  %wrapped = f32[8,4]{1,0} fusion(%a), kind=kInput, calls=%fused
  %call.1 = (f32[8,4]{1,0}, u8[64]{0}) custom-call(%b, %wrapped), custom_call_target="xla_gpu_x", \
operand_layout_constraints={f32[8,4]{1,0}, f32[8,4]{1,0}}, output_to_operand_aliasing={{0}: (0, {})}, \
api_version=API_VERSION_TYPED_FFI, backend_config={}
  %r = f32[8,4]{1,0} get-tuple-element(%call.1), index=0
  ROOT %out = (f32[8,4]{1,0}, u8[64]{0}) tuple(%r, %r)
}

ENTRY %main (p0: f32[8,4], p1: f32[4,8]) -> (f32[8,4]) {
  %p0 = f32[8,4]{1,0} parameter(0)
  %p1 = f32[4,8]{1,0} parameter(1)
  %buffer = (f32[8,4]{1,0}, u8[64]{0}) call(%p1, %p0), to_apply=%command_buffer
  %first = f32[8,4]{1,0} get-tuple-element(%buffer), index=0
  ROOT %tuple = (f32[8,4]{1,0}) tuple(%first)
}
"""


def test_call_inside_of_a_command_buffer():
    """XLA:CUDA puts the call into a separate computation; its neighbours are still found."""
    thunks = "000: kCommandBuffer [source]\n    000: kCustomCall [source]\n"
    module = read_module(CUDA_TEXT, CUDA_TEXT, "", thunks)
    (call,) = module.calls
    assert [operand.source.name for operand in call.operands] == ["p0", "wrapped"]
    assert call.operands[0].source.argument == 0 and call.aliases == ((0, 0),)
    assert call.results[0].outputs == (0,) and call.results[1].readers == ()
    (copy,) = module.copies
    assert (copy.name, copy.place, copy.in_place) == ("wrapped", "operand 1", False)
    assert copy.reason == "operand 1 is argument 1 transposed, and the call takes it row-major"
    assert module.captured == 1 and module.memory is None
    assert "captured  1 of 1 custom call in a command buffer" in str(pyxla.Inspection("CUDA", [module]))


def test_thunks_are_those_behind_the_passes(tmp_path):
    """XLA:CUDA writes the thunks again only if it made command buffers."""
    plain, captured = "000: kCustomCall [source]\n", "000: kCommandBuffer [source]\n    000: kCustomCall [source]\n"
    for number in (1, 2):
        for ending in ("before_optimizations.txt", "sm_9.0a_gpu_after_optimizations.txt"):
            (tmp_path / f"module_000{number}.graph.{ending}").write_text(CUDA_TEXT)
        (tmp_path / f"module_000{number}.graph.thunk_sequence.txt").write_text(plain)
    (tmp_path / "module_0002.graph.thunk_sequence_after_thunk_passes.txt").write_text(captured)
    assert [module.captured for module in read_files(sorted(tmp_path.iterdir()))] == [0, 1]


SLICES_TEXT = """\
HloModule SyncTensorsGraph.20, is_scheduled=true

%address-computation (p: f32[3,8], i: s32[], b: f32[4,8]) -> (f32[4,8], u8[64]) {
  %p = f32[3,8]{1,0} parameter(0)
  %slice.1 = f32[2,8]{1,0} slice(%p), slice={[1:3], [0:8]}
  %i = s32[] parameter(1)
  %zero = s32[] constant(0)
  %slice.2 = f32[1,8]{1,0} dynamic-slice(%p, %i, %zero), dynamic_slice_sizes={1,8}
  %bitcast.1 = f32[8]{0} bitcast(%slice.2)
  %b = f32[4,8]{1,0} parameter(2)
  %call.1 = (f32[2,8]{1,0}, u8[64]{0}) custom-call(%slice.1, %bitcast.1), custom_call_target="xla_gpu_x", \
operand_layout_constraints={f32[2,8]{1,0}, f32[8]{0}}, api_version=API_VERSION_TYPED_FFI, backend_config={}
  %rows = f32[2,8]{1,0} get-tuple-element(%call.1), index=0
  %update = f32[4,8]{1,0} dynamic-update-slice(%b, %rows, %i, %zero)
  %scratch = u8[64]{0} get-tuple-element(%call.1), index=1
  ROOT %out = (f32[4,8]{1,0}, u8[64]{0}) tuple(%update, %scratch)
}

ENTRY %main (p0: f32[3,8], p1: s32[], p2: f32[4,8]) -> (f32[4,8]) {
  %p0 = f32[3,8]{1,0} parameter(0)
  %p1 = s32[] parameter(1)
  %p2 = f32[4,8]{1,0} parameter(2)
  %fusion = (f32[4,8]{1,0}, u8[64]{0}) fusion(%p0, %p1, %p2), kind=kCustom, calls=%address-computation
  %first = f32[4,8]{1,0} get-tuple-element(%fusion), index=0
  ROOT %tuple = (f32[4,8]{1,0}) tuple(%first)
}
"""


# As XLA:CUDA of 2026 writes it: no get-tuple-element.
SHORT_TEXT = re.sub(r"  %(rows|scratch|first) = .*\n", "", SLICES_TEXT)
for name, element in (("rows", "call.1#0"), ("scratch", "call.1#1"), ("first", "fusion#0")):
    SHORT_TEXT = re.sub(rf"%{name}\b", f"%{element}", SHORT_TEXT)


@pytest.mark.parametrize("text", [SLICES_TEXT, SHORT_TEXT], ids=["get-tuple-element", "number"])
def test_call_fused_with_dense_slices(text):
    """XLA:CUDA passes such a call addresses within the operands: it runs, and nothing is copied. Assertions must not
    say that XLA has omitted it.
    """
    module = read_module(text, text)
    (call,) = module.calls
    assert module.missing() == {} and module.copies == ()
    assert [(operand.shape, operand.source.argument) for operand in call.operands] == [
        ("f32[2,8]{1,0}", 0),
        ("f32[8]{0}", 0),
    ]
    assert call.results[0].outputs == (0,) and call.results[1].outputs == ()
    assert "fusion" not in [node.opcode for node in Graph(text).running]


@pytest.mark.parametrize("cut", range(0, len(CUDA_TEXT), 13))
def test_text_that_breaks_off(cut):
    module = read_module(CUDA_TEXT[:cut], CUDA_TEXT[:cut], "allocation 0: size 12, param"[: cut % 28], "")
    assert len(module.calls) <= 1
    str(pyxla.Inspection("CUDA", [module]))


def test_bytes_of_shapes():
    shapes = {
        "f32[4,8]{1,0}": 128,
        "bf16[3]": 6,
        "pred[]": 1,
        "f8e4m3fn[5]{0}": 5,
        "(f32[2]{0}, /*index=1*/s4[3]{0})": 10,
    }
    assert {shape: bytes_of(shape) for shape in shapes} == shapes


def test_memory_plan_of_a_text_without_one():
    assert read_memory_plan("") is None


def test_graph_of_a_module_that_calls_one_computation_twice():
    """The graph does not follow it, because a value inside would represent two."""
    text = """\
%twice (x: f32[2]) -> f32[2] {
  %x = f32[2]{0} parameter(0)
  ROOT %n = f32[2]{0} negate(%x)
}

ENTRY %main (p: f32[2]) -> f32[2] {
  %p = f32[2]{0} parameter(0)
  %one = f32[2]{0} call(%p), to_apply=%twice
  ROOT %two = f32[2]{0} call(%one), to_apply=%twice
}
"""
    graph = Graph(text)
    assert graph.source("two").node.name == "two" and graph.outputs[0].node.name == "two"
    assert [use.node.name for _, use in graph.uses["one"]] == ["two"]
