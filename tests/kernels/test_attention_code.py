"""The machine code of paged_attention's kernels on sm_90a: what a source cannot make the compiler keep."""

import os
import re
import subprocess
from pathlib import Path

import pytest

from devtool import project
from devtool.profile.sass import find_cuobjdump

_KERNEL = re.compile(r"Function : (\S*DecodeKernel\S*Shape\S+?Li\d+ELi(\d)\S*)")
# The loads of __ldcg, and the first register that each writes.
_LOAD = re.compile(r"LDG\.E(?:\.64|\.128)?\.STRONG\.GPU (R\d+),")


def loads_of_decode(code: str) -> dict[tuple[str, int], list[str]]:
    """Kernel and tiles of eight rows -> the registers of its loads of splits, in their order."""
    kernels = {}
    for function in re.split(r"(?=\bFunction : )", code):
        if found := _KERNEL.match(function):
            kernels[found[1], int(found[2])] = _LOAD.findall(function)
    return kernels


@pytest.fixture(scope="module")
def code():
    """The machine code of paged_attention's kernels."""
    library, cuobjdump = project.library("paged_attention"), find_cuobjdump()
    if not library.is_file() or cuobjdump is None:
        pytest.skip("needs a built library of paged_attention, and cuobjdump")
    command = [cuobjdump, "-sass", "-arch", "sm_90a", library]
    # cuobjdump calls nvdisasm, which is in the same folder.
    environment = os.environ | {"PATH": os.pathsep.join([str(Path(cuobjdump).parent), os.environ.get("PATH", "")])}
    code = subprocess.run(command, env=environment, check=True, capture_output=True, text=True).stdout
    if "Function" not in code:
        pytest.skip("needs a library with CUDA code: devtool build paged_attention --cuda on")
    return code


def test_reduction_loads_do_not_wait_for_one_another(code):
    """ReduceSplits issues eight loads for sixteen rows, or sixteen for eight, before it uses one. If the compiler gives
    them one register, each waits for the one before it, and few long contexts take 10 % longer."""
    kernels = loads_of_decode(code)
    assert len(kernels) == 34, (
        "three dtypes, five shapes of a CTA, without and with the code for few work tiles; "
        "two dtypes, two shapes for 32 rows"
    )
    least = {1: 16, 2: 8}
    # That code loads the results of a work tile's warps, in the same way, before the splits.
    last = {name.replace("ELb0E", "ELb1E"): len(loads) for (name, _), loads in kernels.items() if "ELb0E" in name}
    splits = {(name, tiles): loads[-last.get(name, len(loads)) :] for (name, tiles), loads in kernels.items()}
    waiting = {kernel: loads for kernel, loads in splits.items() if len(set(loads)) < least[kernel[1]]}
    assert not waiting


def test_prefill_does_not_wait_for_each_wgmma(code):
    """The compiler waits for each wgmma if it takes a branch around the loop for divergent: a third more time."""
    functions = [
        part for part in re.split(r"(?=\bFunction : )", code) if re.match(r"Function : \S*sm90\S*Prefill", part)
    ]
    waits = {part.split()[2]: part.count("WARPGROUP.DEPBAR") / part.count("HGMMA") for part in functions}
    assert len(waits) == 12, "two dtypes by four head sizes, and a float8 cache with two"
    assert not {name: share for name, share in waits.items() if share > 0.25}
