# Everything that the flake makes for one system, from nixpkgs (or nix/host, its stand-in) and the lock of wheels.
{ pkgs, revision ? "unknown" }:
let
  inherit (pkgs) lib;
  version = (builtins.fromTOML (builtins.readFile ../pyproject.toml)).project.version;
  python = pkgs.python312;
  # GCC 12, as in Debian 12: a newer one would need a libstdc++ that Ubuntu 22.04 does not have. From nixos-25.11 on
  # nixpkgs does without it: then the oldest that it has.
  compilers = map (name: builtins.tryEval (pkgs.${name} or (throw name))) [ "gcc12Stdenv" "gcc13Stdenv" "gcc14Stdenv" "stdenv" ];
  stdenv = (builtins.head (builtins.filter (compiler: compiler.success) compilers)).value;
  wheels = import ./wheels.nix { inherit pkgs stdenv python; };
  # torch_xla has wheels only for x86-64; kernels build without it.
  hasTorchXla = wheels.sets.cpu ? torch-xla;

  # A derivation whose compilers write what they write outside Nix. Otherwise nixpkgs' would add folders of the store to
  # a library, and flags that its manifest does not name.
  compile = attributes: stdenv.mkDerivation ({
    dontUnpack = true;
    dontFixup = true; # no stripping, no patching
    NIX_DONT_SET_RPATH = "1"; # the folders of libraries
    NIX_NO_SELF_RPATH = "1"; # $out/lib
    hardeningDisable = [ "all" ];
    NIX_CFLAGS_COMPILE = "-fomit-frame-pointer -momit-leaf-frame-pointer"; # nixos-25.11 turns it off
    PYXLA_NIXPKGS_BUILD = "${lib.trivial.version or "unnumbered"} ${revision}"; # for the manifest
  } // attributes);

  variant = cuda:
    let
      set = if cuda then "cuda13" else "cpu";
      toolchain = import ./toolchain.nix { inherit pkgs python wheels cuda; };
      build = import ./build.nix { inherit lib compile python toolchain cuda version; };
      buildOps = import ./ops.nix { inherit lib wheels build cuda; };
      kernelPackages = kernels: namespace:
        let ops = buildOps { inherit kernels namespace; }; in ops // { default = import ./release.nix { inherit pkgs python version ops; }; };
      own = kernelPackages ../kernels "xla_gpu";
      wheel = import ./wheel.nix { inherit pkgs python wheels version build; release = own.default; };
      shellWith = environment: import ./shell.nix { inherit lib compile cuda toolchain environment; };
      # The environments with one release of torch; libraries and pyxla's wheel are the same for all.
      forRelease = release:
        let
          name = set + release;
          base = wheels.environment { name = "wheels-${name}"; packages = wheels.sets.${name}; };
          develop = wheels.environment { name = "develop-${name}"; inherit base; packages = wheels.sets.dev; };
        in
        {
          inherit develop;
          checkout = import ./checkout.nix (shellWith develop);
          python = wheels.environment { name = "python-${name}"; inherit base; own = [ "${wheel}/*.whl" ]; };
        };
      current = forRelease "";
      torch28 = forRelease "-torch2.8";
      # devtool and pyxla from the wheel.
      installed = wheels.environment { name = "devtool-${set}"; base = current.develop; own = [ "${wheel}/*.whl" ]; };
      repository = import ./repository.nix {
        inherit kernelPackages;
        shell = shellWith installed;
        pyxla = "${installed}/${wheels.folder}/pyxla";
      };
    in
    {
      inherit toolchain kernelPackages repository torch28;
      inherit (current) checkout;
      packages = own // { inherit wheel; } // lib.optionalAttrs hasTorchXla {
        # The pages are the same in both variants.
        docs = cpu.checkout.run "docs" "devtool docs --output $out";
        inherit (current) python;
      };
    };
  cuda = variant true;
  cpu = variant false;
  # The tests of a repository run without a GPU, on ops without CUDA code.
  repository = root:
    let withCuda = cuda.repository root; withoutCuda = cpu.repository root; in {
      inherit (withCuda) packages;
      shells = lib.optionalAttrs hasTorchXla { default = withCuda.shell; cpu = withoutCuda.shell; };
      checks = lib.optionalAttrs hasTorchXla { inherit (withoutCuda) tests; };
    };
  formatter = import ./formatter.nix {
    inherit pkgs;
    tools = wheels.environment { name = "tools"; packages = wheels.sets.dev; };
  };
in
{
  inherit formatter;
  inherit (cuda) packages toolchain;
  cpu = cpu.packages // { inherit (cpu) toolchain; };
  # With torch 2.8: nix build .#torch28.python, .#torch28.cpu.python, and its shells.
  torch28 = lib.optionalAttrs hasTorchXla { inherit (cuda.torch28) python; cpu = { inherit (cpu.torch28) python; }; };
  shells = lib.optionalAttrs hasTorchXla {
    default = cuda.checkout.develop;
    cpu = cpu.checkout.develop;
    torch28 = cuda.torch28.checkout.develop;
    cpu-torch28 = cpu.torch28.checkout.develop;
  };
  devtool = pkgs.writeShellScriptBin "devtool" ''
    root=$(git rev-parse --show-toplevel 2>/dev/null || pwd)
    [ -x "$root/bin/devtool" ] || {
      echo "devtool: checkout: expected bin/devtool in $root, got none" >&2
      printf '\nhint: cd into a checkout of pyxla\n' >&2
      exit 1
    }
    exec "$root/bin/devtool" nix develop -c devtool "$@"
  '';
  kernelPackages = { kernels, cuda, namespace }: (variant cuda).kernelPackages kernels namespace;
  inherit repository;
  checks = {
    format = pkgs.runCommand "pyxla-check-format" { } ''
      cp -r --no-preserve=mode ${cpu.checkout.source} checkout
      cd checkout
      ${formatter}/bin/pyxla-format --check
      touch $out
    '';
  } // lib.optionalAttrs hasTorchXla {
    inherit (cuda.packages) docs;
    # Every library loads, its table is what its manifest says, and it needs nothing but glibc, libstdc++ and the driver.
    libraries = cpu.checkout.run "libraries" "devtool verify ${cuda.packages.default}/lib | tee $out";
    # The ops' tests, on the libraries that Nix built; `devtool test --all` runs the slow ones too.
    tests = cpu.checkout.run "tests" ''
      mkdir -p build/lib
      cp ${cpu.packages.default}/lib/lib* build/lib/
      python3 -P -m pytest -p pyxla.pytest_plugin -p devtool.testing.pytest_outcomes --without-slow -q kernels
      touch $out
    '';
    # `.#python` calls an op of its own and opens cuDNN.
    python = pkgs.runCommand "pyxla-check-python" { } ''
      HOME=$PWD ${cpu.packages.python}/bin/python ${./check_python.py} | tee $out
    '';
    # The template's tests, with devtool and pyxla from the wheel.
    template = (cpu.repository ../templates/kernel).tests;
    # What `devtool new-op` writes builds and passes.
    scaffold = cpu.checkout.run "scaffold" ''
      devtool new-op check_scaffold "(Tensor x, Tensor? weight, float scale=1.0) -> Tensor"
      devtool new-op check_triton --route triton
      echo 'void wrapped(void) {}' | gcc -shared -fPIC -x c - -o libwrapped.so
      devtool new-op check_wrap --route wrap --library libwrapped.so --symbol wrapped --version 1 --licence MIT
      devtool test check_scaffold check_triton check_wrap
      touch $out
    '';
  };
}
