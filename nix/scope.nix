# Everything that the flake makes for one system, from nixpkgs (or nix/host, its stand-in) and the lock of wheels.
{ pkgs }:
let
  inherit (pkgs) lib;
  version = (builtins.fromTOML (builtins.readFile ../pyproject.toml)).project.version;
  system = pkgs.stdenv.hostPlatform.system;
  python = pkgs.python312;
  wheels = import ./wheels.nix { inherit pkgs python system; };
  # torch_xla has wheels only for x86-64; kernels build without it.
  hasTorchXla = wheels.sets.cpu ? torch-xla;

  environment = import ./environment.nix { inherit pkgs python wheels; };
  packagesIn = set: builtins.attrValues wheels.sets.${set};
  tools = environment { name = "tools"; packages = packagesIn "dev"; };

  variant = { cuda }:
    let
      toolchain = import ./toolchain.nix { inherit pkgs python wheels cuda; };
      configured = import ./configured.nix { inherit pkgs toolchain; };
      triton = if cuda then import ./triton.nix { inherit pkgs python wheels; } else null;
      wrappedWheel = import ./wrapped_wheel.nix { inherit pkgs python wheels; };
      buildOp = import ./op.nix { inherit pkgs toolchain triton wrappedWheel configured version cuda; };
      packagesOf = { kernels }:
        let
          ops = lib.genAttrs (import ./ops.nix kernels) (op: buildOp { inherit op kernels; });
          release = import ./release.nix { inherit pkgs python version ops; };
        in
        ops // { default = release; };
      own = packagesOf { kernels = ../kernels; };
      release = own.default;
      device = import ./device.nix { inherit pkgs toolchain configured version; };
      wheel = import ./wheel.nix { inherit pkgs python wheels version release device; };
      set = if cuda then "cuda13" else "cpu";
      base = environment { name = "wheels-${set}"; packages = packagesIn set; };
    in
    {
      inherit toolchain packagesOf release;
      cudaOption = if cuda then "on" else "off";
      develop = environment { name = "develop-${set}"; inherit base; packages = packagesIn "dev"; };
      packages = own // {
        inherit wheel;
      } // lib.optionalAttrs hasTorchXla {
        # Python without CUDA in both variants: the pages are the same.
        docs = import ./docs.nix { inherit pkgs version; inherit (cpu) develop toolchain; };
        # pyxla itself comes as its wheel, with the libraries inside.
        python = environment { name = "python-${set}"; inherit base; packages = [ ]; extra = "${wheel}/*.whl"; };
      };
    };

  cuda = variant { cuda = true; };
  cpu = variant { cuda = false; };
  shell = import ./shell.nix { inherit pkgs; };
  formatter = import ./formatter.nix { inherit pkgs tools; };
in
{
  inherit cpu formatter;
  inherit (cuda) packages toolchain;
  packagesOf = { kernels, cuda }: (variant { inherit cuda; }).packagesOf { inherit kernels; };
  shells = lib.optionalAttrs hasTorchXla { default = shell cuda; cpu = shell cpu; };
  devtool = import ./devtool.nix { inherit pkgs; };
  checks = import ./checks.nix { inherit pkgs formatter cpu hasTorchXla; inherit (cuda) packages release; };
}
