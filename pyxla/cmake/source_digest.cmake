# Writes the source file that holds a library's source digest: SHA-256 over "<sha256 of the file>  <name>\n" of every
# source, in the order of their names: first the op's own, then pyxla's. pyxla/library/source_digest.py computes the same
# to tell a stale library.
#
# cmake -D KERNELS=<folder> -D SOURCES=<files relative to it> -D PYXLA=<folder> -D HEADERS=<files relative to it>
#       -D OUTPUT=<file> -P source_digest.cmake
function(append_digests folder prefix files)
  string(REPLACE "|" ";" files "${files}")
  list(SORT files)
  foreach(file IN LISTS files)
    file(SHA256 "${folder}/${file}" digest)
    string(APPEND listing "${digest}  ${prefix}${file}\n")
  endforeach()
  set(listing "${listing}" PARENT_SCOPE)
endfunction()

set(listing "")
append_digests("${KERNELS}" "" "${SOURCES}")
append_digests("${PYXLA}" "pyxla/" "${HEADERS}")
string(SHA256 digest "${listing}")
file(CONFIGURE OUTPUT "${OUTPUT}" CONTENT "namespace pyxla {
extern const char kSourceDigest[];
const char kSourceDigest[] = \"${digest}\";
}  // namespace pyxla
")
