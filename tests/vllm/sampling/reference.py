"""The next token's distribution by definition, in float64, one row at a time."""

from collections.abc import Sequence

import numpy as np

from tests.vllm.sampling.parameters import Parameters


def adjusted(
    logits: np.ndarray,
    params: Parameters,
    prompt: Sequence[int] = (),
    output: Sequence[int] = (),
    grammar: Sequence[int] | None = None,
) -> np.ndarray:
    """[vocabulary]: the logits after all that also changes which token is the likeliest."""
    logits = logits.astype(np.float64)
    if grammar is not None:
        logits[[token for token in range(len(logits)) if token not in grammar]] = -np.inf
    if params.allowed_token_ids:
        logits[[token for token in range(len(logits)) if token not in params.allowed_token_ids]] = -np.inf
    for *start, last in params.bad_words_token_ids or ():
        if not start or list(output[-len(start) :]) == start:
            logits[last] = -np.inf
    if len(output) < params.min_tokens:
        logits[[token for token in params.all_stop_token_ids if token < len(logits)]] = -np.inf
    for token, bias in (params.logit_bias or {}).items():
        logits[token] += bias
    for token in {*prompt, *output}:
        factor = params.repetition_penalty
        logits[token] = logits[token] / factor if logits[token] > 0 else logits[token] * factor
    for token in set(output):
        logits[token] -= params.frequency_penalty * list(output).count(token) + params.presence_penalty
    return logits


def kept(logits: np.ndarray, params: Parameters) -> np.ndarray:
    """[vocabulary], bool: the tokens that a draw is among; all that equal the last one are in or out together."""
    weights = np.exp((logits - logits.max()) / params.temperature)
    stays = weights >= params.min_p
    if 0 < params.top_k < len(logits):
        stays &= logits >= np.sort(logits)[-params.top_k]
    inside = np.where(stays, weights, 0)
    if params.top_p < 1:
        before = np.array([inside[logits > logit].sum() for logit in logits])
        stays &= before < params.top_p * inside.sum()
    return stays & np.isfinite(logits)


def margin(logits: np.ndarray, params: Parameters) -> float:
    """How far top-p and min-p are from the nearest token's limit: within rounding either answer is right."""
    weights = np.exp((logits - logits.max()) / params.temperature)
    inside = np.where(kept(logits, Parameters(**{**vars(params), "top_p": 1.0})), weights, 0)
    reached = np.array([inside[logits >= logit].sum() for logit in logits]) / inside.sum()
    return min(np.abs(reached - params.top_p).min(), np.abs(weights - params.min_p).min())


def probabilities(logits: np.ndarray, params: Parameters) -> np.ndarray:
    """[vocabulary]: of drawing each token, from the adjusted logits."""
    if params.temperature < 1e-5:
        return np.eye(len(logits))[logits.argmax()]
    weights = np.where(kept(logits, params), np.exp((logits - logits.max()) / params.temperature), 0)
    return weights / weights.sum()
