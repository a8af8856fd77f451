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
nixpkgs = {manifest["nixpkgs"]: None for manifest in libraries}
if len(nixpkgs) > 1:
    sys.exit(f"release: nixpkgs: expected one for all libraries, got {', '.join(map(str, nixpkgs))}")
compilers = [manifest["compiler"].split(", ") for manifest in libraries]
release = {
    "version": version,
    "system": system,
    "nixpkgs": next(iter(nixpkgs), None),
    # Those that all libraries have; some have one more.
    "compilers": [name for name in (compilers or [[]])[0] if all(name in others for others in compilers)],
    "libraries": libraries,
}
(folder / "manifest.json").write_text(json.dumps(release, indent=2, sort_keys=True) + "\n")
