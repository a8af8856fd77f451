# Checks a library that was just linked, and writes its manifest beside it: lib<op>.json, what pyxla/library/manifest.py reads.
# A library that fails a check is removed: it would be taken for a good one.
#
# cmake -D OP=<op> -D LIBRARY=<file> -D DIGEST_SOURCE=<what source_digest.cmake wrote> -D FFI_HEADER=<XLA's c_api.h>
#       -D COMPILER=<text> -D FLAGS=<text> -D ARCHITECTURES=<with commas between> -D WRAPPED=<wrapped.json or nothing>
#       -D NAMESPACE=<of the op in torch.ops> -D NIXPKGS=<text, or nothing outside Nix> -D RECIPE=<its version>
#       -D INCLUDE=<folder of pyxla's headers> -P manifest.cmake
cmake_minimum_required(VERSION 3.24)
include("${CMAKE_CURRENT_LIST_DIR}/fail.cmake")
include("${CMAKE_CURRENT_LIST_DIR}/wrapped_fields.cmake")
cmake_path(REPLACE_EXTENSION LIBRARY LAST_ONLY ".json" OUTPUT_VARIABLE manifest)
cmake_path(GET LIBRARY FILENAME library_name)
file(REMOVE "${manifest}")

function(refuse message hint)
  file(REMOVE "${LIBRARY}")
  pyxla_fail("${message}" "${hint}")
endfunction()

file(STRINGS "${LIBRARY}" table REGEX "^pyxla_op_table$" LIMIT_COUNT 1)
if(NOT table)
  refuse("${OP}: library: expected an op table, got no symbol pyxla_op_table"
         "end ${OP}_ffi.cc with PYXLA_OP_TABLE(${OP}, ...) and a line for each handler")
endif()
# So nvcc calls an anonymous namespace; what the host compiler calls it, _GLOBAL__N_1, holds no path.
file(STRINGS "${LIBRARY}" anonymous REGEX "_GLOBAL__N__" LIMIT_COUNT 1)
if(anonymous)
  refuse("${OP}: library: expected bytes that do not depend on the path, got ${anonymous}"
         "put the kernels of the .cu into a named namespace or make them static: nvcc hashes the path into this name")
endif()

# Text for JSON: only flags that the user sets can hold a quote or a backslash.
function(quote result text)
  string(REPLACE "\\" "\\\\" text "${text}")
  string(REPLACE "\"" "\\\"" text "${text}")
  set(${result} "\"${text}\"" PARENT_SCOPE)
endfunction()

quote(compiler "${COMPILER}")
quote(flags "${FLAGS}")
set(nixpkgs null)
if(NIXPKGS)
  quote(nixpkgs "${NIXPKGS}")
endif()
set(architectures "[]")
if(ARCHITECTURES)
  string(REPLACE "," "\",\n    \"" architectures "[\n    \"${ARCHITECTURES}\"\n  ]")
endif()
file(STRINGS "${FFI_HEADER}" major REGEX "^#define XLA_FFI_API_MAJOR ")
file(STRINGS "${FFI_HEADER}" minor REGEX "^#define XLA_FFI_API_MINOR ")
string(REGEX REPLACE "[^0-9]" "" major "${major}")
string(REGEX REPLACE "[^0-9]" "" minor "${minor}")
file(STRINGS "${INCLUDE}/version.h" headers REGEX "^#define PYXLA_HEADERS_VERSION ")
string(REGEX REPLACE "[^0-9]" "" headers "${headers}")
file(STRINGS "${INCLUDE}/ffi/op_table.h" op_table REGEX "kOpTableVersion = ")
string(REGEX REPLACE ".* = ([0-9]+).*" "\\1" op_table "${op_table}")
file(STRINGS "${DIGEST_SOURCE}" source_digest REGEX "kSourceDigest.*=")
string(REGEX REPLACE ".*\"(.*)\".*" "\\1" source_digest "${source_digest}")
string(SHA256 flags_digest "${FLAGS}")
file(SHA256 "${LIBRARY}" sha256)
set(wrapped "null")
if(WRAPPED)
  pyxla_read_wrapped("${OP}" "${WRAPPED}")
  set(file null)
  set(digest null)
  if(WRAPPED_LIBRARY)
    quote(file "${WRAPPED_LIBRARY}")
    file(SHA256 "${WRAPPED_FILE}" digest)
    set(digest "\"${digest}\"")
  endif()
  quote(name "${WRAPPED_NAME}")
  quote(version "${WRAPPED_VERSION}")
  quote(licence "${WRAPPED_LICENCE}")
  set(wrapped "{
    \"library\": ${file},
    \"licence\": ${licence},
    \"name\": ${name},
    \"sha256\": ${digest},
    \"version\": ${version}
  }")
endif()
# A new field makes a new format, and no field changes (docs/concept/versions.md).
# Renamed into place: a reader sees a whole manifest or none.
file(WRITE "${manifest}.new" "{
  \"compiler\": ${compiler},
  \"cuda_architectures\": ${architectures},
  \"ffi_api_version\": [
    ${major},
    ${minor}
  ],
  \"flags\": ${flags},
  \"flags_digest\": \"${flags_digest}\",
  \"format\": 2,
  \"headers\": ${headers},
  \"library\": \"${library_name}\",
  \"namespace\": \"${NAMESPACE}\",
  \"nixpkgs\": ${nixpkgs},
  \"op\": \"${OP}\",
  \"op_table\": ${op_table},
  \"recipe\": ${RECIPE},
  \"sha256\": \"${sha256}\",
  \"source_digest\": \"${source_digest}\",
  \"wrapped\": ${wrapped}
}
")
file(RENAME "${manifest}.new" "${manifest}")
