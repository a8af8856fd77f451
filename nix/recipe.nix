# How an op is built, without the ops: kernels/CMakeLists.txt, cmake/ and the C++ and CUDA that ops share.
builtins.path {
  name = "pyxla-recipe";
  path = ../kernels;
  filter = path: type:
    let relative = builtins.replaceStrings [ "${toString ../kernels}/" ] [ "" ] path; in
    builtins.match "CMakeLists\\.txt|cmake(/[^/]+)?|(common|_[a-z][^/]*)(/.*)?" relative != null
    && builtins.match "(common|_[^/]*)/.*\\.py|(.*/)?__pycache__(/.*)?" relative == null;
}
