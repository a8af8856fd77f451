# How an op is built, without the ops: kernels/CMakeLists.txt, cmake/ and the C++ and CUDA of common/.
builtins.path {
  name = "pyxla-recipe";
  path = ../kernels;
  filter = path: type:
    let relative = builtins.replaceStrings [ "${toString ../kernels}/" ] [ "" ] path; in
    builtins.match "CMakeLists\\.txt|cmake|common|(cmake|common)/[^/]+" relative != null
    && builtins.match "common/(.*\\.py|__pycache__)|cmake/__pycache__" relative == null;
}
