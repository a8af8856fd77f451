"""Top-k and top-p without sorting the vocabulary: the bits of the smallest logit that stays, from the highest on.

Each bit takes one pass over the logits. All logits that equal the smallest one stay, also where top-k or top-p would be
reached with some of them. The passes are a loop of XLA: as torch's ops, which have none, the graph took half a minute
to compile.
"""

from __future__ import annotations

import torch

from pyxla.vllm.sampling.stablehlo import op

# Bits at the end of a float32 that are 0 in every number of the dtype.
ZERO_BITS = {torch.bfloat16: 16, torch.float16: 13}

# A code is the unsigned integer of a float's bits that is ordered as the floats are; that of -infinity is 0x007FFFFF.
_FUNCTIONS = """
  func.func private @candidate(%i: tensor<i32>, %code: !codes) -> !codes {
    %highest = stablehlo.constant dense<0x80000000> : !codes
    %place = stablehlo.convert %i : (tensor<i32>) -> tensor<ui32>
    %places = stablehlo.broadcast_in_dim %place, dims = [] : (tensor<ui32>) -> !codes
    %bit = stablehlo.shift_right_logical %highest, %places : !codes
    %candidate = stablehlo.or %code, %bit : !codes
    return %candidate : !codes
  }
  func.func private @reach(%logits: !floats, %code: !codes) -> !bools {
    %lowest = stablehlo.constant dense<0x007FFFFF> : !codes
    %sign = stablehlo.constant dense<0x80000000> : !codes
    %bounded = stablehlo.maximum %code, %lowest : !codes
    %positive = stablehlo.compare GE, %bounded, %sign, UNSIGNED : (!codes, !codes) -> !row_bools
    %cleared = stablehlo.xor %bounded, %sign : !codes
    %inverted = stablehlo.not %bounded : !codes
    %bits = stablehlo.select %positive, %cleared, %inverted : !row_bools, !codes
    %threshold = stablehlo.bitcast_convert %bits : (!codes) -> !row_floats
    %thresholds = stablehlo.broadcast_in_dim %threshold, dims = [0] : (!row_floats) -> !floats
    %reach = stablehlo.compare GE, %logits, %thresholds : (!floats, !floats) -> !bools
    return %reach : !bools
  }
  func.func private @count(%kept: !bools) -> !row_integers {
    %ones = stablehlo.convert %kept : (!bools) -> !integers
    %zero = stablehlo.constant dense<0> : tensor<i32>
    %count = stablehlo.reduce(%ones init: %zero) applies stablehlo.add across dimensions = [1]
      : (!integers, tensor<i32>) -> !row_integers
    return %count : !row_integers
  }
  func.func private @only(%kept: !bools, %weights: !floats) -> !floats {
    %zeros = stablehlo.constant dense<0.0> : !floats
    %only = stablehlo.select %kept, %weights, %zeros : !bools, !floats
    return %only : !floats
  }
  func.func private @sum(%weights: !floats) -> !row_floats {
    %zero = stablehlo.constant dense<0.0> : tensor<f32>
    %sum = stablehlo.reduce(%weights init: %zero) applies stablehlo.add across dimensions = [1]
      : (!floats, tensor<f32>) -> !row_floats
    return %sum : !row_floats
  }
  func.func private @needed(%top_p: !row_floats, %weights: !floats) -> !row_floats {
    %sum = func.call @sum(%weights) : (!floats) -> !row_floats
    %share = stablehlo.multiply %top_p, %sum : !row_floats
    // With 1 all stay; rounding could make the sum of some as large as that of all.
    %whole = stablehlo.constant dense<1.0> : !row_floats
    %partial = stablehlo.compare LT, %top_p, %whole : (!row_floats, !row_floats) -> !row_bools
    %infinity = stablehlo.constant dense<0x7F800000> : !row_floats
    %needed = stablehlo.select %partial, %share, %infinity : !row_bools, !row_floats
    return %needed : !row_floats
  }
"""
# `%condition` of a loop's body says for which rows the candidate holds.
_LOOP = """
    %{name}:{size} = stablehlo.while(%i = %first, %code = %nothing, {carried}) : tensor<i32>, !codes, {types}
    cond {{
      %more = stablehlo.compare LT, %i, %bits, SIGNED : (tensor<i32>, tensor<i32>) -> tensor<i1>
      stablehlo.return %more : tensor<i1>
    }} do {{
      %next = stablehlo.add %i, %step : tensor<i32>
      %candidate = func.call @candidate(%i, %code) : (tensor<i32>, !codes) -> !codes
      %reach = func.call @reach(%x, %candidate) : (!floats, !codes) -> !bools
      {condition}
      %new = stablehlo.select %holds, %candidate, %code : !row_bools, !codes
      stablehlo.return %next, %new, {names} : tensor<i32>, !codes, {types}
    }}"""
_TOP_K = _LOOP.format(
    name="k",
    size=4,
    carried="%x = %logits, %limit = %top_k",
    names="%x, %limit",
    types="!floats, !row_integers",
    condition="""%count = func.call @count(%reach) : (!bools) -> !row_integers
      %holds = stablehlo.compare GE, %count, %limit, SIGNED : (!row_integers, !row_integers) -> !row_bools""",
)
_TOP_P = _LOOP.format(
    name="p",
    size=5,
    carried="%x = %logits, %w = %inside, %limit = %needed",
    names="%x, %w, %limit",
    types="!floats, !floats, !row_floats",
    condition="""%only = func.call @only(%reach, %w) : (!bools, !floats) -> !floats
      %sum = func.call @sum(%only) : (!floats) -> !row_floats
      %holds = stablehlo.compare GE, %sum, %limit : (!row_floats, !row_floats) -> !row_bools""",
)


def _module(logits: tuple[int, int], weights: object, top_k: object, top_p: object, zero_bits: int) -> str:
    rows, columns = logits
    return f"""
!floats = tensor<{rows}x{columns}xf32>
!integers = tensor<{rows}x{columns}xi32>
!bools = tensor<{rows}x{columns}xi1>
!codes = tensor<{rows}xui32>
!row_floats = tensor<{rows}xf32>
!row_integers = tensor<{rows}xi32>
!row_bools = tensor<{rows}xi1>
module @filtered {{{_FUNCTIONS}
  func.func @main(%logits: !floats, %weights: !floats, %top_k: !row_integers, %top_p: !row_floats) -> !floats {{
    %first = stablehlo.constant dense<0> : tensor<i32>
    %step = stablehlo.constant dense<1> : tensor<i32>
    %bits = stablehlo.constant dense<{32 - zero_bits}> : tensor<i32>
    %nothing = stablehlo.constant dense<0> : !codes
    {_TOP_K}
    %in_top_k = func.call @reach(%logits, %k#1) : (!floats, !codes) -> !bools
    %inside = func.call @only(%in_top_k, %weights) : (!bools, !floats) -> !floats
    %needed = func.call @needed(%top_p, %inside) : (!row_floats, !floats) -> !row_floats
    {_TOP_P}
    %in_top_p = func.call @reach(%logits, %p#1) : (!floats, !codes) -> !bools
    %kept = func.call @only(%in_top_p, %inside) : (!bools, !floats) -> !floats
    return %kept : !floats
  }}
}}
"""


_filtered = op(
    "filtered(Tensor logits, Tensor weights, Tensor top_k, Tensor top_p, int zero_bits) -> Tensor",
    lambda logits, weights, top_k, top_p, zero_bits: torch.empty_like(weights),
    _module,
)


def filtered(
    logits: torch.Tensor, weights: torch.Tensor, top_k: torch.Tensor, top_p: torch.Tensor, zero_bits: int
) -> torch.Tensor:
    """Sets the weights of all tokens to 0 that are outside of top-k, and of those that are left, outside of top-p.

    Args:
        logits: [rows, vocabulary], float32.
        weights: [rows, vocabulary], float32; not negative, and ordered as the logits are.
        top_k: [rows], int32; as many tokens stay, and those equal to the last one.
        top_p: [rows], float32; the fewest tokens stay whose share of the weights reaches it. 1: all stay.
        zero_bits: bits at the end of every logit that are 0 (`ZERO_BITS`); 0 is right for all.

    Returns:
        [rows, vocabulary], float32.
    """
    return _filtered(logits, weights, top_k, top_p, zero_bits)
