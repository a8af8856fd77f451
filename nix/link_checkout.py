"""Makes a checkout importable as an editable install does, for `nix develop`; prints the folder for PYTHONPATH.

link_checkout.py <checkout>
"""

import pathlib
import sys
import tomllib

root = pathlib.Path(sys.argv[1]).resolve()
sys.path.insert(0, str(root))
from devtool.repository import write_site  # noqa: E402

FOLDERS = {
    "pyxla": "pyxla",
    "devtool": "devtool",
    "pyxla_kernels": "kernels",
    "pyxla_torch_backend": "pyxla/torch_backend",
}
site = root / "build" / "nix-shell"
project = tomllib.loads((root / "pyproject.toml").read_text())["project"]
write_site(site, project, {name: root / folder for name, folder in FOLDERS.items()})
print(site)
