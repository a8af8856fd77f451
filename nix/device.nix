# What the CUDA device needs in addition to the vendor's plugin: $out/lib/pyxla_pjrt_proxy.so and pyxla_set_device.so.
{ pkgs, toolchain, configured, version }:
let
  source = builtins.path {
    name = "pyxla-device";
    path = ../pyxla;
    filter = path: type:
      type == "directory" && builtins.elem (baseNameOf path) [ "pjrt_proxy" "torch_backend" ]
      || builtins.match ".*/(pjrt_proxy|torch_backend)/[^/]*\\.(cc|h|txt|map)" path != null;
  };
in
pkgs.gcc12Stdenv.mkDerivation {
  pname = "pyxla-device";
  inherit version;
  dontUnpack = true;
  dontFixup = true;
  nativeBuildInputs = [ toolchain ];
  NIX_DONT_SET_RPATH = "1";
  PYTHONPATH = "${toolchain}/site";
  buildPhase = ''
    cp -r --no-preserve=mode ${import ./recipe.nix} kernels
    cp -r --no-preserve=mode ${source} pyxla
    cp -r --no-preserve=mode ${configured} build
    cmake ${toolchain.cmakeFlags} -S kernels -B build
    cmake --build build --target pjrt_proxy set_device
  '';
  installPhase = "mkdir -p $out/lib; cp build/lib/pyxla_*.so $out/lib/";
}
