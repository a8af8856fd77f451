# What a kernel is built with, from the locked wheels: CMake, ninja, XLA's FFI headers and, with CUDA, nvcc. The same
# bytes as in the .venv of someone without Nix. The C++ compiler is nixpkgs' GCC 12, as in Debian 12: a newer one
# would need a libstdc++ that Ubuntu 22.04 does not have.
{ pkgs, python, wheels, cuda }:
let
  inherit (pkgs) lib;
  inherit (wheels.sets) cuda13 dev;
  tools = [ dev.cmake dev.ninja ] ++ lib.optionals cuda [
    cuda13.nvidia-cuda-nvcc cuda13.nvidia-nvvm cuda13.nvidia-cuda-crt cuda13.nvidia-cuda-runtime cuda13.nvidia-cuda-cccl
  ];
  cmakeFlags = toString [
    "-G Ninja"
    "-DCMAKE_BUILD_TYPE=Release"
    "-DPYXLA_CUDA=${if cuda then "ON" else "OFF"}"
    "-DPython3_EXECUTABLE=${python.interpreter}"
  ];
in
pkgs.gcc12Stdenv.mkDerivation {
  name = "pyxla-toolchain" + lib.optionalString (!cuda) "-cpu";
  dontUnpack = true;
  dontStrip = true;
  nativeBuildInputs = [ python pkgs.autoPatchelfHook ];
  buildInputs = [ (lib.getLib pkgs.gcc12Stdenv.cc.cc) ];

  # bin/ has the commands; site/ is for PYTHONPATH, where kernels/cmake/find_wheels.py finds the headers and nvcc.
  installPhase = ''
    ${wheels.link ([ dev.pip cuda13.jaxlib ] ++ tools)}
    mkdir -p $out/site $out/bin
    ${wheels.pip} install --quiet --no-index --no-deps --no-compile --no-warn-script-location \
      --disable-pip-version-check --root-user-action ignore --target $out/site \
      ${lib.concatMapStringsSep " " (wheel: "$wheels/${wheel.file}") tools}
    mv $out/site/bin/ninja $out/bin/
    rm -r $out/site/bin
    ln -s $out/site/cmake/data/bin/cmake $out/bin/cmake
    ${python.interpreter} -I - $wheels/${cuda13.jaxlib.file} $out/site <<'EOF'
    import sys, zipfile
    with zipfile.ZipFile(sys.argv[1]) as wheel:
        wheel.extractall(sys.argv[2], [n for n in wheel.namelist() if n.startswith("jaxlib/include/xla/ffi/api/")])
    EOF
    ${lib.optionalString cuda "ln -s $out/site/nvidia/cu13/bin/nvcc $out/bin/nvcc"}
  '';

  passthru = { inherit cmakeFlags; };
}
