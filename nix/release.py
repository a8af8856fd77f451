"""Writes manifest.json, the manifests of all libraries of a release, after comparing each with its library.

release.py <folder of the libraries> <version> <system>
"""

import hashlib
import json
import pathlib
import sys

folder, version, system = pathlib.Path(sys.argv[1]), *sys.argv[2:]
libraries = []
for path in sorted(folder.glob("lib*.json")):
    manifest = json.loads(path.read_text())
    digest = hashlib.sha256((folder / manifest["library"]).read_bytes()).hexdigest()
    if digest != manifest["sha256"]:
        sys.exit(f"release: {path.name}: expected SHA-256 {manifest['sha256']}, got {digest}")
    libraries.append(manifest)
text = json.dumps({"version": version, "system": system, "libraries": libraries}, indent=2, sort_keys=True)
(folder / "manifest.json").write_text(text + "\n")
