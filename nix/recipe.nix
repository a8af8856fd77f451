# How an op is built, without the ops: kernels/CMakeLists.txt, cmake/ and common/.
builtins.path {
  name = "pyxla-recipe";
  path = ../kernels;
  filter = path: type:
    let relative = builtins.replaceStrings [ "${toString ../kernels}/" ] [ "" ] path; in
    builtins.match "CMakeLists\\.txt|cmake|common|(cmake|common)/[^/]+" relative != null
    && baseNameOf path != "__pycache__";
}
