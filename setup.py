"""What pyproject.toml cannot say: `kernels/` installs as `pyxla_kernels`, and the wheel carries the built libraries.

scikit-build-core was tried first: its `wheel.packages` refuses a folder whose name differs from its package's.
"""

import os
import shlex
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

from setuptools import Distribution, find_packages, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_py import build_py

ROOT = Path(__file__).resolve().parent
KERNELS = "kernels"
PACKAGE = "pyxla_kernels"
TORCH_BACKEND = "pyxla_torch_backend"


def packages() -> list[str]:
    inits = sorted((ROOT / KERNELS).glob("*/**/__init__.py"))
    ops = [".".join([PACKAGE, *init.parent.relative_to(ROOT / KERNELS).parts]) for init in inits]
    own = find_packages(str(ROOT), include=["pyxla*", "devtool*"], exclude=["pyxla.torch_backend"])
    return [*own, PACKAGE, *ops, TORCH_BACKEND]


class BuildWithLibraries(build_py):
    """Adds lib<op>.so to each op's package. An editable install compiles nothing: `devtool build` does that."""

    def find_package_modules(self, package, package_dir):
        found = super().find_package_modules(package, package_dir)
        return [entry for entry in found if not entry[1].startswith("test_")]

    def run(self):
        if self.editable_mode:
            return super().run()
        # What an earlier build left here would end up in the wheel.
        shutil.rmtree(self.build_lib, ignore_errors=True)
        super().run()
        target = Path(self.build_lib).resolve()
        if "PYXLA_LIBRARIES" in os.environ:
            # Folders of built libraries, of ops with their manifests: the flake builds each apart.
            device = {"pyxla_pjrt_proxy.so": "pyxla", "pyxla_set_device.so": TORCH_BACKEND}
            for folder in map(Path, os.environ["PYXLA_LIBRARIES"].split(os.pathsep)):
                for path in sorted(folder.glob("lib*.so")):
                    op = path.stem.removeprefix("lib")
                    for file in (path, path.with_suffix(".json")):
                        shutil.copy(file, target / PACKAGE / op)
                    if (wrapped := folder / f"{op}.wrapped").is_dir():
                        shutil.copytree(wrapped, target / PACKAGE / op / wrapped.name)
                for path in sorted(folder.glob("pyxla_*.so")):
                    shutil.copy(path, target / device[path.name])
            return
        build = Path(self.get_finalized_command("build").build_temp).resolve()
        # The locked cmake and ninja sit beside this Python, which need not be on PATH.
        env = {**os.environ, "PATH": os.pathsep.join([sysconfig.get_path("scripts"), os.environ["PATH"]])}
        for command in (
            ["cmake", "-G", "Ninja", "-S", str(ROOT / "pyxla/cmake"), "-B", str(build),
             f"-DPYXLA_KERNELS={ROOT / KERNELS}", "-DCMAKE_BUILD_TYPE=Release",
             f"-DPython3_EXECUTABLE={sys.executable}", *shlex.split(os.environ.get("CMAKE_ARGS", ""))],
            ["cmake", "--build", str(build)],
            ["cmake", "--install", str(build), "--prefix", str(target)],
        ):  # fmt: skip
            subprocess.run(command, check=True, env=env)


class AnyPython3(bdist_wheel):
    """The libraries know nothing of Python: one wheel for every Python 3 of this platform."""

    def get_tag(self):
        return "py3", "none", super().get_tag()[2]


class WithLibraries(Distribution):
    def has_ext_modules(self):
        return True


setup(
    packages=packages(),
    package_dir={PACKAGE: KERNELS, TORCH_BACKEND: "pyxla/torch_backend"},
    distclass=WithLibraries,
    cmdclass={"build_py": BuildWithLibraries, "bdist_wheel": AnyPython3},
    # Apart from build/ itself, where `devtool build` works.
    options={"build": {"build_base": "build/wheel"}},
)
