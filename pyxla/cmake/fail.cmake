# pyxla_fail(<message> <hint>): ends the build with an error in the project's one form.
function(pyxla_fail message hint)
  # A line that begins with a space keeps its form; CMake would fill the others anew.
  message(FATAL_ERROR " ${message}\n \n hint: ${hint}")
endfunction()
