# Builds targets of pyxla/cmake/CMakeLists.txt in a derivation.
{ lib, compile, python, toolchain, cuda, version }:
let
  filtered = import ./filtered.nix;
  # The description of the build and the headers that any op includes: of the package pyxla nothing else.
  recipe = filtered {
    path = ../pyxla;
    files = "cmake/[^/]+|include/.*\\.(h|cuh)";
    folders = "cmake|include(/.*)?";
  };
  cmake = "cmake -G Ninja -DCMAKE_BUILD_TYPE=Release -DPYXLA_CUDA=${if cuda then "ON" else "OFF"} "
    + "-DPython3_EXECUTABLE=${python.interpreter} -DPYXLA_KERNELS=kernels -B build";
  # CMake's findings about the compilers, made once, because each op would spend 3 s on them. The lines that name this
  # build folder or belong to the project are removed, so that another build folder can use the rest.
  configured = compile {
    name = "pyxla-configured";
    nativeBuildInputs = [ toolchain ];
    PYTHONPATH = "${toolchain}/site";
    buildPhase = ''
      mkdir kernels
      ${cmake} -S ${filtered { path = ../pyxla; files = "cmake/[^/]+"; folders = "cmake"; }}/cmake
    '';
    installPhase = ''
      mkdir -p $out/CMakeFiles
      cp -r build/CMakeFiles/[0-9]* $out/CMakeFiles/
      grep -vE '^(CMAKE_HOME_DIRECTORY|CMAKE_CACHEFILE_DIR|PYXLA_.*|pyxla_kernels_.*):|^//|^#' build/CMakeCache.txt \
        > $out/CMakeCache.txt
    '';
  };
in
# sources: folder -> what is copied there; sites: folders that CMake finds wheels in; options: of CMake.
{ pname, sources, targets, sites ? [ ], options ? "", installPhase, meta ? { } }:
compile {
  inherit pname version installPhase meta;
  nativeBuildInputs = [ toolchain ];
  PYTHONPATH = lib.concatMapStringsSep ":" (site: "${site}/site") ([ toolchain ] ++ sites);
  buildPhase = ''
    mkdir kernels
    cp -r --no-preserve=mode ${recipe} pyxla
    ${lib.concatMapStringsSep "\n" (folder: "mkdir -p ${folder}; cp -r --no-preserve=mode ${sources.${folder}}/. ${folder}")
      (builtins.attrNames sources)}
    cp -r --no-preserve=mode ${configured} build
    ${cmake} ${options} -S pyxla/cmake
    cmake --build build --target ${toString targets}
  '';
}
