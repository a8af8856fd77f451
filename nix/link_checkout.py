"""Makes a checkout importable as an editable install does, for `nix develop`; prints the folder for PYTHONPATH.

link_checkout.py <checkout>
"""

import os
import pathlib
import sys
import tomllib

root = pathlib.Path(sys.argv[1]).resolve()
project = tomllib.loads((root / "pyproject.toml").read_text())["project"]
site = root / "build" / "nix-shell"
info = site / f"pyxla-{project['version']}.dist-info"
info.mkdir(parents=True, exist_ok=True)
PACKAGES = {
    "pyxla": "pyxla",
    "devtool": "devtool",
    "pyxla_kernels": "kernels",
    "pyxla_torch_backend": "pyxla/torch_backend",
}
for package, folder in PACKAGES.items():
    link = site / package
    if not link.is_symlink() or link.readlink() != root / folder:
        fresh = site / f".{package}.{os.getpid()}"
        fresh.symlink_to(root / folder)
        fresh.replace(link)
(info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: pyxla\nVersion: {project['version']}\n")
groups = {"console_scripts": project["scripts"], **project["entry-points"]}
lines = [f"[{group}]\n" + "".join(f"{n} = {v}\n" for n, v in entries.items()) for group, entries in groups.items()]
(info / "entry_points.txt").write_text("\n".join(lines))
print(site)
