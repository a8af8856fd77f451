"""Prints what the build takes from installed wheels, for CMake: the folder of XLA's FFI headers; nvcc or NONE; Triton's
version or NONE."""

import importlib.metadata
import importlib.util
import pathlib
import sys


def package_folders(name: str) -> list[pathlib.Path]:
    spec = importlib.util.find_spec(name)
    return [pathlib.Path(p) for p in (spec.submodule_search_locations or [])] if spec else []


headers = [folder / "include" for folder in package_folders("jaxlib")]
headers = [folder for folder in headers if (folder / "xla/ffi/api/ffi.h").is_file()]
if not headers:
    sys.exit(
        f"build: jaxlib: expected XLA's FFI headers in the wheel, got none for {sys.executable}\n"
        "hint: run through bin/devtool, which installs the locked wheels"
    )
compilers = [folder / "cu13/bin/nvcc" for folder in package_folders("nvidia")]
nvcc = next((path for path in compilers if path.is_file()), "NONE")
triton = importlib.metadata.version("triton") if package_folders("triton") else "NONE"
print(headers[0], nvcc, triton, sep=";")
