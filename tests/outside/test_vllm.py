"""The runner of vLLM's own tests, on a source distribution of a few lines, and the models that it makes."""

import importlib.util
import json

import pytest

from tests.conftest import ROOT
from tests.outside.small_suite import outcomes, run_suite, written
from tests.outside.suite import known
from tests.outside.vllm import hub
from tests.outside.vllm.source import Vllm

pytestmark = [
    pytest.mark.skipif(
        importlib.util.find_spec("vllm") is None, reason="vLLM is not installed: PYXLA_SET=vllm bin/devtool"
    ),
    pytest.mark.skipif(
        importlib.util.find_spec("pytest_asyncio") is None, reason="vLLM's tests need it: pip install pytest-asyncio"
    ),
    pytest.mark.filterwarnings("ignore"),
]
_SMALL = "tests/v1/sample/test_small.py::test_"
_TESTS = """
import importlib.util
import os
import shutil

import pytest
from huggingface_hub import snapshot_download

from tests.conftest import HfRunner

MODEL = "facebook/opt-125m"


@pytest.mark.asyncio
async def test_asynchronous():
    assert os.environ["PJRT_DEVICE"] == "CPU"


def test_fails():
    raise NotImplementedError("vllm: LoRA: expected none, got adapters")


def test_installed():
    assert "site-packages" in importlib.util.find_spec("vllm").origin
    assert os.path.dirname(shutil.which("vllm")) == os.path.dirname(os.sys.executable)


def test_defaults_are_small():
    from vllm.usage.usage_lib import UsageContext
    from vllm.engine.arg_utils import EngineArgs

    config = EngineArgs(MODEL).create_engine_config(UsageContext.LLM_CLASS)
    assert (config.scheduler_config.max_num_batched_tokens, config.scheduler_config.max_num_seqs) == (512, 16)
    given = EngineArgs(MODEL, max_num_batched_tokens=64, max_num_seqs=2).create_engine_config(UsageContext.LLM_CLASS)
    assert (given.scheduler_config.max_num_batched_tokens, given.scheduler_config.max_num_seqs) == (64, 2)


def test_model():
    assert "config.json" in os.listdir(snapshot_download(MODEL))


def test_transformers_on_the_host():
    assert HfRunner().get_default_device() == "cpu"
"""
_KNOWN = f"""
[[known]]
tests = ["{_SMALL}*"]
outcome = "failed"
says = "LoRA: expected none"
reason = "LoRA is refused"
"""
_TEXT = "".join(f'{{"name": "Alan", "age": {number}}}, ' for number in range(200))


@pytest.fixture
def source(tmp_path):
    folder = tmp_path / "vllm"
    files = {
        "PKG-INFO": f"Metadata-Version: 2.4\nName: vllm\nVersion: {Vllm.installed_release()}\n\nvLLM\n",
        "vllm/__init__.py": "raise ImportError('the source must not be imported')\n",
        "tests/__init__.py": "",
        "tests/conftest.py": "class HfRunner:\n    def get_default_device(self):\n        return 'xla'\n",
        "tests/prompts/example.txt": _TEXT,
        "tests/v1/__init__.py": "",
        "tests/v1/sample/__init__.py": "",
        "tests/v1/sample/test_small.py": _TESTS,
        "tests/v1/sample/test_logprobs_e2e.py": "raise ImportError\n",
        "tests/lora/test_other.py": "raise ImportError\n",
        "known.toml": _KNOWN,
    }
    return written(folder, files)


def run(folder, *options):
    return run_suite("vllm", folder, *options, "--steps", "1")


def test_tests_find_models_and_the_installed_vllm(source, tmp_path):
    ran = run(source, "--json", tmp_path / "results.json")
    kept = json.loads((tmp_path / "results.json").read_text())
    assert outcomes(kept, _SMALL) == {
        "asynchronous": "passed",
        "defaults_are_small": "passed",
        "fails": "failed",
        "installed": "passed",
        "model": "passed",
        "transformers_on_the_host": "passed",
    }, ran.stdout + ran.stderr
    assert ran.returncode == 0, ran.stdout
    assert f"known: 1 failed: {_SMALL}*: LoRA is refused" in ran.stdout
    assert "folder: tests/v1/sample: 5 passed, 1 failed" in ran.stdout
    assert "left out: 1 files" in ran.stdout


def test_source_of_another_release_is_refused(source):
    (source / "PKG-INFO").write_text("Metadata-Version: 2.4\nName: vllm\nVersion: 0.1.0\n")
    refused = run(source)
    assert refused.returncode == 2
    assert "FOLDER: expected the source distribution of vLLM" in refused.stderr
    assert "got that of 0.1.0" in refused.stderr


@pytest.mark.parametrize("name", hub.MODELS)
def test_model_is_found_by_its_name(name, tmp_path):
    from transformers import AutoModelForCausalLM, AutoTokenizer

    hub.make(tmp_path, [name], [_TEXT], steps=1)
    made = sorted(path.stat().st_mtime_ns for path in tmp_path.rglob("*"))
    offline = {"cache_dir": tmp_path, "local_files_only": True}
    tokenizer = AutoTokenizer.from_pretrained(name, **offline)
    tokens = tokenizer.encode('{"name": "Åsa"}')
    assert tokenizer.decode(tokens, skip_special_tokens=True) == '{"name": "Åsa"}'
    assert (tokens[0] == tokenizer.bos_token_id) == hub.MODELS[name].begins
    model = AutoModelForCausalLM.from_pretrained(name, **offline)
    model.generate(**tokenizer("Alan", return_tensors="pt"), max_new_tokens=1)
    assert model.config.max_position_embeddings == hub.MODELS[name].longest
    assert model.config.vocab_size >= len(tokenizer)

    hub.make(tmp_path, [name], [_TEXT], steps=1)
    assert sorted(path.stat().st_mtime_ns for path in tmp_path.rglob("*")) == made


def test_list_and_rule_can_be_read():
    entries = known.read(ROOT / "tests/outside/vllm/known.toml")
    assert {device for entry in entries for device in entry.devices} <= {"CPU", "CUDA"}
