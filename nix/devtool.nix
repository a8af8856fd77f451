# `nix run .#devtool -- ...`: devtool of the checkout around the working directory, in the flake's shell.
{ pkgs }:
pkgs.writeShellScriptBin "devtool" ''
  folder=$PWD
  while [ ! -x "$folder/bin/devtool" ]; do
    if [ "$folder" = / ]; then
      echo "devtool: checkout: expected bin/devtool in $PWD or above it, got none" >&2
      printf '\nhint: cd into a checkout of pyxla\n' >&2
      exit 1
    fi
    folder=$(dirname "$folder")
  done
  exec "$folder/bin/devtool" nix develop -c devtool "$@"
''
