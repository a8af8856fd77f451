"""Which names an op and its arguments can have: each becomes a name in Python, C++, CMake and a file name."""

from __future__ import annotations

import keyword
import re

_FORM = re.compile(r"[a-z][a-z0-9_]*")
_LONGEST = 64
_FORM_TEXT = f"lower case letters, digits and _, a letter first, at most {_LONGEST} characters"

# Keywords, and macros that the system's headers define in lower case.
_CPP_WORDS = """
alignas alignof and and_eq asm auto bitand bitor bool break case catch char char8_t char16_t char32_t class compl
concept const consteval constexpr constinit const_cast continue co_await co_return co_yield decltype default delete do
double dynamic_cast else enum explicit export extern false float for friend goto if inline int long mutable namespace
new noexcept not not_eq nullptr operator or or_eq private protected public register reinterpret_cast requires return
short signed sizeof static static_assert static_cast struct switch template this thread_local throw true try typedef
typeid typename union unsigned using virtual void volatile wchar_t while xor xor_eq
assert errno linux main stderr stdin stdout unix
"""
# Targets of CMake and ninja, other names in kernels/ and in an op folder, and other packages of the flake.
_BUILD_WORDS = """
all cases clean codegen conftest default depend devtool docs edit_cache help install kernels
list_install_components package package_source pjrt_proxy preinstall python rebuild_cache set_device test triton_kernels
toolchain uninstall wheel
"""
# lib<name>.so would be mistaken for a library that torch or CUDA loads by that name.
_LIBRARIES = """
c10 c10_cuda c10d cublas cuda cudart cudnn nccl nvrtc python3 shm torch torch_cpu torch_cuda torch_global_deps
torch_python xla
"""
# Names that an op's Python files and torch.ops.xla_gpu already use.
_TAKEN_OPS = "accumulation_dtype bad check custom_op list name pytest pyxla std testing tuple"
_FUNCTIONAL = "_functional"
# Names that the Python files of an implementation use, and the attributes of an op in torch.ops.
_TAKEN_IMPLEMENTATIONS = "implementation name op overloads pytest pyxla testing"
# Names that the functions of an op's files use. A test gives an argument every other name that the templates contain.
_TAKEN_ARGUMENTS = """
accumulation_dtype blend check cuda_stream element_count factor ffi i int64_t len params piece_begin piece_end pyxla
self std sum tensor_dtype thread_pool tl torch triton wide
"""


def op_problem(name: str) -> str | None:
    """What an op's name has to be, or None if it is valid."""
    if problem := _word_problem(name):
        return problem
    if name in _BUILD_WORDS.split():
        return "a name that the build does not use itself"
    if name in _LIBRARIES.split():
        return f"a name whose lib{name}.so is no library of torch or CUDA"
    if name in _TAKEN_OPS.split():
        return "a name that an op's own files do not use"
    if name.startswith("test_"):
        return "a name without test_ at its start, which marks test files"
    if name.endswith(_FUNCTIONAL):
        return f"a name without {_FUNCTIONAL} at its end, which names the functional form of an in-place op"
    return None


def implementation_problem(name: str) -> str | None:
    """What the name of an implementation has to be, or None if it is valid."""
    if problem := _word_problem(name):
        return problem
    return "a name that its folder's files do not use" if name in _TAKEN_IMPLEMENTATIONS.split() else None


def argument_problem(name: str) -> str | None:
    """What an argument's name has to be, or None if it is valid."""
    if problem := _word_problem(name):
        return problem
    return "a name that the op's own files do not use" if name in _TAKEN_ARGUMENTS.split() else None


def _word_problem(name: str) -> str | None:
    if not _FORM.fullmatch(name) or len(name) > _LONGEST:
        return _FORM_TEXT
    if keyword.iskeyword(name):
        return "a name that is no keyword of Python"
    if name in _CPP_WORDS.split() or "__" in name:
        return "a name that C++ does not reserve"
    return None
