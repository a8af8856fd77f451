"""`devtool run-artifact`: inputs from a file or a seed, outputs to a file, and each possible error."""

import json
import os
import subprocess
import sys

import numpy
import pytest
import torch
from click.testing import CliRunner

import pyxla
from devtool.cli import cli

add = torch.ops.xla_gpu.simple_add
norm = torch.ops.xla_gpu.rms_norm


@pytest.fixture(scope="module")
def artifact(tmp_path_factory):
    """float32 and bfloat16 inputs, an integer, an update in place, two results."""

    def fn(x, y, counter):
        counter.add_(2)
        return add(x, x, 0.5), norm(y, None, 1e-3)

    path = tmp_path_factory.mktemp("artifact") / "f.pyxla"
    pyxla.export(fn, (torch.ones(2, 3), torch.ones(2, 8).bfloat16(), torch.zeros(4, dtype=torch.int32)), path)
    return path


@pytest.fixture
def run(monkeypatch, tmp_path):
    """Runs the command in this process, whose device is the CPU."""
    monkeypatch.setenv("PJRT_DEVICE", "CPU")
    monkeypatch.chdir(tmp_path)

    def invoke(*arguments):
        return CliRunner().invoke(cli, ["run-artifact", *map(str, arguments), "--device", "cpu"])

    return invoke


def inputs(**changes):
    y = torch.randn(2, 8, generator=torch.Generator().manual_seed(1)).bfloat16()
    return {
        "x": numpy.arange(6, dtype=numpy.float32).reshape(2, 3),
        "y": y.view(torch.uint16).numpy(),
        "counter": numpy.arange(4, dtype=numpy.int32),
    } | changes


def arrays(path):
    """The contents of a file. Closes the file; otherwise another test would, with a warning."""
    with numpy.load(path) as file:
        return dict(file)


def test_inputs_and_outputs_as_files(artifact, run):
    numpy.savez("in.npz", **inputs())
    result = run(artifact, "--input", "in.npz", "--output", "out.npz")
    assert result.exit_code == 0, result.output
    got = arrays("out.npz")
    assert sorted(got) == ["counter", "result.0", "result.1"]
    assert (got["counter"] == [2, 3, 4, 5]).all() and got["counter"].dtype == numpy.int32
    assert (got["result.0"] == 1.5 * inputs()["x"]).all()
    y = torch.from_numpy(inputs()["y"]).view(torch.bfloat16).double()
    want = y * torch.rsqrt(y.square().mean(-1, keepdim=True) + 1e-3)
    normed = torch.from_numpy(got["result.1"]).view(torch.bfloat16).double()
    torch.testing.assert_close(normed, want, rtol=2**-8, atol=0)
    assert "result.1 bfloat16 2x8" in " ".join(result.stdout.split())
    assert result.stderr.endswith("run-artifact: wrote out.npz\n") and "custom calls: xla_gpu_rms_norm" in result.stderr


def test_outputs_may_be_inputs_again(artifact, run):
    """Values that were saved as bits are read as bits."""
    assert run(artifact, "--random", "5", "--output", "out.npz").exit_code == 0
    out = arrays("out.npz")
    numpy.savez("in.npz", **inputs(x=out["result.0"], y=out["result.1"], counter=out["counter"]))
    result = run(artifact, "--input", "in.npz", "--json")
    assert result.exit_code == 0
    assert json.loads(result.stdout)["outputs"][0]["min"] == 4


def test_outputs_named_like_parameters_of_savez(run):
    """numpy.savez(file, **arrays) would raise, and would omit an array named allow_pickle."""

    def fn(file, allow_pickle):
        file.add_(1)
        allow_pickle.add_(2)

    pyxla.export(fn, (torch.ones(2, dtype=torch.int32), torch.ones(3, dtype=torch.int32)), "f.pyxla")
    result = run("f.pyxla", "--output", "out.npz")
    assert result.exit_code == 0, result.output
    assert {name: array.tolist() for name, array in arrays("out.npz").items()} == {
        "file": [1, 1],
        "allow_pickle": [2, 2, 2],
    }


@pytest.mark.parametrize(("seed", "code"), [(2**64 - 1, 0), (-(2**63), 0), (2**64, 2), (-(2**63) - 1, 2)])
def test_seeds_that_torch_takes(artifact, run, seed, code):
    assert run(artifact, "--random", str(seed)).exit_code == code


def test_json_and_seeds(artifact, run):
    first, again, other, default, zero = (
        json.loads(run(artifact, "--json", *options).stdout)
        for options in (["--random", "1"], ["--random", "1"], ["--random", "2"], [], ["--random", "0"])
    )
    assert first == again != other and default == zero
    assert first["device"] == "CPU" and first["artifact"] == str(artifact) and first["output"] is None
    assert first["custom_calls"] == ["xla_gpu_rms_norm", "xla_gpu_simple_add"]
    assert first["inputs"][1] == {"name": "y", "dtype": "bfloat16", "shape": [2, 8]}
    counter = {"name": "counter", "dtype": "int32", "shape": [4], "updates": "counter"}
    assert first["outputs"][0] == counter | {"min": 2, "max": 2, "mean": 2, "not_finite": 0}
    assert set(first["exported_with"]) == {"pyxla", "torch", "torch_xla", "jaxlib"}


def test_numbers_that_are_not_finite(artifact, run):
    numpy.savez("in.npz", **inputs(x=numpy.array([[1, 2, numpy.nan], [numpy.inf, -numpy.inf, 4]], numpy.float32)))
    result = run(artifact, "--input", "in.npz", "--json")
    output = json.loads(result.stdout)["outputs"][1]
    assert (output["min"], output["max"], output["mean"], output["not_finite"]) == (1.5, 6, 3.5, 3)


def failed(result, message, hint=None, code=1):
    assert result.exit_code == code, result.output
    assert result.stdout == "" and result.stderr.startswith(message), result.stderr
    assert "\n\nhint: " in result.stderr and (hint is None or result.stderr.endswith(f"\n\nhint: {hint}\n"))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"y": None}, "--input: expected arrays counter, x, y, got counter, x in in.npz"),
        ({"z": numpy.ones(1)}, "--input: expected arrays counter, x, y, got counter, x, y, z in in.npz"),
        ({"x": numpy.ones((3, 2), numpy.float32)}, "x: expected float32[2, 3], got float32[3, 2] in in.npz"),
        ({"x": numpy.ones((2, 3))}, "x: expected float32[2, 3], got float64[2, 3] in in.npz"),
        (
            {"y": numpy.ones((2, 8), numpy.float32)},
            "y: expected uint16[2, 8], the bits of bfloat16, got float32[2, 8] in in.npz",
        ),
        ({"counter": numpy.ones(4, ">i4")}, "counter: expected int32[4], got >i4[4] in in.npz"),
        ({"x": numpy.array([None])}, "--input: expected arrays that numpy.savez wrote, got Object arrays cannot be"),
    ],
)
def test_an_input_file_with_other_arrays(artifact, run, tmp_path, changes, message):
    numpy.savez("in.npz", **{name: array for name, array in inputs(**changes).items() if array is not None})
    failed(run(artifact, "--input", "in.npz", "--output", "out.npz"), f"run-artifact: {message}")
    assert [path.name for path in tmp_path.iterdir()] == ["in.npz"]


@pytest.mark.parametrize("content", [None, b"", b"text", b"PK\x03\x04 and no more", "short", "npy", "packed"])
def test_an_input_file_that_is_none(artifact, run, tmp_path, content):
    numpy.savez("in.npz", **inputs())
    path = tmp_path / "in.npz"
    if content == "npy":
        numpy.save(tmp_path / "array.npy", numpy.ones(3))
        (tmp_path / "array.npy").replace(path)
    elif content is None:
        path.unlink()
    elif content == "packed":  # compressed with method 99, according to the directory
        data = bytearray(path.read_bytes())
        data[data.index(b"PK\x01\x02") + 10] = 99
        path.write_bytes(data)
    else:
        path.write_bytes(path.read_bytes()[:-40] if content == "short" else content)
    failed(run(artifact, "--input", "in.npz"), "run-artifact: --input: expected arrays that numpy.savez wrote, got ")


def test_both_kinds_of_inputs(artifact, run):
    message = "run-artifact: --random: expected --input or --random, got both"
    failed(run(artifact, "--input", "in.npz", "--random", "1"), message, "leave one of them out", 2)


def test_an_output_path_that_is_taken(artifact, run, tmp_path):
    (tmp_path / "out.npz").write_text("something dear")
    message = "run-artifact: --output: expected a path that is free, got out.npz"
    failed(run(artifact, "--output", "out.npz"), message, "--force replaces the file, if it is one", 2)
    failed(
        run(artifact, "--output", ".", "--force"),
        "run-artifact: --output: expected a path that is free, got .",
        None,
        2,
    )
    assert (tmp_path / "out.npz").read_text() == "something dear"
    assert run(artifact, "--output", "out.npz", "--force").exit_code == 0
    assert len(arrays("out.npz")) == 3 and len(list(tmp_path.iterdir())) == 1


def test_an_output_folder_that_is_not_there(artifact, run):
    message = "run-artifact: --output: expected a folder that can be written, got none"
    failed(run(artifact, "--output", "none/out.npz"), message, "another folder, or make this one writable", 2)


def test_an_artifact_that_is_none(artifact, run, tmp_path):
    whole = artifact.read_bytes()
    failed(run("none.pyxla"), "artifact: file: expected one that can be read, got [Errno 2]")
    (tmp_path / "f").write_bytes(whole[:-1])
    failed(run("f"), "artifact: file: expected the mark of an artifact at its end, got ")
    (tmp_path / "f").write_bytes(whole.replace(b"pyxla-artifact 1", b"pyxla-artifact 2"))
    failed(run("f"), "artifact: format version: expected 1, got 2 in f\n")
    (tmp_path / "f").write_bytes(whole.replace(b"float32", b"float64"))
    failed(run("f"), "artifact: file: expected SHA-256 ")


def test_another_library(artifact, run, monkeypatch):
    from pyxla.artifact import load as module

    class Other:
        class table:
            source_digest = "0" * 64

    monkeypatch.setattr(module, "find_library", lambda *_: Other)
    result = run(artifact)
    assert result.exit_code == 0 and "result.0" in result.stdout
    assert result.stderr.startswith("warning: artifact: rms_norm: expected source digest ")
    assert "000000000000 here\n" in result.stderr
    failed(run(artifact, "--strict"), "artifact: rms_norm: expected source digest ")


def test_an_error_of_the_handler(run, tmp_path):
    """The data has a slot beyond the cache."""
    op = torch.ops.xla_gpu.reshape_and_cache
    from pyxla_kernels.reshape_and_cache.cases import BAD_INPUTS

    (bad,) = [b for b in BAD_INPUTS if b.at_run_time][:1]
    tensors = bad.arguments()
    pyxla.export(lambda **kwargs: op(**kwargs), (), tmp_path / "f", kwargs=tensors)
    arrays = {n: v.numpy() for n, v in tensors.items() if isinstance(v, torch.Tensor)}
    numpy.savez("in.npz", **arrays)
    failed(run("f", "--input", "in.npz"), bad.message, "look at the values of the inputs")
    zeros = {n: numpy.zeros_like(v) for n, v in arrays.items()}
    numpy.savez("in.npz", **zeros)
    assert run("f", "--input", "in.npz").exit_code == 0


def test_as_a_command(artifact, tmp_path):
    """In its own process, as a user calls it, without the test's preloaded libraries."""
    environment = {n: v for n, v in os.environ.items() if n not in ("LD_PRELOAD", "XLA_FLAGS", "PJRT_DEVICE")}
    command = [sys.executable, "-P", "-m", "devtool", "run-artifact", artifact, "--device", "cpu", "--json"]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert [output["name"] for output in json.loads(done.stdout)["outputs"]] == ["counter", "result.0", "result.1"]
    assert done.stderr == ""
