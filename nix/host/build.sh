# The builder of the stand-in's derivations.
set -eu -o pipefail
. "$stdenv/setup"
genericBuild
