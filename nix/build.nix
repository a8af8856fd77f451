# Builds targets of kernels/CMakeLists.txt in a derivation.
{ lib, compile, python, toolchain, cuda, version }:
let
  filtered = import ./filtered.nix;
  # The description of the build and the C++ and CUDA that ops share, without the ops.
  recipe = filtered {
    path = ../kernels;
    files = "CMakeLists\\.txt|cmake/[^/]+|(common|_[a-z][^/]*)/.*\\.(h|cuh)";
    folders = "cmake|(common|_[a-z][^/]*)(/.*)?";
  };
  cmake = "cmake -G Ninja -DCMAKE_BUILD_TYPE=Release -DPYXLA_CUDA=${if cuda then "ON" else "OFF"} "
    + "-DPython3_EXECUTABLE=${python.interpreter} -B build";
  # CMake's findings about the compilers, made once, because each op would spend 3 s on them. The lines that name this
  # build folder or belong to the project are removed, so that another build folder can use the rest.
  configured = compile {
    name = "pyxla-configured";
    nativeBuildInputs = [ toolchain ];
    PYTHONPATH = "${toolchain}/site";
    buildPhase = "${cmake} -S ${filtered { path = ../kernels; files = "CMakeLists\\.txt|cmake/[^/]+"; folders = "cmake"; }}";
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
    cp -r --no-preserve=mode ${recipe} kernels
    ${lib.concatMapStringsSep "\n" (folder: "cp -r --no-preserve=mode ${sources.${folder}} ${folder}")
      (builtins.attrNames sources)}
    cp -r --no-preserve=mode ${configured} build
    ${cmake} ${options} -S kernels
    cmake --build build --target ${toString targets}
  '';
}
