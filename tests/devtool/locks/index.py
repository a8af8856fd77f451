"""A package index for uv: a folder of tiny wheels."""

import hashlib
import os
from pathlib import Path

from packaging.utils import canonicalize_name

from tests.small_tree import write_wheel


class Index:
    """An empty index.

    Args:
        folder: for its files, and for uv's cache.
    """

    def __init__(self, folder: Path):
        self.wheels, self._cache = folder / "wheels", folder / "cache"

    def wheel(self, name: str, version: str = "1.0", **options) -> None:
        """Adds a wheel: one page per package, with the hash of each file, as in a real index."""
        folder = self.wheels / canonicalize_name(name)
        write_wheel(folder, name, version, **options)
        files = {path.name: hashlib.sha256(path.read_bytes()) for path in folder.glob("*.whl")}
        links = [f'<a href="{file}#sha256={digest.hexdigest()}">{file}</a>\n' for file, digest in files.items()]
        (folder / "index.html").write_text("".join(links))

    def environment(self, environment: dict[str, str] | os._Environ) -> dict[str, str]:
        """The environment with this index alone, and without the user's settings."""
        kept = {name: value for name, value in environment.items() if not name.startswith("UV_")}
        ours = {"UV_OFFLINE": "1", "UV_NO_CONFIG": "1", "UV_DEFAULT_INDEX": self.wheels.as_uri()}
        return kept | ours | {"UV_CACHE_DIR": str(self._cache)}
