# Writes the source file that holds a library's build stamp: SHA-256 over "<sha256 of the file>  <path>\n" of every
# source, in the order of their paths. pyxla/build_stamp.py computes the same to tell a stale library.
#
# cmake -D ROOT=<kernels folder> -D SOURCES=<files relative to it> -D OUTPUT=<file> -P build_stamp.cmake
string(REPLACE "|" ";" SOURCES "${SOURCES}")
list(SORT SOURCES)
set(listing "")
foreach(source IN LISTS SOURCES)
  file(SHA256 "${ROOT}/${source}" digest)
  string(APPEND listing "${digest}  ${source}\n")
endforeach()
string(SHA256 stamp "${listing}")
file(CONFIGURE OUTPUT "${OUTPUT}" CONTENT "namespace pyxla {
extern const char kBuildStamp[];
const char kBuildStamp[] = \"${stamp}\";
}  // namespace pyxla
")
