"""What is run of vLLM's source distribution; the rule is in files.toml."""

import os
import re
import shutil
import sys
from argparse import ArgumentParser
from email.parser import HeaderParser
from pathlib import Path

from tests.outside.suite.files import Misused, Suite
from tests.outside.vllm import hub


class Vllm(Suite):
    """The tests and examples of a source distribution."""

    project = "vllm"
    folder = Path(__file__).parent
    copied = ("tests", "examples")
    pytest_options = ("-p", "pytest_asyncio.plugin")
    timeout = 180

    @classmethod
    def add_options(cls, parser: ArgumentParser) -> None:
        help_ = "keep the models in this folder; those that are there are not made again"
        parser.add_argument("--models", type=Path, help=help_)
        parser.add_argument("--steps", type=int, default=400, help="steps in which the weights of a model are fitted")

    @classmethod
    def check_release(cls, folder: Path, release: str) -> None:
        info = folder / "PKG-INFO"
        found = HeaderParser().parsestr(info.read_text())["Version"] if info.is_file() else None
        if found != release:
            got = f"that of {found}" if found else f"no PKG-INFO in {folder}"
            hint = f"unpack vllm-{release}.tar.gz, from where pip finds vLLM"
            raise Misused(cls.project, f"FOLDER: expected the source distribution of vLLM {release}, got {got}", hint)

    @property
    def cache(self) -> Path:
        """The models' folder."""
        return (self.options.models or self.scratch / "models").absolute()

    def prepare(self, files: list[str]) -> None:
        """Makes the models that the files name, fitted to texts of the tests."""
        beside = [(self.root / file).with_name(name) for file in files for name in ("utils.py", "conftest.py")]
        paths = [*(self.root / file for file in files), *filter(Path.is_file, beside)]
        sources = [path.read_text() for path in paths]
        names = {name for name in hub.MODELS if any(re.search(f"""["']{name}["']""", source) for source in sources)}
        places = ("tests/prompts/*.txt", "tests/*.py", "tests/v1/entrypoints/**/*.py", "tests/v1/sample/*.py")
        texts = [path.read_text() for place in places for path in sorted(self.root.glob(place))]
        self._install_defaults()
        hub.make(self.cache, sorted({*names, hub.DEFAULT}), texts, self.options.steps)

    def _install_defaults(self) -> None:
        """Makes defaults.py a package of a folder: vLLM's processes find its entry point there."""
        package = self.plugins / "outside-0.dist-info"
        package.mkdir(parents=True)
        (package / "METADATA").write_text("Metadata-Version: 2.1\nName: outside\nVersion: 0\n")
        entry = "[vllm.general_plugins]\noutside = outside_defaults:register\n"
        (package / "entry_points.txt").write_text(entry)
        shutil.copy(self.folder / "defaults.py", self.plugins / "outside_defaults.py")

    @property
    def plugins(self) -> Path:
        """The folder with that package."""
        return self.scratch / "plugins"

    def environment(self, name: str, scratch: Path) -> dict[str, str]:
        bin_ = str(Path(sys.executable).parent)
        own = {
            "HF_HUB_CACHE": str(self.cache),
            "PYTHONPATH": str(self.plugins),
            # Of this Python: some tests start `vllm serve`.
            "PATH": os.pathsep.join([bin_, os.environ.get("PATH", "")]),
        }
        return super().environment(name, scratch) | own
