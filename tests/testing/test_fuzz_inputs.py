"""Which arguments fuzz changes."""

from hypothesis import HealthCheck, Phase, given, settings
from pyxla_kernels.paged_attention.paged_attention import paged_attention
from pyxla_kernels.paged_attention_flashinfer.paged_attention_flashinfer import FUZZ_KEEPS, flashinfer

from pyxla.fuzz.inputs import inputs_of


def changed_arguments(op) -> set[str]:
    changed = set()

    @settings(
        max_examples=60, derandomize=True, deadline=None, phases=[Phase.generate], suppress_health_check=HealthCheck
    )
    @given(inputs_of(op))
    def draw(drawn):
        variation = drawn.variation
        changed.update(
            name for name, *_ in (*variation.sizes, *variation.dtypes, *variation.values, *variation.attributes)
        )

    draw()
    return changed


def test_implementation_keeps_more_arguments_than_its_op():
    assert changed_arguments(paged_attention) >= {"query", "kv_cache", "context_lens"}
    assert not set(FUZZ_KEEPS) & changed_arguments(flashinfer)
