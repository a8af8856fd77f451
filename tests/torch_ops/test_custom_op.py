"""What torch knows of an op besides how to run it."""

import pydoc

import torch

import pyxla

LSE = pyxla.find_op("paged_attention_lse")


def test_torch_s_schema_names_the_results():
    assert LSE.schema.result_names == ["out", "lse"]
    assert str(torch.ops.xla_gpu.paged_attention_lse.default._schema).endswith(" -> (Tensor out, Tensor lse)")


def test_help_shows_the_op_s_docstring():
    packet = torch.ops.xla_gpu.rms_norm
    text = pyxla.find_op("rms_norm").reference.__doc__
    assert text.startswith("x / sqrt(")
    for shown in (packet, packet.default, packet.triton):
        assert shown.__doc__ == text
        assert text.splitlines()[0] in pydoc.plain(pydoc.render_doc(shown))
