"""Compiles an op's triton_kernels.py ahead of time, and writes the C++ that launches it.

triton_compile.py OP --source FILE --architectures 80-real,90a-real --fatbinary PROGRAM --output FOLDER

A variant becomes one fat binary with code for each architecture, from which the driver takes what fits the GPU. They
lie in the library's section .nv_fatbin, where nvcc puts its own, so cuobjdump shows them.
"""

from __future__ import annotations

import argparse
import ast
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

from triton_launcher import SCRATCH_PARAMETERS, header, source
from triton_spec import SpecError, Variant, read_variants, source_of


def main() -> None:
    """Reads the command line; ends with an error in the project's one form if a kernel is wrong."""
    parser = argparse.ArgumentParser()
    parser.add_argument("op")
    for option in ("source", "architectures", "fatbinary", "output"):
        parser.add_argument(f"--{option}", required=True)
    options = parser.parse_args()
    output = Path(options.output)
    output.mkdir(parents=True, exist_ok=True)
    try:
        variants = read_variants(Path(options.source))
        shared = [
            compile_variant(variant, options.architectures.split(","), output / f"{i}.fatbin", options.fatbinary)
            for i, variant in enumerate(variants)
        ]
    except SpecError as error:
        message, hint = error.args
        sys.exit(f"{options.op}: {message}\n\nhint: {hint}")
    # Where nothing changed, what includes it is not compiled again.
    text = header(options.op, variants)
    path = output / options.op / "triton_kernels.h"
    path.parent.mkdir(exist_ok=True)
    if not path.is_file() or path.read_text() != text:
        path.write_text(text)
    (output / "launch.cc").write_text(source(options.op, variants, shared, output))


def compile_variant(variant: Variant, architectures: list[str], path: Path, fatbinary: str) -> int:
    """Writes the fat binary of a variant; returns the shared memory that a block needs, in bytes.

    Raises:
        SpecError: Triton does not compile it, or it needs what the launcher does not give.
    """
    import triton
    from triton.backends.compiler import GPUTarget

    parameters = {name: variant.types.get(name, "constexpr") for name in variant.kernel.arg_names}
    attributes = {
        (index,): [["tt.divisibility", 16]] for index, name in enumerate(parameters) if name in variant.divisible_by_16
    }
    shared, images = set(), []
    for architecture in architectures:
        number = int(re.match(r"\d+", architecture)[0])
        ast_source = triton.compiler.ASTSource(variant.kernel, parameters, dict(variant.constants), attributes)
        options = {"num_warps": variant.num_warps, "num_stages": variant.num_stages}
        try:
            compiled = triton.compile(ast_source, target=GPUTarget("cuda", number, 32), options=options)
        except Exception as error:
            what = f"{source_of(variant)} with {variant} for {architecture}"
            reason = reason_of(error, Path(variant.kernel.fn.__code__.co_filename).read_text())
            raise SpecError(what, "a kernel that Triton compiles", reason, "correct it") from error
        _check_parameters(variant, compiled.asm["ptx"])
        metadata = compiled.metadata
        # 3.4 has no memory for a profile.
        if scratch := metadata.global_scratch_size + getattr(metadata, "profile_scratch_size", 0):
            hint = "make tensor descriptors on the host: the launcher gives no memory"
            raise SpecError(source_of(variant), "no scratch memory", f"{scratch} bytes", hint)
        shared.add(metadata.shared)
        cubin = path.with_suffix(f".{number}.cubin")
        cubin.write_bytes(compiled.asm["cubin"])
        images.append(f"--image3=kind=elf,sm={architecture.removesuffix('-real')},file={cubin}")
    subprocess.run([fatbinary, "-64", f"--create={path}", *images], check=True)
    # The most that one of them needs is enough for all.
    return max(shared)


def reason_of(error: BaseException, file: str) -> str:
    """What Triton says, with the line of the file: Triton counts lines from the kernel's `def`, or names none.

    Args:
        error: from triton.compile. Its causes say more, and those in a function that the kernel calls are nearer.
        file: the text of triton_kernels.py.
    """
    line, reason = None, ""
    while error is not None:
        if isinstance(getattr(error, "node", None), ast.AST) and error.src:
            before, found, _ = file.partition(error.src)
            line = before.count("\n") + getattr(error.node, "lineno", 1) if found else line
            reason = error.error_message or reason
        else:
            reason = f"{type(error).__name__}: {error}"
            if isinstance(error, AttributeError) and line is None:
                attributes = (node for node in ast.walk(ast.parse(file)) if isinstance(node, ast.Attribute))
                line = next((node.lineno for node in attributes if node.attr == error.name), None)
        error = error.__cause__
    where = f" in line {line}: {file.splitlines()[line - 1].strip()}" if line else ""
    return f"{reason}{where}"


def _check_parameters(variant: Variant, ptx: str) -> None:
    # Another version of Triton adds others.
    got = len(re.findall(rf"\.param .*{variant.kernel.__name__}_param_\d+\b", ptx.partition("\n{")[0]))
    if got - len(variant.types) not in (1, SCRATCH_PARAMETERS):
        expected = f"{len(variant.types)} parameters and 1 or {SCRATCH_PARAMETERS} for scratch memory"
        raise SpecError(source_of(variant), expected, got, "install the locked Triton: bin/devtool does")


def without_a_users_settings() -> dict[str, str]:
    """The environment in which the same sources give the same bytes: no TRITON_ settings, no lines of the source."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("TRITON_", "MLIR_", "LLVM_"))}
    return kept | {"TRITON_DISABLE_LINE_INFO": "1", "TRITON_ALWAYS_COMPILE": "1"}


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as cache:
        environment = without_a_users_settings() | {"TRITON_CACHE_DIR": cache}
        os.environ.clear()
        os.environ.update(environment)
        main()
