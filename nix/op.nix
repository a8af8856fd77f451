# One op folder -> $out/lib/lib<op>.so and its manifest, by kernels/CMakeLists.txt.
{ pkgs, toolchain, configured, version, cuda }:
{ op, kernels }:
let
  # Paths of their own: only the op's C++ and CUDA and the recipe enter the hash. Editing one op rebuilds that one.
  source = builtins.path {
    name = op;
    path = kernels + "/${op}";
    filter = path: type: type == "regular" && builtins.match ".*\\.(h|cuh|cc|cu)" path != null;
  };
in
pkgs.gcc12Stdenv.mkDerivation {
  pname = "pyxla-${op}" + pkgs.lib.optionalString (!cuda) "-cpu";
  inherit version;
  dontUnpack = true;
  # What CMake wrote is the artefact: no stripping, no patching, the same bytes as `devtool build` writes.
  dontFixup = true;
  nativeBuildInputs = [ toolchain ];
  # nixpkgs' linker would write its own folders into the library.
  NIX_DONT_SET_RPATH = "1";
  PYTHONPATH = "${toolchain}/site";

  buildPhase = ''
    cp -r --no-preserve=mode ${import ./recipe.nix} kernels
    cp -r --no-preserve=mode ${source} kernels/${op}
    cp -r --no-preserve=mode ${configured} build
    cmake ${toolchain.cmakeFlags} -S kernels -B build
    cmake --build build
  '';
  installPhase = ''
    mkdir -p $out/lib
    cp build/lib/lib${op}.so build/lib/lib${op}.json $out/lib/
  '';

  meta = {
    description = "The custom-call library of ${op}";
    license = pkgs.lib.licenses.asl20;
    platforms = [ "x86_64-linux" "aarch64-linux" ];
  };
}
