# Checks what an op wraps, as its wrapped.json describes it, and copies the library to where the op's library finds it.
#
# cmake -D OP=<op> -D WRAPPED=<wrapped.json> -D NM=<nm> -D PROCESSOR=<x86_64> -D FOLDER=<for the copy> -D OUTPUT=<file>
#       -P wrapped.cmake
cmake_minimum_required(VERSION 3.24)
include("${CMAKE_CURRENT_LIST_DIR}/fail.cmake")
include("${CMAKE_CURRENT_LIST_DIR}/wrapped_fields.cmake")
set(hint "correct ${OP}/wrapped.json, or the files in ${OP}/vendor")

pyxla_read_wrapped("${OP}" "${WRAPPED}")
file(REMOVE_RECURSE "${FOLDER}")
if(WRAPPED_LIBRARY)
  if(NOT EXISTS "${WRAPPED_FILE}")
    pyxla_fail("${OP}: wrapped library: expected ${OP}/vendor/${WRAPPED_LIBRARY}, got none" "${hint}")
  endif()
  # The ELF header: magic, 64 bits, little endian; at 18 the machine.
  file(READ "${WRAPPED_FILE}" elf LIMIT 20 HEX)
  set(x86_64 3e00)
  set(aarch64 b700)
  if(NOT elf MATCHES "^7f454c460201")
    pyxla_fail("${OP}: wrapped library: expected a 64-bit ELF library, got another file at ${OP}/vendor/${WRAPPED_LIBRARY}"
               "${hint}")
  elseif(DEFINED ${PROCESSOR} AND NOT elf MATCHES "${${PROCESSOR}}$")
    string(SUBSTRING "${elf}" 36 2 machine)
    math(EXPR machine "0x${machine}")
    pyxla_fail("${OP}: wrapped library: expected code for ${PROCESSOR}, got ELF machine ${machine} in ${WRAPPED_LIBRARY}"
               "take the library that was built for this machine")
  endif()
  execute_process(COMMAND "${NM}" --dynamic --defined-only --format=posix "${WRAPPED_FILE}"
                  OUTPUT_VARIABLE exported COMMAND_ERROR_IS_FATAL ANY)
  string(REGEX REPLACE "@[^ ]*" "" exported "\n${exported}")
  foreach(symbol IN LISTS WRAPPED_SYMBOLS)
    string(FIND "${exported}" "\n${symbol} " at)
    if(at EQUAL -1)
      pyxla_fail("${OP}: wrapped library: expected the symbol ${symbol}, got none in ${WRAPPED_LIBRARY} ${WRAPPED_VERSION}"
                 "take a version of ${WRAPPED_NAME} that has it, or correct symbols in ${OP}/wrapped.json")
    endif()
  endforeach()
  file(COPY "${WRAPPED_FILE}" DESTINATION "${FOLDER}" FOLLOW_SYMLINK_CHAIN)
endif()
file(WRITE "${OUTPUT}" "")
