include("${CMAKE_CURRENT_LIST_DIR}/wrapped_fields.cmake")

# pyxla_find_wrapped_wheel(<op> <wrapped.json>): finds the installed wheel whose headers the op's CUDA code includes.
#
# Sets in the caller's scope: wheel_headers, the folder, empty where wrapped.json names no wheel; with_cuda, OFF where the
# wheel is missing, and architectures, empty then; wrapped, empty where nothing of the wheel gets into the library.
function(pyxla_find_wrapped_wheel op description)
  set(wheel_headers "" PARENT_SCOPE)
  pyxla_read_wrapped("${op}" "${description}")
  if(NOT WRAPPED_WHEEL)
    return()
  elseif(NOT with_cuda)
    set(wrapped "" PARENT_SCOPE)
    return()
  endif()
  execute_process(
    COMMAND "${Python3_EXECUTABLE}" "${CMAKE_SOURCE_DIR}/find_wheel.py" "${WRAPPED_WHEEL}"
            "${WRAPPED_INCLUDE}"
    OUTPUT_VARIABLE found OUTPUT_STRIP_TRAILING_WHITESPACE COMMAND_ERROR_IS_FATAL ANY)
  if(found STREQUAL "NONE")
    if(PYXLA_CUDA STREQUAL "ON")
      pyxla_fail("${op}: wrapped wheel: expected ${WRAPPED_WHEEL} ${WRAPPED_VERSION} beside ${Python3_EXECUTABLE} (PYXLA_CUDA=ON), got none"
                 "run through bin/devtool, which installs the locked wheels, or correct wheel in ${op}/wrapped.json")
    endif()
    message(STATUS "${op}: no wheel ${WRAPPED_WHEEL}, so no CUDA code")
    set(with_cuda OFF PARENT_SCOPE)
    set(architectures "" PARENT_SCOPE)
    set(wrapped "" PARENT_SCOPE)
    return()
  endif()
  list(GET found 0 version)
  list(GET found 1 headers)
  if(NOT version STREQUAL WRAPPED_VERSION)
    pyxla_fail("${op}: wrapped wheel: expected ${WRAPPED_WHEEL} ${WRAPPED_VERSION}, got ${version}"
               "install the locked wheels, or write the version that the op was tried with into ${op}/wrapped.json")
  elseif(NOT IS_DIRECTORY "${headers}")
    pyxla_fail("${op}: wrapped wheel: expected the folder ${WRAPPED_INCLUDE} in ${WRAPPED_WHEEL} ${version}, got none"
               "correct include in ${op}/wrapped.json")
  endif()
  set(wheel_headers "${headers}" PARENT_SCOPE)
endfunction()

# pyxla_wrap(<op> <wrapped.json> <digest source> <wheel_headers>): the op's library calls another one, or headers, in
# <op>/vendor/ or in a wheel.
#
# A library is copied to lib/<op>.wrapped/, where the op's library finds it by its rpath. wrapped.cmake checks it first.
function(pyxla_wrap op description digest_source wheel_headers)
  target_include_directories(${op} SYSTEM PRIVATE "${PYXLA_KERNELS_DIR}/${op}/vendor" ${wheel_headers})
  file(READ "${description}" text)
  set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS "${description}")
  string(JSON library ERROR_VARIABLE error GET "${text}" library)
  set(checked "${CMAKE_CURRENT_BINARY_DIR}/${op}_wrapped.checked")
  set(folder "${PYXLA_LIBRARY_DIR}/${op}.wrapped")
  add_custom_command(
    OUTPUT "${checked}"
    COMMAND "${CMAKE_COMMAND}" -D "OP=${op}" -D "WRAPPED=${description}" -D "NM=${CMAKE_NM}"
            -D "PROCESSOR=${CMAKE_SYSTEM_PROCESSOR}" -D "FOLDER=${folder}" -D "OUTPUT=${checked}"
            -P "${CMAKE_SOURCE_DIR}/wrapped.cmake"
    # Written anew whenever a source comes, goes or changes.
    DEPENDS "${digest_source}"
    COMMENT "Checking what ${op} wraps"
    VERBATIM)
  target_sources(${op} PRIVATE "${checked}")
  if(library AND NOT error)
    target_link_libraries(${op} PRIVATE "-L${folder}" "-l:${library}")
    # All symbols at once: one that is missing shows when the library is loaded, not at the first call.
    target_link_options(${op} PRIVATE "LINKER:-z,now" "LINKER:-rpath,$ORIGIN/${op}.wrapped")
    install(DIRECTORY "${folder}" DESTINATION "${PYXLA_PACKAGE}/${op}")
  endif()
endfunction()
