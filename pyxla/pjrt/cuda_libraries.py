"""The libraries that the CUDA plugin opens by name, and files of the wheels that have them."""

from __future__ import annotations

import importlib.util
from pathlib import Path

# The libraries that the plugin opens by name, each after those that it needs: folder under nvidia/, library.
LIBRARIES = {
    13: (
        *(
            ("cu13/lib", name)
            for name in ("libcudart.so.13", "libnvJitLink.so.13", "libnvrtc.so.13", "libcublasLt.so.13")
        ),
        *(
            ("cu13/lib", name)
            for name in ("libcublas.so.13", "libcufft.so.12", "libcusparse.so.12", "libcusolver.so.12")
        ),
        ("cu13/lib", "libcupti.so.13"),
        ("cudnn/lib", "libcudnn.so.9"),
        ("nccl/lib", "libnccl.so.2"),
        ("nvshmem/lib", "libnvshmem_host.so.3"),
    ),
    12: (
        ("cuda_runtime/lib", "libcudart.so.12"),
        ("nvjitlink/lib", "libnvJitLink.so.12"),
        ("cuda_nvrtc/lib", "libnvrtc.so.12"),
        ("cublas/lib", "libcublasLt.so.12"),
        ("cublas/lib", "libcublas.so.12"),
        ("cufft/lib", "libcufft.so.11"),
        ("cusparse/lib", "libcusparse.so.12"),
        ("cusolver/lib", "libcusolver.so.11"),
        ("cuda_cupti/lib", "libcupti.so.12"),
        ("cudnn/lib", "libcudnn.so.9"),
        ("nccl/lib", "libnccl.so.2"),
        ("nvshmem/lib", "libnvshmem_host.so.3"),
    ),
}
# XLA runs on one GPU without these.
OPTIONAL = {"libcupti.so.12", "libcupti.so.13", "libnvshmem_host.so.3", "libnccl.so.2"}


def in_package(package: str, name: str) -> Path | None:
    """A file of an installed package, without importing the package: the modules of jax_plugins need jax."""
    spec = importlib.util.find_spec(package)
    folders = (Path(folder) for folder in (spec.submodule_search_locations or [])) if spec else ()
    return next((folder / name for folder in folders if (folder / name).is_file()), None)
