"""The figures that `devtool report` reads from machine code, compared with ptxas and the ELF file."""

import io
import re
import struct
import subprocess
import threading
from pathlib import Path

import pytest
from elftools.elf.elffile import ELFFile

from devtool import project
from devtool.errors import DevtoolError
from devtool.profile import sass
from devtool.profile.sass import CLASSES, find_cuobjdump, kernels_of, read_kernels, source_name

# Two kernels: one with shared memory and float arithmetic, one whose array must be in local memory.
PTX = """
.version 8.0
.target {architecture}
.address_size 64
.visible .entry _ZN3abc6KernelIfLi4EEEvPKfPf(.param .u64 in, .param .u64 out)
{{
  .shared .align 4 .f32 tile[64];
  .reg .u64 %p<4>; .reg .f32 %f<4>; .reg .u32 %r<2>;
  ld.param.u64 %p0, [in]; ld.param.u64 %p1, [out];
  ld.global.f32 %f0, [%p0];
  mov.u64 %p2, tile;
  st.shared.f32 [%p2+4], %f0; bar.sync 0; ld.shared.f32 %f1, [%p2+8];
  fma.rn.f32 %f2, %f0, %f1, %f0;
  st.global.f32 [%p1], %f2;
  ret;
}}
.visible .entry spills(.param .u64 out, .param .u32 at) .maxntid 64, 2, 1
{{
  .local .align 4 .b8 array[64];
  .reg .u64 %p<5>; .reg .u32 %r<4>;
  ld.param.u64 %p0, [out]; ld.param.u32 %r0, [at];
  mov.u64 %p1, array; cvta.local.u64 %p2, %p1; cvta.to.local.u64 %p3, %p2;
  mul.wide.u32 %p4, %r0, 4; add.u64 %p4, %p3, %p4;
  st.local.u32 [%p3], %r0; st.local.u32 [%p3+4], 7; st.local.u32 [%p3+8], 9;
  ld.local.u32 %r1, [%p4];
  st.global.u32 [%p0], %r1;
  ret;
}}
"""


def assemble(folder: Path, architecture: str) -> tuple[Path, Path, str]:
    """A cubin of the two kernels, the same cubin in a library's container, and ptxas' output for it."""
    source, cubin, container = folder / "k.ptx", folder / "k.cubin", folder / "k.fatbin"
    source.write_text(PTX.format(architecture=architecture))
    ptxas = Path(find_cuobjdump() or "").parent / "ptxas"
    if not ptxas.is_file():
        pytest.skip("needs cuobjdump and ptxas, of the CUDA toolkit or of triton's wheel")
    command = [ptxas, "-v", f"-arch={architecture}", source, "-o", cubin]
    said = subprocess.run(command, check=True, capture_output=True, text=True).stderr
    code = cubin.read_bytes()
    number = int(re.sub(r"\D", "", architecture))
    entry = struct.pack("<HHIQIIHHIIIQQQ", 2, 0x101, 64, len(code), 0, 64, 7, 1, number, 0, 0, 0x11, 0, 0)
    container.write_bytes(struct.pack("<IHHQ", 0xBA55ED50, 1, 16, len(entry) + len(code)) + entry + code)
    return cubin, container, said


def instructions(cubin: Path, symbol: str) -> int:
    """The number of 16-byte instructions other than NOP (an opcode whose low bits are 0x918)."""
    section = ELFFile(io.BytesIO(cubin.read_bytes())).get_section_by_name(f".text.{symbol}")
    opcodes = [word & 0xFFF for word, _ in struct.iter_unpack("<QQ", section.data())]
    return sum(opcode != 0x918 for opcode in opcodes)


@pytest.mark.parametrize("architecture", ["sm_80", "sm_90"])
def test_figures_are_those_of_ptxas(tmp_path, architecture):
    cubin, container, said = assemble(tmp_path, architecture)
    found = {kernel.name: kernel for kernel in read_kernels("profile", container, find_cuobjdump(), threading.Event())}
    assert found.keys() == {"Kernel<float, 4>", "spills"}
    for symbol, kernel in zip(("_ZN3abc6KernelIfLi4EEEvPKfPf", "spills"), found.values(), strict=True):
        about = said.partition(f"properties for {symbol}")[2].partition("Compiling")[0]
        assert kernel.architecture == architecture
        assert kernel.registers == int(re.search(r"Used (\d+) registers", about)[1])
        assert kernel.stack == int(re.search(r"(\d+) bytes stack frame", about)[1])
        assert kernel.mix.total() == instructions(cubin, symbol)
    tile, spills = found.values()
    # From sm_90 on CUDA reserves 1 KiB of a CTA's shared memory.
    assert tile.shared == 64 * 4 + (1024 if architecture == "sm_90" else 0)
    assert tile.mix["shared memory"] == 2 and tile.mix["float"] == 1 and tile.mix["global memory"] == 2
    assert (tile.stack, spills.stack) == (0, 64) and tile.mix["local memory"] == 0 and spills.mix["local memory"] >= 2
    assert sass.spilled(found.values()) == 1
    assert (tile.threads, spills.threads) == (None, 128)


def test_kernels_of_one_name_are_several(tmp_path):
    """Triton compiles a function many times, each time into a separate ELF file with the same symbol."""
    _, container, _ = assemble(tmp_path, "sm_80")
    header, entry = container.read_bytes()[:16], container.read_bytes()[16:]
    magic, version, size, length = struct.unpack("<IHHQ", header)
    container.write_bytes(struct.pack("<IHHQ", magic, version, size, 2 * length) + entry + entry)
    once, twice, *others = read_kernels("profile", container, find_cuobjdump(), threading.Event())
    assert once == twice and once.name == "Kernel<float, 4>" and [kernel.name for kernel in others] == ["spills"] * 2


@pytest.mark.parametrize(
    ("instruction", "group"),
    [
        *[("HGMMA", "tensor"), ("HMMA", "tensor"), ("UTCHMMA", "tensor"), ("IMAD", "integer"), ("MUFU", "float")],
        *[("LDGSTS", "global memory"), ("LDGDEPBAR", "control"), ("LDS", "shared memory"), ("LDSM", "shared memory")],
        *[("STL", "local memory"), ("LD", "global memory"), ("LDC", "moves, rest"), ("F2FP", "convert")],
        *[("REDUX", "moves, rest"), ("RED", "global memory"), ("BAR", "control"), ("BREV", "integer")],
    ],
)
def test_class_of_an_instruction(instruction, group):
    assert sass._class_of(instruction) == group
    assert group in (*CLASSES, sass.REST)


@pytest.mark.parametrize(
    ("symbol", "name"),
    [
        ("_ZN10simple_add15SimpleAddKernelI6__halfLi8EEEvPKT_S4_PS2_llf", "SimpleAddKernel<__half, 8>"),
        ("_ZN5pyxla13RmsNormKernelI13__nv_bfloat16fLi1ELb0EEEvNS_6ParamsE", "RmsNormKernel<bfloat16, float, 1, false>"),
        ("plain_c", "plain_c"),
    ],
)
def test_names_are_those_of_the_source(symbol, name):
    assert source_name(symbol) == name


def test_library_without_cuda_code(tmp_path):
    (tmp_path / "none.cc").write_text("int answer() { return 42; }\n")
    library = tmp_path / "libnone.so"
    subprocess.run(["g++", "-shared", "-fPIC", tmp_path / "none.cc", "-o", library], check=True)
    assert read_kernels("profile", library, find_cuobjdump(), threading.Event()) == []


def test_file_that_is_no_library(tmp_path):
    library = tmp_path / "libbroken.so"
    library.write_text("not a library")
    with pytest.raises(
        DevtoolError, match=r"profile: libbroken\.so: expected a library that cuobjdump can read, got"
    ) as e:
        read_kernels("profile", library, find_cuobjdump(), threading.Event())
    assert e.value.message.endswith("\n\nhint: devtool build broken --clean")


def test_reading_ends_when_it_is_told_to(tmp_path):
    _, container, _ = assemble(tmp_path, "sm_80")
    stop = threading.Event()
    stop.set()
    with pytest.raises(KeyboardInterrupt):
        read_kernels("profile", container, find_cuobjdump(), stop)


def test_without_cuobjdump(tmp_path, monkeypatch):
    library = tmp_path / "libx.so"
    library.touch()
    monkeypatch.setattr(project, "library", lambda op: library)
    monkeypatch.setattr(sass, "find_cuobjdump", lambda: None)
    with pytest.raises(
        DevtoolError, match="report: cuobjdump: expected it on PATH, in the CUDA toolkit or in triton's"
    ):
        kernels_of("report", "x")
