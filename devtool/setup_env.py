"""Makes .venv from the hash locks, then runs devtool in it. bin/devtool calls this when the locks say otherwise.

The next call is right whatever moment this one is killed at: `.venv/stamp` exists from the first moment, is empty while
work is under way, and becomes, last of all, the text that .venv was made from. An empty stamp means: clear and redo.
Everything in .venv is written by this process or by a direct child, and a child dies with this process, so nobody still
writes while the next call clears. (That is why ensurepip is not run: it hands the work to a grandchild.)
"""

import contextlib
import ctypes
import errno
import fcntl
import importlib.metadata
import os
import platform
import re
import shutil
import signal
import subprocess
import sys
import sysconfig
import threading
import time
import venv
from pathlib import Path

WAIT_REPORT_S = 30
FULL_DISK = ("a full disk", "free some space: .venv takes 8 GB (cpu) or 10 GB (cuda13), the downloads half of that")
# What pip says -> what went wrong, what to do. The first that is found counts: lack of a network also ends in
# "No matching distribution".
SYMPTOMS = (
    ("DO NOT MATCH THE HASHES", "a package that differs from its locked hash",
     "pip cache purge, then try again; if it stays: the mirror serves other files than the lock names"),
    ("No space left on device|Disk quota exceeded|Errno 27|File too large", *FULL_DISK),
    ("Read-only file system|Permission denied", "a folder that cannot be written", "make it writable, see above"),
    ("NewConnectionError|ConnectTimeout|ReadTimeout|NameResolutionError|ProxyError|Network is unreachable",
     "no connection to the package index", "check the network; a mirror is named by PIP_INDEX_URL"),
    ("No matching distribution found", "a package index without a locked package",
     "check PIP_INDEX_URL, PIP_NO_INDEX and pip config list"),
)  # fmt: skip
# They would send the packages elsewhere or change what is locked; the rest of PIP_* (mirrors, proxies) stays.
DROPPED = ("PYTHONPATH", "PYTHONHOME", "PIP_TARGET", "PIP_PREFIX", "PIP_ROOT", "PIP_PYTHON", "PIP_CONSTRAINT")


class SetUpError(Exception):
    """`expected X, got Y`, and the hint."""


def say(text: str) -> None:
    print(f"devtool: set-up: {text}", file=sys.stderr, flush=True)


def wanted_stamp(root: Path, wheels: str) -> str:
    """The same text as stamp() in bin/devtool."""
    files = (f"requirements/{wheels}.txt", "requirements/dev.txt", "pyproject.toml", "setup.py")
    return f"{root} {wheels}\n" + "".join((root / name).read_text() for name in files)


def hold_lock(path: Path) -> int:
    """Waits until no other set-up works on this tree. The lock lasts until this process and its children end."""
    lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    started, reported = time.monotonic(), None
    while True:
        with contextlib.suppress(BlockingIOError):
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            break
        waited = time.monotonic() - started
        if reported is None or waited - reported >= WAIT_REPORT_S:
            holder = os.pread(lock, 20, 0).decode() or "unknown"
            say(f"waits for process {holder}, which sets up .venv ({waited:.0f} s)")
            reported = waited
        time.sleep(0.1)
    os.ftruncate(lock, 0)
    os.pwrite(lock, str(os.getpid()).encode(), 0)
    return lock


def die_with(parent: int) -> None:
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # 1: PR_SET_PDEATHSIG
    if os.getppid() != parent:  # killed between fork and prctl
        os._exit(1)


class SetUp:
    def __init__(self, root: Path, wheels: str):
        self.root, self.wheels = root, wheels
        self.folder = root / ".venv"
        self.stamp = self.folder / "stamp"
        self.python = self.folder / "bin/python"
        self.locks = [root / "requirements" / f"{name}.txt" for name in (wheels, "dev")]
        self.started = time.monotonic()

    def complete(self) -> bool:
        return os.access(self.python, os.X_OK) and self.stamp.read_text() == wanted_stamp(self.root, self.wheels)

    def make(self) -> None:
        lock = hold_lock(self.root / ".venv.lock")
        with contextlib.suppress(FileNotFoundError):
            if self.complete():  # by the one we waited for
                return
        wanted = wanted_stamp(self.root, self.wheels)
        self.lock, self.started = lock, time.monotonic()
        made_from = self.begin()
        if not made_from:
            self.phase(f"making .venv with Python {platform.python_version()}", self.make_venv)
            self.phase("installing the locked pip", self.install_pip)
        if "".join(lock.read_text() for lock in self.locks) not in made_from:
            if made_from:
                self.phase("removing what the lock no longer names", self.remove_unlocked)
            self.phase(f"installing the locked wheels of {self.wheels} and dev", self.install_locked)
        self.phase("installing the project, editable", self.install_project)
        unfinished = self.folder / "stamp.new"
        unfinished.write_text(wanted)
        unfinished.replace(self.stamp)
        say(f"done in {time.monotonic() - self.started:.0f} s")

    def begin(self) -> str:
        """What .venv was completely made from, so that it can be updated; or nothing: it is empty now."""
        if self.folder.is_symlink() or (self.folder.exists() and not self.folder.is_dir()):
            raise SetUpError("expected .venv to be a folder, got a link or a file", f"mv {self.folder} elsewhere")
        self.folder.mkdir(exist_ok=True)
        if not self.stamp.exists() and any(self.folder.iterdir()):
            raise SetUpError("expected a .venv that devtool made, got another one", f"mv {self.folder} elsewhere")
        made_from = self.stamp.read_text() if self.stamp.exists() else None
        self.stamp.write_text("")
        here = made_from and made_from.startswith(f"{self.root} ")
        if here and os.access(self.python, os.X_OK):
            say("the locks or pyproject.toml changed: updating .venv")
            return made_from
        if made_from is not None:
            reason = "whose tree or Python is gone" if made_from else "left half-made by an earlier call"
            say(f"clearing .venv, {reason}")
        for path in self.folder.iterdir():
            if path == self.stamp:
                continue
            shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()
        return ""

    def phase(self, what: str, action) -> None:
        say(f"{what} ({time.monotonic() - self.started:.0f} s)")
        action()

    def make_venv(self) -> None:
        venv.EnvBuilder(symlinks=True, with_pip=False, prompt="pyxla").create(self.folder)

    def install_pip(self) -> None:
        import ensurepip

        # Debian keeps the wheels that ensurepip installs apart from it.
        folders = (sysconfig.get_config_var("WHEEL_PKG_DIR"), Path(ensurepip.__file__).parent / "_bundled")
        bundled = [wheel for folder in folders if folder for wheel in Path(folder).glob("pip-*.whl")]
        if not bundled:
            raise SetUpError(f"expected pip's wheel with {sys.executable}, got none", "apt-get install python3-venv")
        entry = re.search(r"^pip==(?:.*\n)(?:[ ].*\n)*", self.locks[-1].read_text(), re.MULTILINE)
        if not entry:
            raise SetUpError(f"expected pip in {self.locks[-1]}, got none", "git checkout requirements")
        only_pip = self.folder / "pip.txt"
        only_pip.write_text(entry[0])
        self.pip(str(bundled[0] / "pip"), "install", "-q", "-r", only_pip)

    def install_locked(self) -> None:
        self.pip("-m", "pip", "install", *(word for lock in self.locks for word in ("-r", lock)))

    def install_project(self) -> None:
        # What a build of the wheel left here says what the project's entry points were then, to Pythons started here.
        shutil.rmtree(self.root / "pyxla.egg-info", ignore_errors=True)
        command = ("install", "-q", "--no-deps", "--no-build-isolation", "-e", self.root)
        self.run("-m", "pip", *command)

    def remove_unlocked(self) -> None:
        """Before installing: an old package may own files that a new one brings under the same names."""
        locked = re.findall(r"^([\w.-]+)==", "".join(lock.read_text() for lock in self.locks), re.MULTILINE)
        found = {d.metadata["Name"] for d in importlib.metadata.distributions(path=[str(self.site())])}
        names = {re.sub(r"[-_.]+", "-", name).lower() for name in found if name} - set(locked) - {"pyxla"}
        if names:
            self.run("-m", "pip", "uninstall", "-q", "-y", *sorted(names))

    def pip(self, *arguments) -> None:
        """Every file by hash, no source builds; the locks are complete, so no dependency is looked up."""
        self.run(*arguments, "--require-hashes", "--no-deps", "--only-binary=:all:")

    def run(self, *arguments) -> None:
        command = [self.python, "-I", *arguments, "--no-input", "--disable-pip-version-check"]
        env = {name: value for name, value in os.environ.items() if name not in DROPPED}
        # setuptools warns about every editable install.
        env |= {"PIP_USER": "0", "PYTHONWARNINGS": "ignore"}
        seen, me = self.installed(), os.getpid()
        child = subprocess.Popen(
            list(map(str, command)), cwd=self.root, env=env, stdin=subprocess.DEVNULL, stdout=sys.stderr,
            stderr=subprocess.PIPE, text=True, errors="replace", pass_fds=[self.lock], preexec_fn=lambda: die_with(me),
        )  # fmt: skip
        complaints: list[str] = []
        listener = threading.Thread(target=self.pass_on, args=(child.stderr, complaints))
        listener.start()
        try:
            # On a terminal pip shows a bar; elsewhere it is silent while it installs.
            while child.poll() is None:
                time.sleep(0.1)
                if not sys.stderr.isatty() and (new := self.installed() - seen):
                    seen |= new
                    say(f"installed {', '.join(sorted(new))} ({time.monotonic() - self.started:.0f} s)")
        finally:
            child.kill()
            child.wait()
            listener.join()
        if child.returncode:
            raise self.diagnosis(child.returncode, "".join(complaints))

    def pass_on(self, stream, complaints: list[str]) -> None:
        for line in stream:
            complaints.append(line)
            sys.stderr.write(line)

    def diagnosis(self, status: int, complaints: str) -> SetUpError:
        got, hint = next(
            ((got, hint) for pattern, got, hint in SYMPTOMS if re.search(pattern, complaints)),
            (f"exit status {status}", "read pip's message above"),
        )
        return SetUpError(f"expected pip to install the locked packages, got {got}", hint)

    def site(self) -> Path:
        return next(self.folder.glob("lib/python3*/site-packages"))

    def installed(self) -> set[str]:
        """pip writes a package's RECORD last, and renames what it replaces to ~..."""
        return {p.parent.name.removesuffix(".dist-info") for p in self.site().glob("[!~]*.dist-info/RECORD")}


def explain(error: OSError) -> SetUpError:
    where = f"{error.strerror}: {error.filename or ''}"
    if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        return SetUpError(f"expected room on the disk, got {where}", FULL_DISK[1])
    if error.errno in (errno.EROFS, errno.EACCES, errno.EPERM):
        return SetUpError(f"expected a writable folder, got {where}", "make it writable, or copy the tree elsewhere")
    return SetUpError(f"expected to make .venv, got {where}", "check the path above, then try again")


def main(root: str, wheels: str, *arguments: str) -> None:
    set_up = SetUp(Path(root), wheels)
    try:
        if (sys.platform, platform.machine()) != ("linux", "x86_64"):
            got = f"{sys.platform} on {platform.machine()}"
            raise SetUpError(f"expected linux on x86_64, got {got}", "torch_xla has no wheels for other machines")
        set_up.make()
    except KeyboardInterrupt:
        say("interrupted; the next call starts anew")
        sys.exit(130)
    except (OSError, SetUpError) as error:
        text, hint = (error if isinstance(error, SetUpError) else explain(error)).args
        say(f"{text}\nhint: {hint}")
        sys.exit(1)
    os.execv(set_up.python, [str(set_up.python), "-P", "-m", "devtool", *arguments])


if __name__ == "__main__":
    main(*sys.argv[1:])
