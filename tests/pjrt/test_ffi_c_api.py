"""The ctypes structures of pyxla.pjrt.ffi_c_api have the layout that a compiler gives those of XLA's own header."""

import re
import subprocess
from pathlib import Path

import jaxlib

from pyxla.op.dtypes import DTYPES
from pyxla.pjrt import ffi_c_api

INCLUDE = Path(jaxlib.__file__).parent / "include"
# ctypes structure -> XLA's, and the names of its fields in both where they differ.
STRUCTURES = {
    "Version": ("XLA_FFI_Api_Version", {"major": "major_version", "minor": "minor_version"}),
    "ByteSpan": ("XLA_FFI_ByteSpan", {"data": "ptr", "size": "len"}),
    "RegisterArgs": ("XLA_FFI_Handler_Register_Args", {}),
    "MessageArgs": ("XLA_FFI_Error_GetMessage_Args", {}),
    "ErrorCreateArgs": ("XLA_FFI_Error_Create_Args", {"code": "errc"}),
    "ContextArgs": ("XLA_FFI_Stream_Get_Args", {"context": "ctx", "value": "stream"}),
    "ScheduleArgs": ("XLA_FFI_ThreadPool_Schedule_Args", {"context": "ctx"}),
    "Buffer": ("XLA_FFI_Buffer", {}),
    "Scalar": ("XLA_FFI_Scalar", {}),
    "Array": ("XLA_FFI_Array", {}),
    "Attributes": ("XLA_FFI_Attrs", {"values": "attrs"}),
    "CallFrame": (
        "XLA_FFI_CallFrame",
        {"context": "ctx", "operands": "args", "results": "rets", "attributes": "attrs"},
    ),
}
HEAD = {"struct_size": "struct_size", "extension": "extension_start"}


def fields_of(name):
    structure = getattr(ffi_c_api, name)
    own = [field[0] for base in reversed(structure.__mro__) for field in vars(base).get("_fields_", ())]
    return structure, own


def in_c(name, field):
    if name == "RegisterArgs" and field in ("instantiate", "prepare", "initialize", "execute"):
        return f"bundle.{field}"
    return STRUCTURES[name][1].get(field, HEAD.get(field, field))


def test_layouts_and_numbers(tmp_path):
    lines, want = [], []
    for name, (c_name, _) in STRUCTURES.items():
        structure, own = fields_of(name)
        for field in own:
            lines.append(f'printf("%zu\\n", offsetof({c_name}, {in_c(name, field)}));')
            want.append((f"{name}.{field}", getattr(structure, field).offset))
    header = INCLUDE / "xla/ffi/api/c_api.h"
    functions = re.findall(r"_XLA_FFI_API_STRUCT_FIELD\((XLA_FFI_\w+)\)", header.read_text())
    assert [name.removeprefix("XLA_FFI").replace("_", "").lower() for name in functions] == [
        name.replace("_", "") for name in ffi_c_api.FUNCTIONS
    ]
    for c_name, name in zip(functions, ffi_c_api.FUNCTIONS, strict=True):
        lines.append(f'printf("%zu\\n", offsetof(XLA_FFI_Api, {c_name}));')
        want.append((name, getattr(ffi_c_api.Api, name).offset))
    for dtype, row in DTYPES.items():
        lines.append(f'printf("%d\\n", XLA_FFI_DataType_{row.hlo.upper()});')
        want.append((str(dtype), row.ffi))
    source = tmp_path / "layouts.cc"
    body = "\n  ".join(lines)
    source.write_text(f'#include <cstddef>\n#include <cstdio>\n#include "{header}"\nint main() {{\n  {body}\n}}\n')
    program = tmp_path / "layouts"
    subprocess.run(["g++", "-std=c++20", f"-I{INCLUDE}", source, "-o", program], check=True)
    printed = subprocess.run([program], check=True, capture_output=True, text=True).stdout.split()
    assert [(name, int(number)) for (name, _), number in zip(want, printed, strict=True)] == want
