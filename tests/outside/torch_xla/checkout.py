"""What is run of a checkout of pytorch/xla; the rule is in files.toml."""

import re
from argparse import ArgumentParser
from pathlib import Path

from tests.outside.suite.files import Misused, Suite


class TorchXla(Suite):
    """The tests and examples of a checkout."""

    project = "torch_xla"
    folder = Path(__file__).parent
    copied = ("test", "examples")
    # As no package: each test then finds the modules in its own folder, as if it were run as a script.
    not_copied = ("__init__.py",)
    path = "test"

    @classmethod
    def add_options(cls, parser: ArgumentParser) -> None:
        help_ = "of products in float32; by default as upstream: highest. With default the CUDA device takes TF32"
        parser.add_argument("--precision", choices=("default", "high", "highest"), default="highest", help=help_)

    @classmethod
    def check_release(cls, folder: Path, release: str) -> None:
        setup = folder / "setup.py"
        found = re.search(r"TORCH_XLA_VERSION', '(\d+\.\d+)", setup.read_text()) if setup.is_file() else None
        expected = release.rpartition(".")[0]  # the tag v2.8.1 still says 2.8.0
        if found is None or found[1] != expected:
            got = f"that of {found[1]}" if found else f"no setup.py that names a release in {folder}"
            hint = f"git clone --branch v{release} https://github.com/pytorch/xla"
            raise Misused(cls.project, f"FOLDER: expected a checkout of pytorch/xla {expected}, got {got}", hint)

    def environment(self, name: str, scratch: Path) -> dict[str, str]:
        return super().environment(name, scratch) | {"OUTSIDE_PRECISION": self.options.precision}

    def is_script(self, name: str) -> bool:
        """Whether a file has a main block."""
        return re.search(r"^if __name__ == .__main__.:", (self.root / name).read_text(), re.MULTILINE) is not None
