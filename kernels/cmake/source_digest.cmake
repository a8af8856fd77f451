# Writes the source file that holds a library's source digest: SHA-256 over "<sha256 of the file>  <path>\n" of every
# source, in the order of their paths. pyxla/library/source_digest.py computes the same to tell a stale library.
#
# cmake -D ROOT=<kernels folder> -D SOURCES=<files relative to it> -D OUTPUT=<file> -P source_digest.cmake
string(REPLACE "|" ";" SOURCES "${SOURCES}")
list(SORT SOURCES)
set(listing "")
foreach(source IN LISTS SOURCES)
  file(SHA256 "${ROOT}/${source}" digest)
  string(APPEND listing "${digest}  ${source}\n")
endforeach()
string(SHA256 digest "${listing}")
file(CONFIGURE OUTPUT "${OUTPUT}" CONTENT "namespace pyxla {
extern const char kSourceDigest[];
const char kSourceDigest[] = \"${digest}\";
}  // namespace pyxla
")
