"""Makes .venv from the hash locks, then runs devtool in it. bin/devtool calls this when .venv does not match the locks.

This process may be killed at any moment; the next call repairs .venv. `.venv/stamp` is created first, stays empty
during the work, and at the end gets the text that .venv was made from. An empty stamp means: clear .venv and start
over. Only this process and its direct children write to .venv, and a child dies with this process, so nothing still
writes while the next call clears .venv. (That is why ensurepip is not run: it would do its work in a grandchild.)

uv fetches and unpacks several wheels at once into the user's cache and links them into .venv. So another checkout needs
no download and little disk space, and the files fetched by an interrupted set-up are reused.
"""

import contextlib
import ensurepip
import fcntl
import os
import platform
import re
import shutil
import signal
import subprocess
import sys
import sysconfig
import termios
import threading
import time
import tty
import venv
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1]))  # -I leaves it out

from devtool import setup_uv
from devtool.setup_children import die_with, interrupts
from devtool.setup_errors import SetUpError, diagnosis, from_os_error

REPORT_S = 30
WARNING = re.compile(rb"(\x1b\[[\d;]*m)*WARNING: ")  # a line of pip's
# These would install elsewhere or change which versions are installed; the other PIP_* (mirrors, proxies) are kept.
DROPPED = ("PYTHONPATH", "PYTHONHOME", "PIP_TARGET", "PIP_PREFIX", "PIP_ROOT", "PIP_PYTHON", "PIP_CONSTRAINT")
# Sets with its name build it from its source distribution, without CUDA code.
FROM_SOURCE = "vllm"
BY_HASH = ("--require-hashes", "--no-deps", "--only-binary=:all:")
# Compiles every n-th file of a folder to bytecode. Some packages contain files that today's Python cannot compile.
COMPILE = """
import compileall, pathlib, sys
first, step = map(int, sys.argv[2:])
for path in sorted(pathlib.Path(sys.argv[1]).rglob("*.py"))[first::step]:
    compileall.compile_file(path, quiet=2)
"""


def say(text: str) -> None:
    print(f"devtool: set-up: {text}", file=sys.stderr, flush=True)


def wanted_stamp(root: Path, wheels: str) -> str:
    """The text that stamp() in bin/devtool makes too."""
    files = (f"requirements/{wheels}.txt", "requirements/dev.txt", "pyproject.toml", "setup.py")
    return f"{root} {wheels}\n" + "".join((root / name).read_text() for name in files)


def hold_lock(path: Path) -> int:
    """Waits until no other set-up runs in this checkout. The lock is held until this process and its children end."""
    lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    started, reported = time.monotonic(), None
    while True:
        with contextlib.suppress(BlockingIOError):
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            break
        waited = time.monotonic() - started
        if reported is None or waited - reported >= REPORT_S:
            holder = os.pread(lock, 20, 0).decode() or "unknown"
            say(f"waiting for process {holder}, which sets up .venv ({waited:.0f} s)")
            reported = waited
        time.sleep(0.1)
    os.ftruncate(lock, 0)
    os.pwrite(lock, str(os.getpid()).encode(), 0)
    return lock


def locked(package: str, lock: Path) -> str:
    """The package's lines of a lock."""
    entry = re.search(rf"^{package}==(?:.*\n)(?:[ ].*\n)*", lock.read_text(), re.MULTILINE)
    if not entry:
        raise SetUpError(f"expected {package} in {lock}, got none", "git checkout requirements")
    return entry[0]


class SetUp:
    def __init__(self, root: Path, wheels: str):
        self.root, self.wheels = root, wheels
        self.folder = root / ".venv"
        self.stamp = self.folder / "stamp"
        self.python = self.folder / "bin/python"
        self.uv = self.folder / "bin/uv"
        self.log = self.folder / "set-up.log"
        self.locks = [root / "requirements" / f"{name}.txt" for name in (wheels, "dev")]
        self.started = self.heard = time.monotonic()

    def complete(self) -> bool:
        return os.access(self.python, os.X_OK) and self.stamp.read_text() == wanted_stamp(self.root, self.wheels)

    def make(self) -> None:
        lock = hold_lock(self.root / ".venv.lock")
        with contextlib.suppress(FileNotFoundError):
            if self.complete():  # made by the process that this one waited for
                return
        wanted = wanted_stamp(self.root, self.wheels)
        self.lock, self.started = lock, time.monotonic()
        made_from = self.begin()
        self.log.write_text("")
        if not made_from:
            self.phase(f"making .venv with Python {platform.python_version()}", self.make_venv)
            self.phase("installing the locked uv", self.install_uv)
        if "".join(lock.read_text() for lock in self.locks) not in made_from:
            self.phase(f"installing the locked wheels of {self.wheels} and dev", self.install_locked)
            self.phase("compiling their Python", self.compile)
        self.phase("installing the project, editable", self.install_project)
        unfinished = self.folder / "stamp.new"
        unfinished.write_text(wanted)
        unfinished.replace(self.stamp)
        say(f"done in {time.monotonic() - self.started:.0f} s")

    def begin(self) -> str:
        """The stamp of a complete .venv, which can be updated; otherwise clears .venv and returns an empty string."""
        if self.folder.is_symlink() or (self.folder.exists() and not self.folder.is_dir()):
            raise SetUpError("expected .venv to be a folder, got a link or a file", f"mv {self.folder} {self.folder}.1")
        self.folder.mkdir(exist_ok=True)
        if not self.stamp.exists() and any(self.folder.iterdir()):
            raise SetUpError("expected a .venv that devtool made, got another one", f"mv {self.folder} {self.folder}.1")
        made_from = self.stamp.read_text() if self.stamp.exists() else None
        self.stamp.write_text("")
        here = made_from and made_from.startswith(f"{self.root} ")
        if here and os.access(self.python, os.X_OK):
            say("updating .venv: the locks, pyproject.toml or setup.py changed")
            return made_from
        if made_from is not None:
            reason = "the checkout moved, or its Python is gone" if made_from else "an earlier call left it half-made"
            say(f"clearing .venv: {reason}")
        for path in self.folder.iterdir():
            if path != self.stamp:
                shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()
        return ""

    def phase(self, what: str, action) -> None:
        self.heard = time.monotonic()
        say(f"{what} ({self.heard - self.started:.0f} s)")
        action()

    def make_venv(self) -> None:
        venv.EnvBuilder(symlinks=True, with_pip=False, prompt="pyxla").create(self.folder)

    def install_uv(self) -> None:
        """Installs uv with the pip that comes with Python. uv then installs the rest, including the locked pip."""
        only_uv = self.folder / "uv.txt"
        only_uv.write_text(locked("uv", self.locks[-1]))
        self.pip(self.bundled_pip(), "install", "-q", *BY_HASH, "-r", only_uv)

    def bundled_pip(self) -> str:
        # Debian keeps the wheels that ensurepip installs in another folder.
        folders = (sysconfig.get_config_var("WHEEL_PKG_DIR"), Path(ensurepip.__file__).parent / "_bundled")
        bundled = [wheel for folder in folders if folder for wheel in Path(folder).glob("pip-*.whl")]
        if not bundled:
            raise SetUpError(f"{sys.executable} lacks the wheel of pip", "apt-get install python3-venv")
        return str(bundled[0] / "pip")

    def install_locked(self) -> None:
        if not os.access(self.uv, os.X_OK):
            raise SetUpError(f"{self.uv} cannot be executed", "mount its file system without noexec")
        settings = setup_uv.pip_settings(self.ask(self.python, "-I", self.bundled_pip(), "config", "list"))
        env, options = setup_uv.for_uv(settings, self.environment())
        cache = Path(self.ask(self.uv, "cache", "dir", env=env).strip())
        own_cache = self.folder / "uv-cache"
        if not os.access(next(path for path in (cache, *cache.parents) if path.exists()), os.W_OK):
            options += ["--cache-dir", str(own_cache)]
        options += ["--python", self.python]
        locks, source = self.locks, None
        if self.wheels.startswith(FROM_SOURCE):
            entry = locked(FROM_SOURCE, self.locks[0])
            source, others = (self.folder / f"{name}.txt" for name in (FROM_SOURCE, "wheels"))
            source.write_text(entry)
            others.write_text(self.locks[0].read_text().replace(entry, ""))
            locks = [others, *self.locks[1:]]
        self.run("uv", [self.uv, "pip", "sync", *setup_uv.SYNC, *options, *locks], env=env)
        if source:
            command = [self.uv, "pip", "install", *setup_uv.BUILD, FROM_SOURCE, *options, "-r", source]
            self.run("uv", command, env=env | {"VLLM_TARGET_DEVICE": "empty"})
        shutil.rmtree(own_cache, ignore_errors=True)

    def compile(self) -> None:
        """Uses a process per core. Otherwise Python compiles at the first import, with warnings for the authors."""
        folder = next(self.folder.glob("lib/python3*/site-packages"))
        command, cores = [self.python, "-I", "-W", "ignore", "-c", COMPILE, folder], len(os.sched_getaffinity(0))
        self.run("Python", *([*command, number, cores] for number in range(cores)), env=self.environment())

    def install_project(self) -> None:
        # A build of the wheel may have left this folder; a Python started here would read old entry points from it.
        shutil.rmtree(self.root / "pyxla.egg-info", ignore_errors=True)
        self.pip("-m", "pip", "install", "-q", "--no-deps", "--no-build-isolation", "-e", self.root)

    def pip(self, *arguments) -> None:
        # setuptools warns about every editable install.
        env = self.environment() | {"PIP_USER": "0", "PYTHONWARNINGS": "ignore"}
        self.run("pip", [self.python, "-I", *arguments, "--no-input", "--disable-pip-version-check"], env=env)

    def environment(self) -> dict[str, str]:
        # The build of the project starts grandchildren, which must not write their bytecode into .venv.
        kept = {name: value for name, value in os.environ.items() if name not in DROPPED}
        return kept | {"PYTHONDONTWRITEBYTECODE": "1"}

    def ask(self, *command, env: dict[str, str] | None = None) -> str:
        """The output of a program that changes nothing."""
        env, me = env or self.environment(), os.getpid()
        return subprocess.run(
            list(map(str, command)), env=env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True, check=False,
            pass_fds=[self.lock], preexec_fn=lambda: die_with(me),
        ).stdout  # fmt: skip

    def run(self, tool: str, *commands: list, env: dict[str, str]) -> None:
        """Runs the commands in parallel and passes on their stderr. If it is a terminal, they get one too, for bars.

        All of it goes to the log; pip's warnings, which a user can do nothing about, to the screen only if pip fails.
        """
        said, children, me = bytearray(), [], os.getpid()
        # Ctrl-C while the listener or a child starts or ends would leave a pipe open, whose end the listener waits for.
        with interrupts(signal.SIG_BLOCK):
            reader, writer = self.open_pipe()
            listener = threading.Thread(target=self.pass_on, args=(reader, said, tool == "pip"))
            listener.start()
            try:
                for command in commands:
                    child = subprocess.Popen(
                        list(map(str, command)), cwd=self.root, env=env, stdin=subprocess.DEVNULL,
                        stdout=subprocess.DEVNULL, stderr=writer, pass_fds=[self.lock], preexec_fn=lambda: die_with(me),
                    )  # fmt: skip
                    children.append(child)
                with interrupts(signal.SIG_UNBLOCK):
                    self.wait_for(tool, children)
            finally:
                os.close(writer)
                for child in children:
                    child.kill()
                    child.wait()
                listener.join()
                os.close(reader)
                with contextlib.suppress(OSError), self.log.open("ab") as log:
                    log.write(said)
        if any(child.returncode for child in children) and tool == "pip":
            os.write(sys.stderr.fileno(), b"".join(line for line in said.splitlines(True) if WARNING.match(line)))
        if status := next((child.returncode for child in children if child.returncode), 0):
            raise diagnosis(tool, status, said.decode(errors="replace"))

    def open_pipe(self) -> tuple[int, int]:
        """The reading and the writing end for a tool's stderr: a terminal like the user's where stderr is one."""
        if not sys.stderr.isatty():
            return os.pipe()
        reader, writer = os.openpty()
        tty.setraw(writer)  # the real terminal turns \n into \r\n
        fcntl.ioctl(writer, termios.TIOCSWINSZ, fcntl.ioctl(sys.stderr, termios.TIOCGWINSZ, bytes(8)))
        return reader, writer

    def wait_for(self, tool: str, children: list[subprocess.Popen]) -> None:
        while any(child.poll() is None for child in children):
            time.sleep(0.1)
            if time.monotonic() - self.heard >= REPORT_S:
                self.heard = time.monotonic()
                say(f"{tool} is still running ({self.heard - self.started:.0f} s)")

    def pass_on(self, reader: int, said: bytearray, no_warnings: bool) -> None:
        rest = b""
        with contextlib.suppress(OSError):  # a closed terminal raises it
            while chunk := os.read(reader, 4096):
                self.heard = time.monotonic()
                said += chunk
                if no_warnings:
                    *lines, rest = (rest + chunk).split(b"\n")
                    chunk = b"".join(line + b"\n" for line in lines if not WARNING.match(line))
                os.write(sys.stderr.fileno(), chunk)
            os.write(sys.stderr.fileno(), rest)


def main(root: str, wheels: str, *arguments: str) -> None:
    set_up = SetUp(Path(root), wheels)
    try:
        if (sys.platform, platform.machine()) != ("linux", "x86_64"):
            text = f"expected linux on x86_64, got {sys.platform} on {platform.machine()}"
            raise SetUpError(text, "torch_xla has no wheels for other machines")
        set_up.make()
    except KeyboardInterrupt:
        say("interrupted; the next call starts over")
        sys.exit(130)
    except (OSError, SetUpError) as error:
        say("{}\nhint: {}".format(*(error if isinstance(error, SetUpError) else from_os_error(error)).args))
        sys.exit(1)
    os.execv(set_up.python, [str(set_up.python), "-P", "-m", "devtool", *arguments])


if __name__ == "__main__":
    main(*sys.argv[1:])
