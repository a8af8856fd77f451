"""Allowed imports: devtool -> pyxla -> torch, kernels -> pyxla. And limits of import cost and file length."""

import ast
import re
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

from tests.conftest import ROOT

KERNELS_PACKAGE = "pyxla_kernels"
RECIPE = "pyxla/cmake"
CODE = {".py", ".h", ".cuh", ".cc", ".cu", ".cmake", ".sh", ".jinja", ".lark"}
MAX_LINES = 400
# Folder of an implementation -> its op.
IMPLEMENTATIONS = {path.parent.name: path.read_text().strip() for path in ROOT.glob("kernels/*/implements")}
OPS = sorted({path.parent.name for path in ROOT.glob("kernels/*/*_ffi.cc")} - IMPLEMENTATIONS.keys())
# Each folder has a library; an op's comes before those of its implementations.
LIBRARIES = sorted([*OPS, *IMPLEMENTATIONS], key=lambda folder: (IMPLEMENTATIONS.get(folder, folder), folder))
SHARED = {path.name for path in ROOT.glob("kernels/_[a-z]*")}


@cache
def files() -> tuple[Path, ...]:
    """The project's files: those that git tracks or would add; without git (a source archive) all in its folders."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"]
    if (ROOT / ".git").exists():
        listed = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout.split("\0")
        return tuple(path for name in listed if (path := ROOT / name).is_file())
    folders = ("pyxla", "devtool", "kernels", "examples", "tests", "benchmarks", "docs", "bin")
    found = [path for folder in folders for path in (ROOT / folder).rglob("*") if path.is_file()]
    return tuple(p for p in (*found, *ROOT.glob("*.*")) if p.suffix not in (".pyc", ".so"))


# Only pytest imports these two, after itself and hypothesis' plugin.
PYTEST_PLUGINS = {
    "pyxla/pytest_plugin.py": {"pytest"},
    "devtool/testing/pytest_outcomes.py": {"pytest", "hypothesis"},
    "devtool/testing/pytest_failures.py": {"pytest"},
}


def python_files(folder: str) -> list[Path]:
    """Those of the CMake recipe are no modules of pyxla: the build runs them."""
    found = [p for p in files() if p.suffix == ".py" and p.is_relative_to(ROOT / folder)]
    return [p for p in found if folder == RECIPE or not p.is_relative_to(ROOT / RECIPE)]


def name_of(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def imports(path: Path, *, inside_functions: bool = True) -> set[str]:
    """Full names of the modules that a file imports."""
    found: set[str] = set()

    def visit(node: ast.AST) -> None:
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno}: expected an absolute import, got a relative one"
            found.add(node.module)
            found.update(f"{node.module}.{alias.name}" for alias in node.names)
        if inside_functions or not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            for child in ast.iter_child_nodes(node):
                visit(child)

    visit(ast.parse(path.read_text(), filename=str(path)))
    return found


def packages(path: Path, *, inside_functions: bool = True) -> set[str]:
    """Top-level packages that a file imports, without the standard library."""
    names = {name.partition(".")[0] for name in imports(path, inside_functions=inside_functions)}
    return names - set(sys.stdlib_module_names)


def test_there_are_files_to_read():
    assert len(files()) > 50 and python_files("pyxla") and python_files("devtool") and len(OPS) >= 3


@pytest.mark.parametrize("path", python_files("pyxla"), ids=name_of)
def test_pyxla_knows_neither_devtool_nor_the_kernels(path):
    own = {"pyxla_torch_backend"} if path.is_relative_to(ROOT / "pyxla/torch_backend") else {"pyxla"}
    own |= PYTEST_PLUGINS.get(name_of(path), set())
    # vLLM alone imports these, after itself.
    own |= {"vllm", "numpy"} if path.is_relative_to(ROOT / "pyxla/vllm") else set()
    # `devtool fuzz` runs these files.
    own |= {"hypothesis"} if path.is_relative_to(ROOT / "pyxla/fuzz") else set()
    # The user installs CuPy and Triton; only the functions that need them import them.
    assert packages(path, inside_functions=False) <= {"torch", "torch_xla", "jaxlib", *own}
    assert packages(path) <= {"torch", "torch_xla", "jaxlib", "cupy", "triton", *own}


@pytest.mark.parametrize("path", python_files("pyxla"), ids=name_of)
def test_ops_are_named_by_layers_alone(path):
    """The runtime names no op and imports no layers; pyxla.nn and pyxla.vllm find ops in torch.ops as a user does."""
    in_layers = any(path.is_relative_to(ROOT / folder) for folder in ("pyxla/nn", "pyxla/vllm"))
    assert in_layers or not [name for name in imports(path) if name.startswith("pyxla.nn")]
    # An attribute or a string in the code; docstrings and comments may mention an op.
    nodes = list(ast.walk(ast.parse(path.read_text())))
    called = {node.attr for node in nodes if isinstance(node, ast.Attribute)}
    called |= {node.value for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, str)}
    files = ("attention.py", "fused_decoder.py", "kv_cache.py", "layers.py", "moe.py", "row_parallel.py", "worker.py")
    with_ops = in_layers and path.name in files
    assert bool(called & set(OPS)) == with_ops, called & set(OPS)


@pytest.mark.parametrize("path", python_files("examples"), ids=name_of)
def test_an_example_uses_the_ops_as_a_user_does(path):
    """It imports neither a kernel's file nor devtool; the user installs the packages other than pyxla."""
    libraries = {"torch", "torch_xla", "jaxlib", "click", "rich", "safetensors", "tokenizers"}
    assert packages(path) <= libraries | {"pyxla", "examples"}


def test_nobody_imports_the_examples():
    for path in (*python_files("pyxla"), *python_files("devtool"), *python_files("kernels")):
        assert "examples" not in packages(path), name_of(path)


@pytest.mark.parametrize("path", python_files("devtool"), ids=name_of)
def test_devtool_imports_torch_and_pyxla_only_where_a_command_runs(path):
    light = {"devtool", "click", "lark", "jinja2", "packaging"} | PYTEST_PLUGINS.get(name_of(path), set())
    if path.is_relative_to(ROOT / "devtool/pages") and path.name not in ("make.py", "conf.py"):
        light |= {"sphinx", "docutils"}  # Sphinx, or its process, imports these files
    assert packages(path, inside_functions=False) <= light
    # numpy reads and writes the arrays of run-artifact.
    heavy = {"rich", "pyxla", "torch", "torch_xla", "pytest", "elftools", "grandalf", "numpy", "matplotlib"}
    heavy |= {"hypothesis", "watchfiles"}
    heavy |= {"tree_sitter", "tree_sitter_cuda"}
    assert packages(path) <= light | heavy


@pytest.mark.parametrize("path", python_files("kernels"), ids=name_of)
def test_an_op_knows_pyxla_torch_and_itself(path):
    folder = path.relative_to(ROOT / "kernels").parts[0]
    allowed = {"torch", "pyxla", KERNELS_PACKAGE}
    # The build runs this, with Triton and without torch or pyxla.
    if path.name == "triton_kernels.py":
        allowed = {"triton"}
    if path.name.startswith("test_") or folder == "_testing":
        allowed |= {"pytest", "hypothesis", "torch_xla"}
    # The user installs FlashInfer, which is imported only to time it.
    assert packages(path, inside_functions=False) <= allowed
    # A function that draws inputs for `devtool fuzz` gets hypothesis from there.
    assert packages(path) <= allowed | {"flashinfer", "hypothesis"}
    own = {name for name in imports(path) if name.partition(".")[0] == KERNELS_PACKAGE}
    # An op may use what is shared; a family uses neither an op nor another family.
    known = {folder} | (set() if folder.startswith("_") else SHARED)
    assert {name.split(".")[1] for name in own} <= known, own


def test_the_recipe_runs_beside_triton_alone():
    """Whoever builds ops with it may have neither torch nor pyxla in the build's Python."""
    found = {name_of(path): packages(path) for path in python_files(RECIPE)}
    assert len(found) == 5 and any(found.values())
    assert {name: used - {"triton", "triton_launcher", "triton_spec"} for name, used in found.items()} == {
        name: set() for name in found
    }


def loaded_by(code: str, *, whole: bool = False) -> set[str]:
    """The top-level packages, or the full names of the modules, in a fresh process after it has run the code."""
    script = f"import sys\ntry:\n    {code}\nfinally:\n    print('\\n'.join(sys.modules), file=sys.stderr)"
    command = [sys.executable, "-c", script]
    result = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True)
    return {name if whole else name.partition(".")[0] for name in result.stderr.split()}


def test_devtool_help_is_light():
    loaded = loaded_by("sys.argv = ['devtool', '--help']; from devtool.cli import main; main()")
    assert {"devtool", "click"} <= loaded
    assert not loaded & {"torch", "torch_xla", "pyxla", "rich", "jinja2", "lark", "packaging", "numpy", "pytest"}


def test_importing_pyxla_loads_no_converter():
    """jaxlib takes longer to load than all of pyxla, and is needed only for the first custom call."""
    loaded = loaded_by("import pyxla")
    assert {"pyxla", "torch", KERNELS_PACKAGE} <= loaded
    assert not loaded & {"jaxlib", "jax", "devtool", "pytest", "hypothesis"}


def test_importing_pyxla_loads_no_layers():
    """The layers access `torch.ops.xla_gpu` at import, and few users need them."""
    assert "pyxla.nn" not in loaded_by("import pyxla", whole=True)
    assert "pyxla.nn" in loaded_by("import pyxla.nn", whole=True)


def test_importing_pyxla_loads_no_inspection_and_no_export():
    """They take a third of its time, and a program that only computes uses neither."""
    later = {"pyxla.inspection", "pyxla.artifact", "pyxla.hlo"}
    assert not later & loaded_by("import pyxla", whole=True)
    assert later <= loaded_by("import pyxla; pyxla.inspect; pyxla.export; pyxla.hlo.text", whole=True)


def test_help_of_an_example_is_light():
    loaded = loaded_by("sys.argv = ['llama', '--help']; from examples.llama.__main__ import main; main()")
    assert {"examples", "click"} <= loaded and not loaded & {"torch", "torch_xla", "pyxla", "rich"}


INCLUDE = re.compile(r'^\s*#\s*include\s*([<"])([^>"]+)[>"]', re.MULTILINE)
INCLUDE_FOLDERS = (ROOT / "kernels", ROOT / "pyxla/include")
CPP = [p for p in files() if re.search(r"\.(h|cuh|cc|cu)(\.jinja)?$", p.name)]
DEVICE = [p for p in CPP if re.search(r"\.(cu|cuh)(\.jinja)?$", p.name)]
HOST = [p for p in CPP if re.search(r"_host\.(h|cc)(\.jinja)?$", p.name)]


def includes(path: Path) -> set[str]:
    """The headers that a file includes, directly and through files of kernels/ and pyxla/include/."""
    found, waiting = set(), [path]
    while waiting:
        for _, name in INCLUDE.findall(waiting.pop().read_text()):
            # In a template {{ op.name }} stands for the op.
            name = re.sub(r"\{\{.*?\}\}", "NAME", name)
            if name not in found:
                found.add(name)
                own = [folder / name for folder in INCLUDE_FOLDERS]
                template = ROOT / "devtool/scaffold/template/op" / f"{Path(name).name}.jinja"
                waiting += [p for p in (*own, template) if p.is_file()]
    return found


@pytest.mark.parametrize("path", CPP, ids=name_of)
def test_no_torch_header_in_a_kernel(path):
    assert not [name for name in includes(path) if re.match(r"torch/|ATen/|c10/|pybind11/|Python\.h", name)]


@pytest.mark.parametrize("path", DEVICE, ids=name_of)
def test_device_files_take_raw_pointers(path):
    """nvcc sees no XLA header, neither in the file nor through its includes."""
    assert not [name for name in includes(path) if name.startswith("xla/") or name == "pyxla/ffi/ffi.h"]


@pytest.mark.parametrize("path", HOST, ids=name_of)
def test_host_code_takes_raw_pointers(path):
    """Most of the time that a host file takes to compile would be XLA's headers."""
    assert not [name for name in includes(path) if name.startswith("xla/") or name == "pyxla/ffi/ffi.h"]


def test_includes_are_followed():
    assert "xla/ffi/api/ffi.h" in includes(ROOT / "kernels/simple_add/simple_add_ffi.cc")
    assert "simple_add/simple_add.h" in includes(ROOT / "kernels/simple_add/simple_add.cu")


ANONYMOUS = re.compile(r"^\s*namespace\s*\{(?!\{)", re.MULTILINE)


@pytest.mark.parametrize("path", DEVICE, ids=name_of)
def test_device_files_have_no_anonymous_namespace(path):
    """nvcc hashes the source's path into names of an anonymous namespace; the library would depend on the checkout."""
    assert not ANONYMOUS.search(path.read_text())


@pytest.mark.parametrize("path", [p for p in CPP if {"kernels", "include"} & {*p.parts}], ids=name_of)
def test_no_handler_allocates_on_the_device(path):
    """An allocation waits for the device and breaks CUDA graphs; a workspace is a result of the custom call.

    The memory that other devices write to cannot be one: they must have its address before the call.
    """
    if name_of(path) == "kernels/fused_all_reduce_rms_norm/peers.cc":
        return
    assert not re.search(r"\bcuda(Malloc|Free)\w*\(", path.read_text())


def test_files_of_code_stay_short():
    # The wrapped code of an op is not ours.
    code = [p for p in files() if (p.suffix in CODE or p.parent.name == "bin") and "vendor" not in p.parts]
    assert len(code) > 50
    lengths = {name_of(p): len(p.read_text().splitlines()) for p in code}
    assert {name: count for name, count in lengths.items() if count > MAX_LINES} == {}


# Assembled here, so that this file does not contain what it searches for.
OWN_PATHS = re.compile(
    "|".join(rf"(?<![\w.]){re.escape('/' + name)}\b" for name in ("work/", "root/", "tmp/x/", "home/"))
)


def test_no_path_of_one_machine():
    assert OWN_PATHS.search("cd " + "/home" + "/me") and not OWN_PATHS.search("docs/work/x")
    found = {}
    for path in files():
        try:
            text = path.read_text()
        except UnicodeDecodeError:
            continue
        if match := OWN_PATHS.search(text):
            found[name_of(path)] = text[match.start() : match.start() + 40]
    assert found == {}
