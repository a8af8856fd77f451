# { kernels, namespace } -> { <op> = <derivation>; }: each folder of `kernels` that holds code becomes $out/lib/lib<op>.so and
# its manifest. An invalid name is an error, and so is code without the file that registers the op or names the op that it
# implements.
{ lib, wheels, build, cuda }:
{ kernels, namespace }:
let
  filtered = import ./filtered.nix;
  entries = builtins.readDir kernels;
  # Names of the flake's other packages.
  reserved = [ "default" "docs" "python" "wheel" "toolchain" ];
  # A folder with an underscore holds headers and Python that several ops share.
  code = folder: if builtins.match "_.*" folder == null then ".*\\.(h|cuh|cc|cu|py)" else ".*\\.(cc|cu)";
  holdsCode = folder: builtins.any (file: builtins.match (code folder) file != null)
    (builtins.attrNames (builtins.readDir (kernels + "/${folder}")));
  folders = builtins.filter (name: entries.${name} == "directory" && holdsCode name)
    (builtins.attrNames entries);
  check = name:
    if builtins.elem name reserved || builtins.match "[a-z][a-z0-9_]*" name == null then
      throw ''
        flake: kernels/${name}: expected a name of lower-case letters, digits and _ that is none of ${toString reserved}, got it

        hint: git mv kernels/${name} kernels/<another name>''
    else if ! builtins.any (file: builtins.pathExists (kernels + "/${name}/${file}")) [ "${name}_ffi.cc" "implements" ] then
      throw ''
        flake: kernels/${name}: expected ${name}_ffi.cc, which registers the op, got none

        hint: devtool new-op ${name} writes one; a file that git does not know is not seen: git add -N kernels/${name}''
    else name;
  # Only the compiled files of the op enter the hash, so editing one op rebuilds only that.
  source = op: files: { "kernels/${op}" = filtered { path = kernels + "/${op}"; name = op; inherit files; }; };
  # The headers that the ops of these folders share.
  families = filtered {
    path = kernels;
    name = "pyxla-families";
    files = "_[a-z][^/]*/.*\\.(h|cuh)";
    folders = "_[a-z][^/]*(/.*)?";
  };
  wheelNamed = name: (wheels.sets.cuda13 // wheels.sets.dev).${name} or null;

  buildOp = op:
    let
      inFolder = file: kernels + "/${op}/${file}";
      has = file: builtins.pathExists (inFolder file);
      # The op whose host code is compiled into an implementation's library.
      implemented = builtins.match "([a-z0-9_]+)[[:space:]]*" (builtins.readFile (inFolder "implements"));
      wrapped = builtins.fromJSON (builtins.readFile (inFolder "wrapped.json"));
      # Wheels that only some ops are built with; CMake says what it looked for if the lock lacks one.
      needed = lib.optionals cuda (lib.optionals (has "triton_kernels.py") [ "triton" ]
        ++ lib.optionals (has "wrapped.json" && wrapped ? wheel) [ wrapped.wheel ]);
      found = builtins.filter (name: wheelNamed name != null) needed;
    in
    build {
      pname = "pyxla-${op}" + lib.optionalString (!cuda) "-cpu";
      sources = { kernels = families; } // source op ".*\\.(h|cuh|cc|cu)|triton_kernels\\.py|wrapped\\.json|implements|vendor/.*"
        // lib.optionalAttrs (has "implements") (source (builtins.head implemented) ".*\\.(h|cuh|cc)");
      targets = [ op ];
      sites = map (name: wheels.site name [ (wheelNamed name) ]) found;
      # Without Triton such an op has no CUDA code.
      options = "-DPYXLA_NAMESPACE=${namespace} " + lib.optionalString (builtins.elem "triton" needed && wheelNamed "triton" == null) "-DPYXLA_CUDA=OFF";
      installPhase = ''
        mkdir -p $out/lib
        cp -r build/lib/lib${op}.so build/lib/lib${op}.json $out/lib/
        if [ -d build/lib/${op}.wrapped ]; then cp -r build/lib/${op}.wrapped $out/lib/; fi
      '';
      meta = {
        description = "The custom-call library of ${op}";
        license = lib.licenses.asl20;
        platforms = [ "x86_64-linux" "aarch64-linux" ];
      };
    };
in
lib.genAttrs (map check folders) buildOp
