# What CMake finds out about the compilers, once: 3 s that every op would pay again. It moves to another build folder
# without the lines that name this one or belong to the build of our own.
{ pkgs, toolchain }:
let
  description = builtins.path {
    name = "pyxla-build-description";
    path = ../kernels;
    filter = path: type: builtins.elem (baseNameOf path) [ "CMakeLists.txt" "cmake" ]
      || baseNameOf (dirOf path) == "cmake" && type == "regular";
  };
in
pkgs.gcc12Stdenv.mkDerivation {
  name = "pyxla-configured";
  dontUnpack = true;
  dontFixup = true;
  nativeBuildInputs = [ toolchain ];
  PYTHONPATH = "${toolchain}/site";
  buildPhase = "cmake ${toolchain.cmakeFlags} -S ${description} -B build";
  installPhase = ''
    mkdir -p $out/CMakeFiles
    cp -r build/CMakeFiles/[0-9]* $out/CMakeFiles/
    grep -vE '^(CMAKE_HOME_DIRECTORY|CMAKE_CACHEFILE_DIR|PYXLA_.*|pyxla_kernels_.*):|^//|^#' build/CMakeCache.txt \
      > $out/CMakeCache.txt
  '';
}
