# pyxla_wrap(<op> <wrapped.json> <digest source>): the op's library calls another one, or headers, in <op>/vendor/.
#
# A library is copied to lib/<op>.wrapped/, where the op's library finds it by its rpath. wrapped.cmake checks it first.
function(pyxla_wrap op description digest_source)
  target_include_directories(${op} SYSTEM PRIVATE "${CMAKE_CURRENT_SOURCE_DIR}/${op}/vendor")
  file(READ "${description}" text)
  set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS "${description}")
  string(JSON library ERROR_VARIABLE error GET "${text}" library)
  set(checked "${CMAKE_CURRENT_BINARY_DIR}/${op}_wrapped.checked")
  set(folder "${PYXLA_LIBRARY_DIR}/${op}.wrapped")
  add_custom_command(
    OUTPUT "${checked}"
    COMMAND "${CMAKE_COMMAND}" -D "OP=${op}" -D "WRAPPED=${description}" -D "NM=${CMAKE_NM}"
            -D "PROCESSOR=${CMAKE_SYSTEM_PROCESSOR}" -D "FOLDER=${folder}" -D "OUTPUT=${checked}"
            -P "${CMAKE_CURRENT_SOURCE_DIR}/cmake/wrapped.cmake"
    # Written anew whenever a source comes, goes or changes.
    DEPENDS "${digest_source}"
    COMMENT "Checking what ${op} wraps"
    VERBATIM)
  target_sources(${op} PRIVATE "${checked}")
  if(library AND NOT error)
    target_link_libraries(${op} PRIVATE "-L${folder}" "-l:${library}")
    # All symbols at once: one that is missing shows when the library is loaded, not at the first call.
    target_link_options(${op} PRIVATE "LINKER:-z,now" "LINKER:-rpath,$ORIGIN/${op}.wrapped")
    install(DIRECTORY "${folder}" DESTINATION "pyxla_kernels/${op}")
  endif()
endfunction()
