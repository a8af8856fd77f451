"""Which files of another project are run, and how; the rule is a files.toml."""

import shutil
import tomllib
from argparse import ArgumentParser, Namespace
from fnmatch import fnmatch
from importlib import metadata
from pathlib import Path


class Misused(Exception):
    """A folder or a file that cannot be used: `where: argument: expected X, got Y`, then a hint."""

    def __init__(self, project: str, message: str, hint: str):
        super().__init__(f"{project} tests: {message}\n\nhint: {hint}")


class Suite:
    """A copy of a project's tests. Some tests write beside themselves; and the project's own package in its source,
    which lacks what is compiled, must not be found in place of the installed one.

    Args:
        options: of the command line.
        release: that of the installed project.
        scratch: an empty folder for the copy and what the tests write.
    """

    # The project's name: of its distribution and its folder here.
    project: str
    # The rule and the kept list: files.toml and known.toml of this folder.
    folder: Path
    # What is copied of the project's source, and files that are not.
    copied: tuple[str, ...]
    not_copied: tuple[str, ...] = ()
    # The folder that the tests import from.
    path = ""
    # Of pytest.
    pytest_options: tuple[str, ...] = ()
    # Seconds for one test.
    timeout = 120

    def __init__(self, options: Namespace, release: str, scratch: Path):
        self.check_release(options.folder, release)
        self.options, self.scratch = options, scratch
        self.root = scratch / "checkout"
        self.rule = tomllib.loads((self.folder / "files.toml").read_text())
        for name in filter(lambda name: (options.folder / name).is_dir(), self.copied):
            ignored = shutil.ignore_patterns(*self.not_copied)
            shutil.copytree(options.folder / name, self.root / name, ignore=ignored, ignore_dangling_symlinks=True)

    @classmethod
    def add_options(cls, parser: ArgumentParser) -> None:
        """Adds what this project has beside the common options."""

    @classmethod
    def check_release(cls, folder: Path, release: str) -> None:
        """Raises Misused if the folder is not the source of this release."""
        raise NotImplementedError

    @classmethod
    def installed_release(cls) -> str:
        """The version that is tested, without a build's suffix."""
        try:
            return metadata.version(cls.project).partition("+")[0]
        except metadata.PackageNotFoundError:
            got = f"{cls.project}: expected it installed, got none"
            raise Misused(cls.project, got, "run this with the Python of .venv") from None

    def files(self) -> list[str]:
        """All files that `run` matches, relative to the source."""
        names = sorted(str(path.relative_to(self.root)) for path in self.root.rglob("*.py"))
        return [name for name in names if _matches(name, self.rule["run"])]

    def left_out(self, name: str) -> str | None:
        """Why a file is not run, or None if it is."""
        return next((rule["reason"] for rule in self.rule["left_out"] if _matches(name, rule["files"])), None)

    def prepare(self, files: list[str]) -> None:
        """Makes what these files need."""

    def environment(self, name: str, scratch: Path) -> dict[str, str]:
        """The variables that a file needs."""
        places = {"folder": self.root, "scratch": scratch}
        rules = [rule["set"] for rule in self.rule.get("environment", ()) if _matches(name, rule["files"])]
        return {key: value.format(**places) for rule in rules for key, value in rule.items()}

    def is_script(self, name: str) -> bool:
        """Whether a file without tests is run by itself."""
        return False

    def plugin(self) -> Path | None:
        """A file with pytest's hooks for the child process."""
        path = self.folder / "plugin.py"
        return path if path.is_file() else None


def _matches(name: str, patterns: list[str]) -> bool:
    return any(fnmatch(name, pattern) for pattern in patterns)
