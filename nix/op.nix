# One folder of an op, or of an implementation of one -> $out/lib/lib<op>.so and its manifest, by
# kernels/CMakeLists.txt.
{ pkgs, toolchain, triton, wrappedWheel, configured, version, cuda }:
{ op, kernels }:
let
  inherit (pkgs) lib;
  folder = kernels + "/${op}";
  # Separate paths: only the op's compiled files and the recipe enter the hash, so editing one op rebuilds only that.
  sourceOf = name: compiled: builtins.path {
    inherit name;
    path = kernels + "/${name}";
    filter = path: type:
      let relative = builtins.replaceStrings [ "${toString (kernels + "/${name}")}/" ] [ "" ] path; in
      builtins.match compiled relative != null
      || type == "directory" && builtins.match "(.*/)?__pycache__" relative == null;
  };
  source = sourceOf op ".*\\.(h|cuh|cc|cu)|triton_kernels\\.py|wrapped\\.json|implements|vendor(/.*)?";
  # The op whose host code is compiled into an implementation's library.
  implements = folder + "/implements";
  implemented = lib.optionals (builtins.pathExists implements)
    (builtins.match "([a-z0-9_]+)[[:space:]]*" (builtins.readFile implements));
  isTriton = builtins.pathExists (folder + "/triton_kernels.py");
  description = folder + "/wrapped.json";
  wrapped = if builtins.pathExists description then builtins.fromJSON (builtins.readFile description) else { };
  # Only CUDA code includes the wheel's headers.
  headers = if cuda && wrapped ? wheel then wrappedWheel wrapped.wheel else null;
  sites = lib.optionals (isTriton && triton != null) [ triton ] ++ lib.optionals (headers != null) [ headers ];
in
pkgs.gcc12Stdenv.mkDerivation {
  pname = "pyxla-${op}" + pkgs.lib.optionalString (!cuda) "-cpu";
  inherit version;
  dontUnpack = true;
  # What CMake wrote is the artefact: no stripping, no patching, the same bytes as `devtool build` writes.
  dontFixup = true;
  nativeBuildInputs = [ toolchain ];
  # Otherwise nixpkgs' linker would write its own folders into the library.
  NIX_DONT_SET_RPATH = "1";
  PYTHONPATH = lib.concatMapStringsSep ":" (site: "${site}/site") ([ toolchain ] ++ sites);

  buildPhase = ''
    cp -r --no-preserve=mode ${import ./recipe.nix} kernels
    cp -r --no-preserve=mode ${source} kernels/${op}
    ${lib.concatMapStringsSep "\n" (name:
      "cp -r --no-preserve=mode ${sourceOf name ".*\\.(h|cuh|cc)"} kernels/${name}") implemented}
    cp -r --no-preserve=mode ${configured} build
    cmake ${toolchain.cmakeFlags} ${lib.optionalString (isTriton && triton == null) "-DPYXLA_CUDA=OFF"} -S kernels -B build
    cmake --build build --target ${op}
  '';
  installPhase = ''
    mkdir -p $out/lib
    cp build/lib/lib${op}.so build/lib/lib${op}.json $out/lib/
    if [ -d build/lib/${op}.wrapped ]; then cp -r build/lib/${op}.wrapped $out/lib/; fi
  '';

  meta = {
    description = "The custom-call library of ${op}";
    license = pkgs.lib.licenses.asl20;
    platforms = [ "x86_64-linux" "aarch64-linux" ];
  };
}
