# pyxla_add_op(<op> <implemented>): the folder <op>/ becomes the library lib<op>.so.
#
# *.cc are host sources, *.cu device sources (left out without a CUDA compiler), of the folder and of those in it except
# vendor/. `implemented` is empty, or the op that the folder is an implementation of: then that op's host sources are
# compiled anew with its own. The library exports one symbol,
# pyxla_op_table, and needs nothing but glibc, libstdc++, what it wraps and, for its CUDA code, the driver. Beside it lies
# its manifest, lib<op>.json, which manifest.cmake writes once the library has passed its checks.
include(PyxlaTriton.cmake)
include(PyxlaWrapped.cmake)

# pyxla_add_implementation(<folder>): reads the op from <folder>/implements, a line, and adds the library.
function(pyxla_add_implementation folder)
  set(file "${PYXLA_KERNELS_DIR}/${folder}/implements")
  set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS "${file}")
  file(STRINGS "${file}" op LIMIT_COUNT 1)
  if(NOT op MATCHES "^[a-z][a-z0-9_]*$" OR NOT EXISTS "${PYXLA_KERNELS_DIR}/${op}/${op}_ffi.cc")
    pyxla_fail("${folder}: implements: expected an op with ${op}/${op}_ffi.cc, got ${op}"
               "write the name of the op's folder into ${folder}/implements")
  elseif(EXISTS "${PYXLA_KERNELS_DIR}/${op}/implements")
    pyxla_fail("${folder}: implements: expected an op, got ${op}, which is an implementation itself"
               "write the op that ${op} implements into ${folder}/implements")
  elseif(EXISTS "${PYXLA_KERNELS_DIR}/${op}/wrapped.json")
    pyxla_fail("${folder}: implements: expected an op whose host code is its own, got ${op}, which wraps a library"
               "make ${folder} an op of its own: remove ${folder}/implements")
  elseif(NOT folder MATCHES "^${op}_[a-z0-9]")
    pyxla_fail("${folder}: folder: expected ${op}_ and the implementation's name, as it implements ${op}, got ${folder}"
               "rename kernels/${folder} and its files")
  endif()
  pyxla_add_op(${folder} ${op})
endfunction()

function(pyxla_add_op op implemented)
  set(inside "${PYXLA_KERNELS_DIR}/${op}")
  file(GLOB sources CONFIGURE_DEPENDS RELATIVE "${PYXLA_KERNELS_DIR}"
       "${inside}/triton_kernels.py" "${inside}/wrapped.json" "${inside}/implements")
  file(GLOB_RECURSE code CONFIGURE_DEPENDS RELATIVE "${PYXLA_KERNELS_DIR}"
       "${inside}/*.h" "${inside}/*.cuh" "${inside}/*.cc" "${inside}/*.cu" "${inside}/vendor/*"
       "${PYXLA_KERNELS_DIR}/_*/*.h" "${PYXLA_KERNELS_DIR}/_*/*.cuh")
  set(suffix "")
  set(inherited "")
  if(implemented)
    string(REGEX REPLACE "^${implemented}" "" suffix "${op}")
    set(theirs "${PYXLA_KERNELS_DIR}/${implemented}")
    file(GLOB_RECURSE inherited CONFIGURE_DEPENDS RELATIVE "${PYXLA_KERNELS_DIR}"
         "${theirs}/*.h" "${theirs}/*.cuh" "${theirs}/*.cc")
  endif()
  list(APPEND sources ${code} ${inherited})
  list(REMOVE_DUPLICATES sources)
  # What pyxla brings: its headers and this recipe.
  file(GLOB recipe CONFIGURE_DEPENDS RELATIVE "${PYXLA_DIR}" LIST_DIRECTORIES false "${PYXLA_DIR}/cmake/*")
  file(GLOB_RECURSE headers CONFIGURE_DEPENDS RELATIVE "${PYXLA_DIR}"
       "${PYXLA_DIR}/include/*.h" "${PYXLA_DIR}/include/*.cuh")
  list(APPEND headers ${recipe})

  set(digest_source "${CMAKE_CURRENT_BINARY_DIR}/${op}_source_digest.cc")
  list(JOIN sources "|" sources_argument)
  list(JOIN headers "|" headers_argument)
  list(TRANSFORM sources PREPEND "${PYXLA_KERNELS_DIR}/" OUTPUT_VARIABLE source_paths)
  list(TRANSFORM headers PREPEND "${PYXLA_DIR}/" OUTPUT_VARIABLE header_paths)
  add_custom_command(
    OUTPUT "${digest_source}"
    COMMAND "${CMAKE_COMMAND}" -D "KERNELS=${PYXLA_KERNELS_DIR}" -D "SOURCES=${sources_argument}"
            -D "PYXLA=${PYXLA_DIR}" -D "HEADERS=${headers_argument}" -D "OUTPUT=${digest_source}"
            -P "${CMAKE_SOURCE_DIR}/source_digest.cmake"
    DEPENDS ${source_paths} ${header_paths}
    COMMENT "Digesting the sources of ${op}"
    VERBATIM)

  set(compiled ${sources})
  list(FILTER compiled INCLUDE REGEX "^${op}/.*\\.(cc|cu)$")
  list(FILTER compiled EXCLUDE REGEX "^${op}/vendor/")
  # Of the op's host sources those that launch its own device code are not the implementation's, nor is a file that the
  # implementation has under its own name.
  list(FILTER inherited INCLUDE REGEX "\\.cc$")
  foreach(source IN LISTS inherited)
    string(REPLACE "${implemented}/${implemented}" "${op}/${op}" own "${source}")
    if(NOT own IN_LIST compiled AND NOT source STREQUAL "${implemented}/${implemented}_launch.cc")
      list(APPEND compiled "${source}")
    endif()
  endforeach()
  set(with_cuda ${PYXLA_HAVE_CUDA})
  set(architectures "${PYXLA_ARCHITECTURES_TEXT}")
  set(compiler "${PYXLA_COMPILER_TEXT}")
  set(generated "")
  if(PYXLA_HAVE_CUDA AND "${op}/triton_kernels.py" IN_LIST sources)
    pyxla_add_triton(${op}) # sets the four again
  endif()
  set(wrapped "")
  if("${op}/wrapped.json" IN_LIST sources)
    set(wrapped "${PYXLA_KERNELS_DIR}/${op}/wrapped.json")
    pyxla_find_wrapped_wheel(${op} "${wrapped}") # sets wheel_headers, and wrapped, with_cuda and architectures again
  endif()
  if(NOT with_cuda)
    list(FILTER compiled EXCLUDE REGEX "\\.cu$")
  endif()
  list(TRANSFORM compiled PREPEND "${PYXLA_KERNELS_DIR}/")
  add_library(${op} SHARED ${compiled} "${digest_source}" ${generated})
  target_compile_definitions(${op} PRIVATE
    PYXLA_WITH_CUDA=$<BOOL:${with_cuda}>
    "PYXLA_IMPLEMENTATION_SUFFIX=\"${suffix}\""
    "PYXLA_NAMESPACE=\"${PYXLA_NAMESPACE}\""
    "PYXLA_CUDA_ARCHITECTURES=\"${architectures}\""
    "PYXLA_COMPILER=\"${compiler}\""
    "PYXLA_FLAGS_DIGEST=\"${PYXLA_FLAGS_DIGEST}\"")
  target_include_directories(${op} PRIVATE "${PYXLA_KERNELS_DIR}" "${PYXLA_DIR}/include")
  target_include_directories(${op} SYSTEM PRIVATE "${PYXLA_FFI_INCLUDE_DIR}")
  target_link_libraries(${op} PRIVATE $<$<BOOL:${with_cuda}>:CUDA::cudart_static>)
  target_link_options(${op} PRIVATE
    "LINKER:--version-script=${CMAKE_SOURCE_DIR}/exports.map")
  if(generated)
    target_include_directories(${op} PRIVATE "${CMAKE_CURRENT_BINARY_DIR}/${op}_triton")
  endif()
  if(wrapped)
    pyxla_wrap(${op} "${wrapped}" "${digest_source}" "${wheel_headers}")
  endif()
  set_target_properties(${op} PROPERTIES LINK_DEPENDS "${CMAKE_SOURCE_DIR}/exports.map")
  add_custom_command(
    TARGET ${op} POST_BUILD
    COMMAND "${CMAKE_COMMAND}" -D "OP=${op}" -D "LIBRARY=$<TARGET_FILE:${op}>" -D "DIGEST_SOURCE=${digest_source}"
            -D "FFI_HEADER=${PYXLA_FFI_INCLUDE_DIR}/xla/ffi/api/c_api.h" -D "COMPILER=${compiler}"
            -D "FLAGS=${PYXLA_FLAGS_TEXT}" -D "ARCHITECTURES=${architectures}" -D "WRAPPED=${wrapped}"
            -D "NAMESPACE=${PYXLA_NAMESPACE}" -D "RECIPE=${PYXLA_RECIPE_VERSION}" -D "INCLUDE=${PYXLA_DIR}/include/pyxla"
            -D "NIXPKGS=${PYXLA_NIXPKGS_TEXT}"
            -P "${CMAKE_SOURCE_DIR}/manifest.cmake"
    BYPRODUCTS "${PYXLA_LIBRARY_DIR}/lib${op}.json"
    VERBATIM)
  install(TARGETS ${op} LIBRARY DESTINATION "${PYXLA_PACKAGE}/${op}")
  install(FILES "${PYXLA_LIBRARY_DIR}/lib${op}.json" DESTINATION "${PYXLA_PACKAGE}/${op}")
endfunction()
