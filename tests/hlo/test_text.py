"""The reader of HLO text, on text as XLA prints it and on text that XLA never prints."""

import string

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyxla.hlo import text as hlo_text
from pyxla.hlo.text import CustomCall

LOWERED = """\
HloModule IrToHlo.17, entry_computation_layout={(f32[])->(f32[2,8]{1,0})}

%main.11 (Arg_0.12: f32[2,8]) -> f32[2,8] {
  %Arg_0.12 = f32[2,8]{1,0} parameter(0)
  %constant.13 = pred[0]{0} constant({})
  ROOT %custom-call.14 = f32[2,8]{1,0} custom-call(f32[2,8]{1,0} %Arg_0.12, pred[0]{0} %constant.13), \
custom_call_target="xla_gpu_rms_norm", operand_layout_constraints={f32[2,8]{1,0}, pred[0]{0}}, \
api_version=API_VERSION_TYPED_FFI, metadata={source_file="-" source_line=4}, \
backend_config={eps = 9.9999999999999995E-7 : f64}
}

ENTRY %IrToHlo.17 (p0.1: f32[2,8]) -> (f32[2,8]) {
  %p0.1 = f32[2,8]{1,0} parameter(0)
  %call.15 = f32[2,8]{1,0} call(f32[2,8]{1,0} %p0.1), to_apply=%main.11
  ROOT %tuple.16 = (f32[2,8]{1,0}) tuple(f32[2,8]{1,0} %call.15)
}
"""

# An in-place call after XLA's optimisations: two results, an alias, an unwanted copy.
OPTIMIZED = """\
HloModule SyncTensorsGraph.9, is_scheduled=true, input_output_alias={ {0}: (1, {}, may-alias), \
{1}: (0, {}, must-alias) }, entry_computation_layout={(f32[4]{0}, f32[4]{0})->(f32[4]{0}, f32[1]{0})}

ENTRY %SyncTensorsGraph.9 (p0.1: f32[4], p1.2: f32[4]) -> (f32[4], f32[1]) {
  %p1.2 = f32[4]{0} parameter(1)
  %p0.1 = f32[4]{0} parameter(0)
  %copy.3 = f32[4]{0} copy(%p1.2)
  %custom-call.0 = (f32[4]{0}, /*index=1*/f32[1]{0}) custom-call(%copy.3, %p0.1), \
custom_call_target="xla_gpu_accumulate", operand_layout_constraints={f32[4]{0}, f32[4]{0}}, \
output_to_operand_aliasing={{0}: (0, {})}, api_version=API_VERSION_TYPED_FFI, backend_config={}
  %get-tuple-element.1 = f32[4]{0} get-tuple-element(%custom-call.0), index=0
  ROOT %tuple.2 = (f32[4]{0}, f32[1]{0}) tuple(%get-tuple-element.1, %get-tuple-element.1)
}
"""


def call_line(**changes) -> str:
    """A module of one custom call, each field as XLA writes it."""
    fields = {
        "shape": "f32[4]{0}",
        "operands": "f32[4]{0} %x",
        "target": "xla_gpu_op",
        "rest": "",
    } | changes
    return (
        f'  %call = {fields["shape"]} custom-call({fields["operands"]}), custom_call_target="{fields["target"]}"'
        f"{fields['rest']}\n"
    )


def test_custom_call_of_a_lowered_module():
    assert hlo_text.custom_calls(LOWERED) == [
        CustomCall(
            name="custom-call.14",
            target="xla_gpu_rms_norm",
            shape="f32[2,8]{1,0}",
            operands=("f32[2,8]{1,0}", "pred[0]{0}"),
            api_version="API_VERSION_TYPED_FFI",
            aliasing="",
            attributes="eps = 9.9999999999999995E-7 : f64",
        )
    ]


def test_custom_calls_with_a_target():
    assert len(hlo_text.custom_calls(LOWERED + OPTIMIZED)) == 2
    (call,) = hlo_text.custom_calls(LOWERED + OPTIMIZED, "xla_gpu_accumulate")
    assert call.name == "custom-call.0"
    assert hlo_text.custom_calls(LOWERED, "xla_gpu_rms") == []


def test_tuple_result_and_aliasing():
    (call,) = hlo_text.custom_calls(OPTIMIZED)
    assert call.shape == "(f32[4]{0}, /*index=1*/f32[1]{0})"
    assert call.aliasing == "{0}: (0, {})"
    assert call.attributes == ""
    assert hlo_text.input_output_aliases(OPTIMIZED) == [(0, 1), (1, 0)]
    assert hlo_text.input_output_aliases(LOWERED) == []


def test_alias_of_a_single_result():
    assert hlo_text.input_output_aliases("HloModule m, input_output_alias={ {}: (2, {}, may-alias) }\n") == [(0, 2)]


def test_instructions_in_order():
    assert [i.opcode for i in hlo_text.instructions(LOWERED)] == [
        *("parameter", "constant", "custom-call", "parameter", "call", "tuple"),
    ]
    assert hlo_text.instructions(LOWERED)[-1].name == "tuple.16"


def test_copies():
    assert [i.name for i in hlo_text.copies(OPTIMIZED)] == ["copy.3"]
    assert hlo_text.copies(LOWERED) == []
    started = "  %copy-start = (f32[4]{0}, f32[4]{0}, u32[]) copy-start(%p0)\n"
    assert [i.opcode for i in hlo_text.copies(started)] == ["copy-start"]


@pytest.mark.parametrize(
    "shape",
    [
        "f32[]",
        "pred[0]{0}",
        "token[]",
        "f8e4m3fn[2,3]{1,0}",
        "s32[<=5]{0}",
        "bf16[2,3]{0,1:T(8,128)(2,1)}",
        "()",
        "(f32[2]{0})",
        "(f32[2,3]{1,0:T(8,128)}, s32[])",
        # The result of an asynchronous call: its operands, its results, its context.
        "((f32[4]{0}, pred[0]{0}), (f32[4]{0}, f32[1]{0}), s32[])",
    ],
)
def test_shapes(shape):
    (call,) = hlo_text.custom_calls(call_line(shape=shape, rest=f", operand_layout_constraints={{{shape}, f32[]}}"))
    assert call.shape == shape
    assert call.operands == (shape, "f32[]")


@pytest.mark.parametrize(
    "attributes",
    [
        "alpha = 2.0 : f64, list = array<i64: 1, 2>",
        'text = "}", other = "{"',
        'text = "\\\\", other = "}\\""',
        "dictionary = {inner = {deep = 1 : i64}}",
        'text = "custom_call_target=\\"other\\", api_version=API_VERSION_ORIGINAL, backend_config={"',
    ],
)
def test_braces_and_quotes_in_the_backend_config(attributes):
    (call,) = hlo_text.custom_calls(
        call_line(rest=f", api_version=API_VERSION_TYPED_FFI, backend_config={{{attributes}}}, metadata={{a=1}}")
    )
    assert call.attributes == attributes
    assert (call.target, call.api_version) == ("xla_gpu_op", "API_VERSION_TYPED_FFI")


def test_fields_named_in_metadata_are_not_taken_for_the_call_s_own():
    (call,) = hlo_text.custom_calls(
        call_line(rest=', metadata={op_name="backend_config={x = 1}, api_version=API_VERSION_ORIGINAL"}')
    )
    assert (call.api_version, call.attributes) == ("", "")


def test_call_of_the_old_interface():
    """Its backend_config is a string, and it states no version."""
    (call,) = hlo_text.custom_calls(call_line(rest=', backend_config="{not = a dictionary}"'))
    assert (call.api_version, call.attributes, call.operands) == ("", "", ())


@pytest.mark.parametrize("cut", range(0, len(OPTIMIZED), 7))
def test_text_that_breaks_off(cut):
    text = OPTIMIZED[:cut]
    assert len(hlo_text.custom_calls(text)) <= 1
    assert len(hlo_text.copies(text)) <= 1
    assert len(hlo_text.input_output_aliases(text)) <= 2


HLO_LIKE = st.text(alphabet='%=(){}[],:"\\ \n.-ROTcustom-callf32s_0123456789', max_size=200)


@given(st.one_of(st.text(), HLO_LIKE, HLO_LIKE.map(lambda text: f"%a = f32[2]{{0}} custom-call({text}")))
def test_any_text_is_read_without_an_exception(text):
    for instruction in hlo_text.instructions(text):
        assert instruction.name and instruction.opcode
    assert len(hlo_text.custom_calls(text)) <= len(text.splitlines())
    hlo_text.copies(text)
    hlo_text.input_output_aliases(text)


DIMS = st.lists(st.integers(0, 10**6), max_size=4)


@st.composite
def array_shapes(draw) -> str:
    dims = draw(DIMS)
    layout = draw(st.permutations(range(len(dims))))
    text = f"{draw(st.sampled_from(['f32', 'bf16', 'pred', 's64', 'f8e5m2']))}[{','.join(map(str, dims))}]"
    return text + (f"{{{','.join(map(str, layout))}}}" if dims else "")


SHAPES = st.recursive(array_shapes(), lambda inner: st.lists(inner, max_size=4).map(lambda s: f"({', '.join(s)})"))
NAMES = st.text(alphabet=string.ascii_letters + string.digits + "_.-", min_size=1)
STRINGS = st.text(alphabet=st.characters(exclude_categories=["C", "Z"])).map(
    lambda text: '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'
)
VALUES = st.one_of(st.integers().map("{} : i64".format), st.booleans().map(lambda b: str(b).lower()), STRINGS)
ATTRIBUTES = st.dictionaries(st.from_regex(r"[a-z_]\w*", fullmatch=True), VALUES, max_size=4).map(
    lambda values: ", ".join(f"{name} = {value}" for name, value in values.items())
)
CALLS = st.builds(
    CustomCall,
    name=NAMES,
    target=st.from_regex(r"[a-z_][A-Za-z0-9_.$]*", fullmatch=True),
    shape=SHAPES,
    operands=st.lists(SHAPES, max_size=4).map(tuple),
    api_version=st.sampled_from(["", "API_VERSION_TYPED_FFI", "API_VERSION_STATUS_RETURNING"]),
    aliasing=st.sampled_from(["", "{}: (0, {})", "{0}: (1, {}), {1}: (0, {})"]),
    attributes=ATTRIBUTES,
)


def printed(call: CustomCall, root: bool) -> str:
    """The line that XLA prints for a call."""
    operands = ", ".join(f"{shape} %p{i}" for i, shape in enumerate(call.operands))
    fields = [
        f'custom_call_target="{call.target}"',
        f"operand_layout_constraints={{{', '.join(call.operands)}}}" if call.operands else "",
        f"output_to_operand_aliasing={{{call.aliasing}}}" if call.aliasing else "",
        f"api_version={call.api_version}" if call.api_version else "",
        'metadata={op_type="a" op_name="b}\\"{"}',
        f"backend_config={{{call.attributes}}}" if call.attributes else "",
    ]
    head = f"  {'ROOT ' if root else ''}%{call.name} = {call.shape} custom-call({operands})"
    return ", ".join([head, *filter(None, fields)])


@given(st.lists(st.tuples(CALLS, st.booleans()), max_size=3))
def test_custom_calls_round_trip(calls):
    text = "\n".join(printed(call, root) for call, root in calls)
    assert hlo_text.custom_calls(text) == [call for call, _ in calls]


THUNKS = """\
000: kCustomCall [source       | next=001 (1)] kCustomCall
001: kCommandBuffer [prev=000 (1) | next=004 (1)]
    002: kCustomCall [source       | next=003 (1)] kCustomCall
    003: kKernel [prev=002 (1) | sink        ] kCustomCall_fusion
004: kWhile [prev=001 (1) | sink] while
    005: kCommandBuffer [source | sink]
        006: kCustomCall [source | next=007 (1)] kCustomCall
        007: kConditional [prev=006 (1) | sink] kCommandBuffer
            008: kCustomCall [source | sink] kCustomCall
    009: kCustomCall [source | sink] kCustomCall
"""


def test_captured_calls_are_those_inside_of_command_buffers():
    assert hlo_text.captured_calls(THUNKS) == (3, 5)
    assert hlo_text.captured_calls("000: kCustomCall [source | sink] kCustomCall\n") == (0, 1)
    assert hlo_text.captured_calls("") == (0, 0)
