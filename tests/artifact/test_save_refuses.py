"""Functions that pyxla.export cannot save: an error that says why, and no file."""

import pytest
import torch
import torch_xla

import pyxla
from pyxla.errors import ArgumentError, ArtifactError

DEVICE = torch_xla.device()


def refused(tmp_path, message, fn, *args, hint=None, **options):
    with pytest.raises(ArgumentError) as caught:
        pyxla.export(fn, args, tmp_path / "f.pyxla", **options)
    assert caught.value.message == message
    assert hint is None or caught.value.hint == hint
    assert list(tmp_path.iterdir()) == []


X = torch.ones(2, 3)
ONE_GRAPH = "export: fn: expected one graph, got a function that runs a graph or reads a tensor on the host"


@pytest.mark.parametrize("result", [None, 3, "text", [], {"a": None}])
def test_without_a_tensor_result(tmp_path, result):
    message = "export: fn: expected tensor results, or an update of an argument, got neither"
    refused(tmp_path, message, lambda x: result, X)


def test_that_never_uses_xla(tmp_path):
    message = "export: result: expected a tensor on xla, got cpu"
    refused(tmp_path, message, lambda x: torch.ones(3), X, hint="compute it from the arguments, on xla")


def test_whose_results_are_constants(tmp_path):
    message = "export: fn: expected results that depend on an argument or a weight, got constants"
    refused(tmp_path, message, lambda x: torch.ones(3, device=DEVICE), X)


@pytest.mark.parametrize(
    "fn",
    [
        lambda x: x * x.sum().item(),
        lambda x: (x.cpu(), x)[1],
        lambda x: (x + 1) if x.sum() > 0 else x,
        lambda x: ((y := x + 1), torch_xla.sync(), y)[0],
        lambda x: torch.compile(lambda x: x + 1, backend="openxla")(x) * 2,
    ],
    ids=["item", "cpu", "branch", "sync", "compile"],
)
def test_that_is_not_one_graph(tmp_path, fn):
    refused(tmp_path, ONE_GRAPH, fn, X)


@pytest.mark.parametrize("update", [torch.Tensor.add_, torch.Tensor.copy_, lambda other, x: other.data.copy_(x)])
def test_that_updates_something_else(tmp_path, update):
    other = torch.zeros(2, 3).to(DEVICE)
    message = (
        "export: fn: expected a function that updates only its arguments, got an update of another tensor, "
        "float32[2, 3]"
    )
    refused(tmp_path, message, lambda x: (update(other, x), x * 2)[1], X, hint="pass it as an argument")


def test_module_that_updates_its_buffer(tmp_path):
    module = torch.nn.BatchNorm1d(3).to(DEVICE)
    with pytest.raises(ArgumentError, match=r"got an update of (running_mean|running_var|num_batches_tracked)"):
        pyxla.export(module, (X,), tmp_path / "f.pyxla")
    assert list(tmp_path.iterdir()) == []


def test_module_on_the_cpu(tmp_path):
    message = "export: fn: expected a module on xla, got weight on cpu"
    refused(tmp_path, message, torch.nn.Linear(3, 3), X, hint="module.to(torch_xla.device())")


def test_wrong_arguments_of_export_itself(tmp_path):
    refused(tmp_path, "export: fn: expected a function or a module, got int", 3, X)
    with pytest.raises(ArgumentError, match=r"export: args: expected a tuple of arguments, got Tensor"):
        pyxla.export(lambda x: x + 1, X, tmp_path / "f")
    refused(
        tmp_path, "export: x.a.b: expected one tensor of this name, got two", lambda x: x, {"a.b": X, "a": {"b": X}}
    )
    with pytest.raises(ArgumentError, match=r"export: x: expected a dtype of XLA \(bool, .*\), got complex64"):
        pyxla.export(lambda x: x + 1, (X.to(torch.complex64),), tmp_path / "f")


def test_the_function_s_own_error_stays_as_it_is(tmp_path):
    def fn(x):
        raise KeyError("mine")

    with pytest.raises(KeyError) as caught:
        pyxla.export(fn, (X,), tmp_path / "f")
    assert caught.value.args == ("mine",) and caught.traceback[-1].name == "fn"


def test_a_path_that_is_taken(tmp_path):
    path = tmp_path / "f.pyxla"
    path.write_text("something dear")
    with pytest.raises(ArgumentError, match=r"export: path: expected a path that is free, got .*f.pyxla") as caught:
        pyxla.export(lambda x: x + 1, (X,), path)
    assert path.read_text() == "something dear" and caught.value.hint == "force=True replaces the file, if it is one"
    pyxla.export(lambda x: x + 1, (X,), path, force=True)
    assert torch.equal(pyxla.load_artifact(path)(X.to(DEVICE)).cpu(), X + 1)
    with pytest.raises(ArgumentError, match="export: path: expected a path that is free, got "):
        pyxla.export(lambda x: x + 1, (X,), tmp_path, force=True)
    assert [p.name for p in tmp_path.iterdir()] == ["f.pyxla"]


def test_a_path_that_cannot_be_written(tmp_path):
    message = r"export: path: expected a file that can be written, got \[Errno 2\] No such file or directory"
    with pytest.raises(ArtifactError, match=message):
        pyxla.export(lambda x: x + 1, (X,), tmp_path / "none/f.pyxla")
    with pytest.raises(ArtifactError, match=r"export: path: expected a file that can be written, got \[Errno"):
        pyxla.export(lambda x: x + 1, (X,), "/proc/f.pyxla")
