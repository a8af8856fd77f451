{
  description = "Write a GPU kernel and use it from PyTorch through XLA: one custom-call library per folder of kernels/";

  inputs.nixpkgs.url = "github:NixOS/nixpkgs/nixos-25.05";

  outputs = { self, nixpkgs }:
    let
      systems = builtins.filter (system: nixpkgs.legacyPackages ? ${system}) [ "x86_64-linux" "aarch64-linux" ];
      # nixpkgs is evaluated once per system, and every output uses the result.
      scopes = nixpkgs.lib.genAttrs systems (system: import ./nix {
        pkgs = nixpkgs.legacyPackages.${system};
        revision = nixpkgs.rev or nixpkgs.narHash;
      });
      eachSystem = output: builtins.mapAttrs (_: output) scopes;
      scopeOf = system: scopes.${system}
        or (throw "flake: system: expected one of ${toString systems}, got ${system}");
    in
    {
      packages = eachSystem (scope: scope.packages);
      # The same packages without CUDA code: nix build .#cpu.rms_norm; Python with torch 2.8; the tool chain of the ops.
      legacyPackages = eachSystem (scope: { inherit (scope) cpu torch28 toolchain; });
      devShells = eachSystem (scope: scope.shells);
      checks = eachSystem (scope: scope.checks);
      apps = eachSystem (scope: rec { default = devtool; devtool = { type = "app"; program = "${scope.devtool}/bin/devtool"; }; });
      formatter = eachSystem (scope: scope.formatter);
      hydraJobs = { inherit (self) packages checks; };

      overlays.default = final: prev: { pyxla = import ./nix { pkgs = final; }; };
      templates = rec {
        default = kernel;
        kernel = { path = ./templates/kernel; description = "A repository of kernels of your own, as devtool init writes it"; };
      };
      lib = {
        # The outputs of the flake of a repository of kernels, which the template calls: repository ./.
        repository = root:
          let repositories = eachSystem (scope: scope.repository root); output = name: builtins.mapAttrs (_: r: r.${name}) repositories; in
          { packages = output "packages"; checks = output "checks"; devShells = output "shells"; inherit (self) formatter; };
        # The packages of op folders that are in no such repository.
        kernelPackages = { system, kernels, cuda ? true, namespace ? "xla_gpu" }:
          (scopeOf system).kernelPackages { inherit kernels cuda namespace; };
      };
    };
}
