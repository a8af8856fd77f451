# `nix fmt`: Python by ruff, C++ and CUDA by clang-format, from the locked wheels.
{ pkgs, tools }:
pkgs.writeShellScriptBin "pyxla-format" ''
  # pyxla-format [--check] [PATH...]
  fix=--fix format= rewrite=-i
  if [ "''${1:-}" = --check ]; then
    shift
    fix= format=--check rewrite='--dry-run -Werror'
  fi
  [ $# -gt 0 ] || set -- .
  status=0
  ${tools}/bin/ruff format $format "$@" || status=1
  ${tools}/bin/ruff check $fix "$@" || status=1
  find "$@" \( -name '.?*' -o -name build \) -prune -o -type f \
    \( -name '*.h' -o -name '*.cuh' -o -name '*.cc' -o -name '*.cu' \) -print0 |
    xargs -0 -r ${tools}/bin/clang-format $rewrite || status=1
  exit $status
''
