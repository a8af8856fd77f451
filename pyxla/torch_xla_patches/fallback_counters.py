"""torch_xla clears its counters whenever torch.compile looks for operations that it has to run on the CPU.

So a count of these operations that spans a compilation starts again from zero. The patch adds up the cleared counts.
"""

from __future__ import annotations

from collections import Counter

from pyxla.torch_xla_patches import release


class FallbackCounter:
    """Counts the operations that ran on the CPU because torch_xla has no lowering for them, from its creation on."""

    def __init__(self) -> None:
        from torch_xla.debug import metrics

        release("fallback_counters")
        self._metrics, self._clear = metrics, metrics.clear_counters
        self._cleared: Counter[str] = Counter()
        self._before = self._counters()
        metrics.clear_counters = self._clear_counters

    def counts(self) -> Counter[str]:
        """Name of each operation and how often it ran."""
        return self._cleared + self._counters() - self._before

    def stop(self) -> None:
        """Removes the patch."""
        self._metrics.clear_counters = self._clear

    def _counters(self) -> Counter[str]:
        metrics = self._metrics
        return Counter({name: metrics.counter_value(name) or 0 for name in metrics.executed_fallback_ops()})

    def _clear_counters(self) -> None:
        self._cleared.update(self._counters())
        self._clear()
