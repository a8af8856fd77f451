# What a kernel is built with, from the locked wheels: CMake, ninja, XLA's FFI headers and, with CUDA, nvcc. The same
# bytes as in the .venv of someone without Nix.
{ pkgs, python, wheels, cuda }:
let
  inherit (pkgs) lib;
  inherit (wheels.sets) cuda13 dev;
  tools = [ dev.cmake dev.ninja ] ++ lib.optionals cuda [
    cuda13.nvidia-cuda-nvcc cuda13.nvidia-nvvm cuda13.nvidia-cuda-crt cuda13.nvidia-cuda-runtime cuda13.nvidia-cuda-cccl
  ];
in
wheels.installed {
  name = "pyxla-toolchain" + lib.optionalString (!cuda) "-cpu";
  # bin/ has the commands; site/ is for PYTHONPATH, where pyxla/cmake/find_wheels.py finds the headers and nvcc.
  installPhase = ''
    ${wheels.install "install --target $out/site" tools [ ]}
    mkdir $out/bin
    mv $out/site/bin/ninja $out/bin/
    rm -r $out/site/bin
    ln -s $out/site/cmake/data/bin/cmake $out/bin/cmake
    ${lib.optionalString cuda "ln -s $out/site/nvidia/cu13/bin/nvcc $out/bin/nvcc"}
    ${python.interpreter} -I - ${cuda13.jaxlib.path} $out/site <<'EOF'
    import sys, zipfile
    with zipfile.ZipFile(sys.argv[1]) as wheel:
        wheel.extractall(sys.argv[2], [n for n in wheel.namelist() if n.startswith("jaxlib/include/xla/ffi/api/")])
    EOF
  '';
}
