# pyxla_add_triton(<op>): compiles <op>/triton_kernels.py for the build's real architectures (triton_compile.py).
#
# Sets in the caller's scope: with_cuda, OFF where Triton is missing; architectures, as Triton compiles for them; compiler,
# with Triton's version; generated, the source file with the launcher and the GPU code.
function(pyxla_add_triton op)
  if(PYXLA_TRITON_VERSION STREQUAL "NONE")
    if(PYXLA_CUDA STREQUAL "ON")
      pyxla_fail("${op}: triton: expected it beside ${Python3_EXECUTABLE} (PYXLA_CUDA=ON), got none"
                 "run through bin/devtool, which installs the locked wheels")
    endif()
    message(STATUS "${op}: no Triton, so no CUDA code")
    set(with_cuda OFF PARENT_SCOPE)
    set(architectures "" PARENT_SCOPE)
    return()
  endif()
  # From compute capability 9.0 on Triton compiles for one GPU alone ("a"). Its PTX is no better, so it is left out.
  set(architectures "")
  foreach(architecture IN LISTS PYXLA_ARCHITECTURES)
    if(architecture MATCHES "^([0-9]+)[af]?(-real)?$")
      set(number "${CMAKE_MATCH_1}")
      if(number GREATER_EQUAL 90)
        string(APPEND number "a")
      endif()
      list(APPEND architectures "${number}-real")
    endif()
  endforeach()
  list(REMOVE_DUPLICATES architectures)
  if(NOT architectures)
    pyxla_fail("${op}: CUDA architecture: expected a real one such as 90a-real for Triton, got ${PYXLA_ARCHITECTURES_TEXT}"
               "add one to PYXLA_ARCHITECTURES")
  endif()
  list(JOIN architectures "," architectures)
  find_program(PYXLA_FATBINARY fatbinary HINTS "${CUDAToolkit_BIN_DIR}" REQUIRED)

  set(folder "${CMAKE_CURRENT_BINARY_DIR}/${op}_triton")
  add_custom_command(
    OUTPUT "${folder}/launch.cc"
    BYPRODUCTS "${folder}/${op}/triton_kernels.h"
    COMMAND "${Python3_EXECUTABLE}" "${CMAKE_SOURCE_DIR}/triton_compile.py" ${op}
            --source "${PYXLA_KERNELS_DIR}/${op}/triton_kernels.py" --architectures "${architectures}"
            --fatbinary "${PYXLA_FATBINARY}" --output "${folder}"
    DEPENDS "${PYXLA_KERNELS_DIR}/${op}/triton_kernels.py" triton_compile.py triton_launcher.py triton_spec.py
    COMMENT "Compiling the Triton kernels of ${op}"
    VERBATIM)
  set(architectures "${architectures}" PARENT_SCOPE)
  set(compiler "${PYXLA_COMPILER_TEXT}, Triton ${PYXLA_TRITON_VERSION}" PARENT_SCOPE)
  set(generated "${folder}/launch.cc" PARENT_SCOPE)
endfunction()
