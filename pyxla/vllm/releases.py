"""The releases of vLLM that pyxla was tried with, and all that differs between them: no other module compares versions.

vLLM 0.11.0 makes one call of the worker for a step. 0.11.2 makes two: one launches the model, the other one samples and
brings the masks of grammars, which vLLM makes when it knows the tokens of the step before.
"""

from __future__ import annotations

import importlib.metadata
from collections.abc import Collection
from functools import cache
from typing import TYPE_CHECKING, Any

from pyxla.errors import PyxlaError, mismatch
from pyxla.torch_xla_patches import installed_versions

if TYPE_CHECKING:
    import numpy as np
    from vllm.config import CompilationConfig
    from vllm.v1.core.sched.output import CachedRequestData

# vLLM -> the torch that it asks for; the newest first.
RELEASES = {"0.11.2": "2.9", "0.11.0": "2.8"}


@cache
def release() -> str:
    """The release of the installed vLLM.

    Raises:
        PyxlaError: pyxla was not tried with it.
    """
    found = importlib.metadata.version("vllm").partition("+")[0]
    if found not in RELEASES:
        expected = " or ".join(f"vLLM {version} (torch {torch})" for version, torch in RELEASES.items())
        torch, _ = installed_versions()
        fitting = [version for version, wanted in RELEASES.items() if torch.startswith(f"{wanted}.")]
        raise PyxlaError(
            mismatch("vllm", "release", f"{expected}, the ones that were tried", f"vLLM {found}"),
            f"pip install vllm=={[*fitting, *RELEASES][0]}",
        )
    return found


def samples_apart() -> bool:
    """Whether vLLM calls `sample_tokens` after `execute_model`."""
    return release() != "0.11.0"


def compile_nothing(config: CompilationConfig) -> None:
    """Tells vLLM to compile no part of a model, and to build it of the layers that a platform can replace."""
    if release() == "0.11.0":
        from vllm.config import CompilationLevel

        config.level = CompilationLevel.NO_COMPILATION
        return
    from vllm.config import CompilationMode

    config.mode = CompilationMode.NONE
    # vLLM has decided about them before it asks the platform.
    config.custom_ops = ["all", *(name for name in config.custom_ops if name not in ("all", "none"))]


def shared_experts_layer() -> type:
    """SharedFusedMoE."""
    if release() == "0.11.0":
        from vllm.model_executor.layers.shared_fused_moe import SharedFusedMoE
    else:
        from vllm.model_executor.layers.fused_moe import SharedFusedMoE
    return SharedFusedMoE


def resumed(cached: CachedRequestData) -> Collection[str]:
    """The requests of a step that were preempted and get all their blocks anew."""
    if release() == "0.11.0":
        return {name for name, was in zip(cached.req_ids, cached.resumed_from_preemption, strict=True) if was}
    return cached.resumed_req_ids


def grammar_masks(planned: Any) -> dict[str, np.ndarray]:
    """Request -> the mask of its grammar.

    Args:
        planned: has them: the SchedulerOutput of 0.11.0, else a GrammarOutput or None.
    """
    if planned is None or planned.grammar_bitmask is None:
        return {}
    names = planned.structured_output_request_ids
    if release() == "0.11.0":
        # The masks are in the order of these numbers.
        names = sorted(names, key=names.__getitem__)
    return dict(zip(names, planned.grammar_bitmask, strict=False))


def numbers(array: np.ndarray) -> Any:
    """Tokens or log probabilities as the engine takes them: a list in 0.11.0, else the array."""
    return array.tolist() if release() == "0.11.0" else array
