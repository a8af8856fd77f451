"""pyxla.hlo.wire, compared with jaxlib's own protocol buffers in reading and writing."""

from hypothesis import given
from hypothesis import strategies as st
from jaxlib._jax import CompileOptions

from pyxla.hlo import dump, wire


def test_options_as_jaxlib_reads_them():
    folder = "/tmp/" + "x" * 300  # a length of two bytes
    flags = {"xla_dump_to": folder, "xla_dump_hlo_as_text": True, "xla_gpu_autotune_level": 300}
    assert dict(CompileOptions.ParseFromString(dump.overrides(**flags)).env_option_overrides) == flags


@given(st.lists(st.tuples(st.integers(1, 2**20), st.binary(max_size=400))))
def test_fields_come_back(fields):
    message = b"".join(wire.field(number, content) for number, content in fields)
    assert wire.length_delimited(message) == fields
    for cut in (b"\x0a\x05cut", b"\x0a", b"\x0a\x85", b"\x8a"):
        assert wire.length_delimited(message + cut) is None


def test_another_kind_of_field_is_refused():
    assert wire.length_delimited(wire.field(1, 5)) is None
