"""Modules that `import torch_xla` defers, pyxla/torch_backend/deferred.py. Each test is a new process."""

import json
import os
import subprocess
import sys

import pytest

IMPORTS = ["import torch, torch_xla", "import torch_xla, torch", "import pyxla, torch, torch_xla"]
COMPILERS = ["torch._dynamo", "torch._inductor", "torch._functorch.aot_autograd", "torch_xla._dynamo.dynamo_bridge"]
# For torch_xla without pyxla.
ALONE = {"TORCH_DEVICE_BACKEND_AUTOLOAD": "0"}


def seen(script: str, **environment: str):
    done = subprocess.run(
        [sys.executable, "-c", f"import json, sys\n{script}"],
        env={**os.environ, "PJRT_DEVICE": "CPU", **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize("imports", IMPORTS)
def test_an_eager_program_loads_no_compiler(imports):
    script = f"""
{imports}
assert (torch.ones(4, device=torch_xla.device()) + 1).cpu().tolist() == [2] * 4
print(json.dumps([name for name in {[*COMPILERS, "functorch.compile", "torch_xla.stablehlo"]} if name in sys.modules]))
"""
    assert seen(script) == []


@pytest.mark.slow
def test_torch_xla_alone_loads_them():
    """If this test fails, torch_xla has fixed it, and the stand-ins can be removed."""
    script = f"import torch_xla; print(json.dumps([name for name in {COMPILERS} if name in sys.modules]))"
    assert seen(script, **ALONE) == COMPILERS


@pytest.mark.slow
@pytest.mark.parametrize("imports", IMPORTS[:2])
def test_switched_off_or_another_version(imports, tmp_path):
    """Another version of torch_xla may need the deferred modules, so it is imported unchanged."""
    script = f"{imports}; print(json.dumps([name for name in {COMPILERS} if name in sys.modules]))"
    assert seen(script, PYXLA_DEFERRED_IMPORT="0") == COMPILERS
    (tmp_path / "torch_xla-2.10.0.dist-info").mkdir()
    (tmp_path / "torch_xla-2.10.0.dist-info/METADATA").write_text("Name: torch_xla\nVersion: 2.10.0\n")
    # pyxla itself, which the plugin would load, refuses this version.
    path = f"{tmp_path}:{os.environ.get('PYTHONPATH', '')}"
    assert seen(script, PYTHONPATH=path, XLA_REGISTER_INSTALLED_PLUGINS="0") == COMPILERS


@pytest.mark.slow
@pytest.mark.parametrize("imports", IMPORTS)
def test_nothing_stands_in_afterwards(imports):
    script = f"""
{imports}
print(json.dumps([name for name, module in sys.modules.items() if type(module).__name__ == "_StandIn"]))
"""
    assert seen(script) == []


@pytest.mark.slow
@pytest.mark.parametrize(
    "what",
    [
        "{name: repr(value) for name, value in torch._dynamo.config.get_config_copy().items()}",
        # Handlers that torch_xla assigns to operators: XLA's and its own.
        'sorted(torch._C._dispatch_get_registrations_for_dispatch_key("XLA"))',
        'sorted(name for name in torch._C._dispatch_get_all_op_names() if name.startswith("xla::"))',
        # Handlers of operators that nothing defines: torch_xla implements some of quantized_decomposed, which torch's
        # inductor defines.
        "[line for line in torch._C._dispatch_find_dangling_impls() if 'XLA' in line or 'quantized' in line]",
        # A part is an attribute of its package once it is loaded.
        "(torch_xla.stablehlo, torch_xla._dynamo) and sorted({*dir(torch_xla)} - {'__getattr__'})",
        "[torch_xla.save_as_stablehlo.__name__, torch_xla.save_torch_model_as_stablehlo.__module__]",
    ],
    ids=["settings", "handlers", "operators", "undefined", "names", "functions"],
)
def test_as_without_us(what):
    script = f"import torch, torch_xla; print(json.dumps({what}))"
    # Sets are printed in the order of their hashes.
    assert seen(script, PYTHONHASHSEED="0") == seen(script, PYTHONHASHSEED="0", **ALONE)


@pytest.mark.slow
def test_a_module_as_an_attribute():
    script = """
import torch, torch_xla
before = "torch_xla.stablehlo" in sys.modules
names = [torch_xla.stablehlo.__name__, torch_xla._dynamo.dynamo_bridge.__name__]
try:
    torch_xla.nothing
except AttributeError as error:
    print(json.dumps([before, *names, str(error)]))
"""
    error = "'module' object has no attribute 'nothing'"
    assert seen(script) == [False, "torch_xla.stablehlo", "torch_xla._dynamo.dynamo_bridge", error]


@pytest.mark.slow
def test_a_function_of_torch_xla(tmp_path):
    script = f"""
import torch, torch_xla
exported = torch.export.export(torch.nn.Linear(2, 3), (torch.ones(1, 2),))
torch_xla.save_as_stablehlo(exported, {str(tmp_path / "saved")!r})
print(json.dumps(None))
"""
    seen(script)
    assert "stablehlo.dot_general" in (tmp_path / "saved/functions/forward.mlir").read_text()


@pytest.mark.slow
def test_scan_and_its_gradient():
    """torch_xla's scan uses three functions of functorch.compile. Running sums of 1 to 4, and their gradient."""
    script = """
import torch, torch_xla
from torch_xla.experimental.scan import scan
xs = torch.arange(1.0, 5, device=torch_xla.device(), requires_grad=True)
total, sums = scan(lambda total, x: (total + x, total + x), torch.zeros((), device=torch_xla.device()), xs)
sums.sum().backward()
print(json.dumps([sums.cpu().tolist(), xs.grad.cpu().tolist()]))
"""
    assert seen(script) == [[1, 3, 6, 10], [4, 3, 2, 1]]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["torch._dynamo", "functorch.compile", "requests"])
def test_what_is_loaded_already_is_not_touched(name):
    script = f"""
import torch, {name}
before = sys.modules["{name}"]
import torch_xla
print(json.dumps([sys.modules["{name}"] is before, torch._dynamo.config.automatic_dynamic_shapes]))
"""
    assert seen(script) == [True, False]


@pytest.mark.slow
def test_more_than_torch_xla_asks_for():
    """As in another version: the module is loaded, and attributes that were set before are kept."""
    script = """
import torch
from pyxla_torch_backend import deferred
deferred.begin()
torch._dynamo.config.automatic_dynamic_shapes = False
lazy = "torch._dynamo.utils" not in sys.modules
from functorch.compile import aot_module
import yaml.nodes
import torch._dynamo.utils
torch._dynamo.config.suppress_errors = True
deferred.end()
config = torch._dynamo.config
print(json.dumps([
    lazy, aot_module.__name__, yaml.nodes.ScalarNode.__name__, config.automatic_dynamic_shapes, config.suppress_errors
]))
"""
    assert seen(script) == [True, "aot_module", "ScalarNode", False, True]


@pytest.mark.slow
def test_torch_xla_first_and_without_plugins():
    """Then pyxla cannot report that torch_xla is loaded."""
    script = """
import gc
before = gc.get_threshold()
import torch_xla
stand_ins = [name for name, module in sys.modules.items() if type(module).__name__ == "_StandIn"]
print(json.dumps([stand_ins, gc.get_threshold() == before, "torch._dynamo" in sys.modules, "pyxla" in sys.modules]))
"""
    assert seen(script, XLA_REGISTER_INSTALLED_PLUGINS="0") == [[], True, False, False]


@pytest.mark.slow
def test_torch_xla_first_and_it_fails(tmp_path):
    """pyxla does not see the end of the import; a remaining stand-in loads its module for any name."""
    (tmp_path / "torch_xla.py").write_text("import torch, yaml\nraise ImportError(type(yaml).__name__)")
    script = """
try:
    import torch_xla
except ImportError as error:
    import yaml, requests, torch
    found = [str(error), yaml.__version__[:1], requests.__name__, yaml.safe_load("[1]")]
    print(json.dumps([*found, torch._dynamo.config.suppress_errors, type(sys.modules["yaml"]).__name__]))
"""
    path = f"{tmp_path}:{os.environ.get('PYTHONPATH', '')}"
    assert seen(script, PYTHONPATH=path) == ["_StandIn", "6", "requests", [1], False, "module"]


@pytest.mark.slow
def test_an_import_that_fails_leaves_nothing(tmp_path):
    (tmp_path / "torch_xla.py").write_text("from functorch.compile import aot_function\nraise ImportError('not here')")
    script = """
import torch
try:
    import torch_xla
except ImportError:
    pass
import functorch.compile, yaml
print(json.dumps([functorch.compile.aot_function.__module__, yaml.safe_load("[1]")]))
"""
    path = f"{tmp_path}:{os.environ.get('PYTHONPATH', '')}"
    assert seen(script, PYTHONPATH=path) == ["torch._functorch.aot_autograd", [1]]
