"""Which files of a checkout of pytorch/xla are run, and how; the rule is in files.toml."""

import re
import shutil
import tomllib
from fnmatch import fnmatch
from importlib import metadata
from pathlib import Path


class Misused(Exception):
    """A folder or a file that cannot be used: `where: argument: expected X, got Y`, then a hint."""

    def __init__(self, message: str, hint: str):
        super().__init__(f"torch_xla tests: {message}\n\nhint: {hint}")


def installed_release() -> str:
    """The version of torch_xla that is tested, without a build's suffix."""
    try:
        return metadata.version("torch_xla").partition("+")[0]
    except metadata.PackageNotFoundError:
        raise Misused("torch_xla: expected it installed, got none", "run this with the Python of .venv") from None


class Checkout:
    """A copy of a checkout's tests. Some of them write beside themselves; and the checkout's own folder torch_xla,
    which lacks the compiled part, must not be found in place of the installed package.

    Args:
        folder: the checkout, of which test/, examples/ and setup.py are read.
        release: that of the installed torch_xla.
        scratch: an empty folder for the copy and what the tests write.
    """

    def __init__(self, folder: Path, release: str, scratch: Path):
        check_release(folder, release)
        self.scratch = scratch
        self.root = scratch / "checkout"
        self.rule = tomllib.loads(Path(__file__).with_name("files.toml").read_text())
        for name in ("test", "examples"):
            if (folder / name).is_dir():
                # As no package: each test then finds the modules in its own folder, as if it were run as a script.
                no_package = shutil.ignore_patterns("__init__.py")
                shutil.copytree(folder / name, self.root / name, ignore=no_package, ignore_dangling_symlinks=True)

    def files(self) -> list[str]:
        """All files that `run` matches, relative to the checkout."""
        names = sorted(str(path.relative_to(self.root)) for path in self.root.rglob("*.py"))
        return [name for name in names if _matches(name, self.rule["run"])]

    def left_out(self, name: str) -> str | None:
        """Why a file is not run, or None if it is."""
        return next((rule["reason"] for rule in self.rule["left_out"] if _matches(name, rule["files"])), None)

    def environment(self, name: str, scratch: Path) -> dict[str, str]:
        """The variables that a file needs."""
        places = {"folder": self.root, "scratch": scratch}
        rules = [rule["set"] for rule in self.rule["environment"] if _matches(name, rule["files"])]
        return {key: value.format(**places) for rule in rules for key, value in rule.items()}

    def is_script(self, name: str) -> bool:
        """Whether a file has a main block."""
        return re.search(r"^if __name__ == .__main__.:", (self.root / name).read_text(), re.MULTILINE) is not None


def check_release(folder: Path, release: str) -> None:
    """Raises Misused if the folder is no checkout for this release of torch_xla."""
    setup = folder / "setup.py"
    found = re.search(r"TORCH_XLA_VERSION', '(\d+\.\d+)", setup.read_text()) if setup.is_file() else None
    expected = release.rpartition(".")[0]  # the tag v2.8.1 still says 2.8.0
    if found is None or found[1] != expected:
        got = f"that of {found[1]}" if found else f"no setup.py that names a release in {folder}"
        hint = f"git clone --branch v{release} https://github.com/pytorch/xla"
        raise Misused(f"FOLDER: expected a checkout of pytorch/xla {expected}, got {got}", hint)


def _matches(name: str, patterns: list[str]) -> bool:
    return any(fnmatch(name, pattern) for pattern in patterns)
