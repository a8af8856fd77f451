# pyxla_add_op(<op>): the folder <op>/ becomes the library lib<op>.so.
#
# *.cc are host sources, *.cu device sources (left out without a CUDA compiler). The library exports one symbol,
# pyxla_op_table, and needs nothing but glibc, libstdc++ and, for its CUDA code, the driver.
function(pyxla_add_op op)
  file(GLOB sources CONFIGURE_DEPENDS RELATIVE "${CMAKE_CURRENT_SOURCE_DIR}"
       "${op}/*.h" "${op}/*.cuh" "${op}/*.cc" "${op}/*.cu" "common/*.h" "common/*.cuh" "cmake/*" "CMakeLists.txt")

  set(stamp_source "${CMAKE_CURRENT_BINARY_DIR}/${op}_build_stamp.cc")
  list(JOIN sources "|" sources_argument)
  add_custom_command(
    OUTPUT "${stamp_source}"
    COMMAND "${CMAKE_COMMAND}" -D "ROOT=${CMAKE_CURRENT_SOURCE_DIR}" -D "SOURCES=${sources_argument}"
            -D "OUTPUT=${stamp_source}" -P "${CMAKE_CURRENT_SOURCE_DIR}/cmake/build_stamp.cmake"
    DEPENDS ${sources}
    COMMENT "Stamping ${op}"
    VERBATIM)

  set(compiled ${sources})
  list(FILTER compiled INCLUDE REGEX "^${op}/.*\\.(cc|cu)$")
  if(NOT PYXLA_HAVE_CUDA)
    list(FILTER compiled EXCLUDE REGEX "\\.cu$")
  endif()
  add_library(${op} SHARED ${compiled} "${stamp_source}")
  target_compile_definitions(${op} PRIVATE
    PYXLA_WITH_CUDA=$<BOOL:${PYXLA_HAVE_CUDA}>
    "PYXLA_CUDA_ARCHITECTURES=\"$<$<BOOL:${PYXLA_HAVE_CUDA}>:${PYXLA_ARCHITECTURES_TEXT}>\""
    "PYXLA_COMPILER=\"${PYXLA_COMPILER_TEXT}\"")
  target_include_directories(${op} PRIVATE "${CMAKE_CURRENT_SOURCE_DIR}")
  target_include_directories(${op} SYSTEM PRIVATE "${PYXLA_FFI_INCLUDE_DIR}")
  target_link_libraries(${op} PRIVATE $<$<BOOL:${PYXLA_HAVE_CUDA}>:CUDA::cudart_static>)
  target_link_options(${op} PRIVATE
    "LINKER:--version-script=${CMAKE_CURRENT_SOURCE_DIR}/cmake/exports.map" "LINKER:--build-id=none"
    $<$<NOT:$<BOOL:${PYXLA_SANITIZE}>>:LINKER:--no-undefined>)
  set_target_properties(${op} PROPERTIES LINK_DEPENDS "${CMAKE_CURRENT_SOURCE_DIR}/cmake/exports.map")
  install(TARGETS ${op} LIBRARY DESTINATION "pyxla_kernels/${op}")
endfunction()
