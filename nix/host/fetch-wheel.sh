# Fixed-output builder: the wheel $name through the machine's pip and its settings.
set -eu -o pipefail
PATH=/usr/local/bin:/usr/bin:/bin
export PATH HOME="$NIX_BUILD_TOP"
download=$NIX_BUILD_TOP/download
# Any Python will do for a wheel of every Python.
case $python in cp3*) tag=${python#cp} ;; *) tag=311 ;; esac
choice=(--implementation cp --python-version "$tag")
for one in ${abi//./ }; do choice+=(--abi "$one"); done
# pip prefers the platform that comes first; of two wheels the lock takes the one for the newer system, as pip does alone.
for one in $(printf '%s\n' ${platform//./ } | sort -Vr); do choice+=(--platform "$one"); done
"$pip" -I -m pip download --quiet --no-input --no-deps --only-binary=:all: --disable-pip-version-check \
  "${choice[@]}" --dest "$download" "$pname==$version" >&2 || {
  printf 'nix: %s: expected the wheel from the package index, got what pip says above\n\n' "$name" >&2
  printf 'hint: check the network; a mirror is named by PIP_INDEX_URL or by PIP_CONFIG_FILE\n' >&2
  exit 1
}
if [ ! -e "$download/$name" ]; then
  printf 'nix: %s: expected this wheel, got %s\n\nhint: devtool lock\n' "$name" "$(ls "$download")" >&2
  exit 1
fi
got=sha256-$(sha256sum "$download/$name" | cut -d ' ' -f 1 | xxd -r -p | base64)
if [ "$got" != "$hash" ]; then
  printf 'nix: %s: expected %s, got %s\n\n' "$name" "$hash" "$got" >&2
  printf 'hint: the index serves another file than nix/wheels.json names: devtool lock, and read what changes\n' >&2
  exit 1
fi
mv "$download/$name" "$out"
