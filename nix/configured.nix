# CMake's findings about the compilers, made once, because each op would spend 3 s on them. The lines that name this
# build folder or belong to the project are removed, so that another build folder can use the rest.
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
