"""Writes the C++ of a Triton op's launcher: one function per kernel, which takes the first variant that fits a call."""

from __future__ import annotations

from pathlib import Path

from triton_spec import FLOATS, INTEGERS, POINTERS, Variant

# The most parameters that Triton adds to a kernel's own, for scratch memory that no variant needs: 3.4 one, 3.5 two.
SCRATCH_PARAMETERS = 2
_NOTE = "// Written by cmake/triton_compile.py from {op}/triton_kernels.py.\n"


def header(op: str, variants: list[Variant]) -> str:
    """triton_kernels.h: the functions that the op's CUDA handler calls."""
    functions = "".join(f"\n{_signature(first)};\n" for first in _kernels(variants))
    return f"""{_NOTE.format(op=op)}#pragma once

#if PYXLA_WITH_CUDA
#include "pyxla/ffi/triton.h"

namespace {op}_kernels {{
{functions}
}}  // namespace {op}_kernels
#endif
"""


def source(op: str, variants: list[Variant], shared: list[int], images: Path) -> str:
    """launch.cc, which also holds the variants' fat binaries.

    Args:
        shared: bytes of shared memory of each variant.
        images: the folder of the fat binaries 0.fatbin, 1.fatbin, ...
    """
    count = range(len(variants))
    sections = "".join(
        f'.balign 8\\npyxla_triton_{i}:\\n.incbin \\"{images / f"{i}.fatbin"}\\"\\n"\n    "' for i in count
    )
    declared = "".join(f"extern const char pyxla_triton_{i}[];\n" for i in count)
    kernels = "".join(
        f'    {{{i}, pyxla_triton_{i}, "{v.kernel.__name__}", {32 * v.num_warps}, {bytes_}}},  // {v}\n'
        for i, v, bytes_ in zip(count, variants, shared, strict=True)
    )
    functions = "".join(_function(first, variants) for first in _kernels(variants))
    return f"""{_NOTE.format(op=op)}#include "{op}/triton_kernels.h"

asm(".pushsection .nv_fatbin,\\"a\\",@progbits\\n"
    "{sections}.popsection\\n");

extern "C" {{
{declared}}}

namespace {op}_kernels {{
namespace {{

pyxla::TritonKernel kVariants[] = {{
{kernels}}};

}}  // namespace
{functions}
}}  // namespace {op}_kernels
"""


def _kernels(variants: list[Variant]) -> list[Variant]:
    """The first variant of each kernel."""
    return [v for i, v in enumerate(variants) if all(v.kernel is not other.kernel for other in variants[:i])]


def _signature(variant: Variant) -> str:
    parameters = ["const char* op", "cudaStream_t stream"]
    for name, type_ in variant.types.items():
        cpp = "pyxla::TritonPointer" if type_ in POINTERS else "int64_t" if type_ in INTEGERS else "double"
        parameters.append(f"{cpp} arg_{name}")
    camel = "".join(part.capitalize() for part in variant.kernel.__name__.split("_"))
    return f"ffi::Error Launch{camel}({', '.join(parameters)})"


def _function(first: Variant, variants: list[Variant]) -> str:
    branches = "".join(_branch(i, v) for i, v in enumerate(variants) if v.kernel is first.kernel)
    shown = ", ".join(f'{{"{name}", arg_{name}}}' for name in first.types)
    return f"""
{_signature(first)} {{{branches}
  return pyxla::NoTritonVariant(op, "{first.kernel.__name__}", {{{shown}}});
}}
"""


def _branch(index: int, variant: Variant) -> str:
    conditions, locals_ = [], []
    for name, type_ in variant.types.items():
        if type_ in POINTERS:
            conditions.append(f"arg_{name}.dtype == ffi::{POINTERS[type_]}")
            locals_.append(f"const void* kernel_{name} = arg_{name}.data;")
        elif type_ in INTEGERS:
            locals_.append(f"{INTEGERS[type_]} kernel_{name} = static_cast<{INTEGERS[type_]}>(arg_{name});")
            if type_ == "i32":
                conditions.append(f"pyxla::FitsInt32(arg_{name})")
        else:
            locals_.append(f"{FLOATS[type_]} kernel_{name} = static_cast<{FLOATS[type_]}>(arg_{name});")
        if name in variant.divisible_by_16:
            conditions.append(f"pyxla::DivisibleBy16(arg_{name})")
    conditions.append(variant.when.cpp)
    grid = ", ".join(size.cpp for size in variant.grid)
    # The driver reads as many of them as the kernel has.
    arguments = ", ".join([*(f"&kernel_{name}" for name in variant.types), *["&scratch"] * SCRATCH_PARAMETERS])
    body = "\n    ".join([*locals_, "const void* scratch = nullptr;", f"const void* arguments[] = {{{arguments}}};"])
    return f"""
  if ({" && ".join(conditions)}) {{
    {body}
    return kVariants[{index}].Launch(op, stream, {{{grid}}}, arguments);
  }}"""
