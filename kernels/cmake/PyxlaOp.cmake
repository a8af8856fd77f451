# pyxla_add_op(<op>): the folder <op>/ becomes the library lib<op>.so.
#
# *.cc are host sources, *.cu device sources (left out without a CUDA compiler). The library exports one symbol,
# pyxla_op_table, and needs nothing but glibc, libstdc++ and, for its CUDA code, the driver. Beside it lies its manifest,
# lib<op>.json, which manifest.cmake writes once the library has passed its checks.
function(pyxla_add_op op)
  file(GLOB sources CONFIGURE_DEPENDS RELATIVE "${CMAKE_CURRENT_SOURCE_DIR}"
       "${op}/*.h" "${op}/*.cuh" "${op}/*.cc" "${op}/*.cu" "common/*.h" "common/*.cuh" "cmake/*" "CMakeLists.txt")

  set(digest_source "${CMAKE_CURRENT_BINARY_DIR}/${op}_source_digest.cc")
  list(JOIN sources "|" sources_argument)
  add_custom_command(
    OUTPUT "${digest_source}"
    COMMAND "${CMAKE_COMMAND}" -D "ROOT=${CMAKE_CURRENT_SOURCE_DIR}" -D "SOURCES=${sources_argument}"
            -D "OUTPUT=${digest_source}" -P "${CMAKE_CURRENT_SOURCE_DIR}/cmake/source_digest.cmake"
    DEPENDS ${sources}
    COMMENT "Digesting the sources of ${op}"
    VERBATIM)

  set(compiled ${sources})
  list(FILTER compiled INCLUDE REGEX "^${op}/.*\\.(cc|cu)$")
  if(NOT PYXLA_HAVE_CUDA)
    list(FILTER compiled EXCLUDE REGEX "\\.cu$")
  endif()
  add_library(${op} SHARED ${compiled} "${digest_source}")
  target_compile_definitions(${op} PRIVATE
    PYXLA_WITH_CUDA=$<BOOL:${PYXLA_HAVE_CUDA}>
    "PYXLA_CUDA_ARCHITECTURES=\"${PYXLA_ARCHITECTURES_TEXT}\""
    "PYXLA_COMPILER=\"${PYXLA_COMPILER_TEXT}\""
    "PYXLA_FLAGS_DIGEST=\"${PYXLA_FLAGS_DIGEST}\"")
  target_include_directories(${op} PRIVATE "${CMAKE_CURRENT_SOURCE_DIR}")
  target_include_directories(${op} SYSTEM PRIVATE "${PYXLA_FFI_INCLUDE_DIR}")
  target_link_libraries(${op} PRIVATE $<$<BOOL:${PYXLA_HAVE_CUDA}>:CUDA::cudart_static>)
  target_link_options(${op} PRIVATE
    "LINKER:--version-script=${CMAKE_CURRENT_SOURCE_DIR}/cmake/exports.map")
  set_target_properties(${op} PROPERTIES LINK_DEPENDS "${CMAKE_CURRENT_SOURCE_DIR}/cmake/exports.map")
  add_custom_command(
    TARGET ${op} POST_BUILD
    COMMAND "${CMAKE_COMMAND}" -D "OP=${op}" -D "LIBRARY=$<TARGET_FILE:${op}>" -D "DIGEST_SOURCE=${digest_source}"
            -D "FFI_HEADER=${PYXLA_FFI_INCLUDE_DIR}/xla/ffi/api/c_api.h" -D "COMPILER=${PYXLA_COMPILER_TEXT}"
            -D "FLAGS=${PYXLA_FLAGS_TEXT}" -D "ARCHITECTURES=${PYXLA_ARCHITECTURES_TEXT}"
            -P "${CMAKE_CURRENT_SOURCE_DIR}/cmake/manifest.cmake"
    BYPRODUCTS "${PYXLA_LIBRARY_DIR}/lib${op}.json"
    VERBATIM)
  install(TARGETS ${op} LIBRARY DESTINATION "pyxla_kernels/${op}")
  install(FILES "${PYXLA_LIBRARY_DIR}/lib${op}.json" DESTINATION "pyxla_kernels/${op}")
endfunction()
