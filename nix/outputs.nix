# The flake's outputs. What they hold is made in scope.nix, once per system.
{ self, nixpkgs, ... }:
let
  inherit (nixpkgs) lib;
  systems = [ "x86_64-linux" "aarch64-linux" ];
  overlay = final: prev: { pyxla = import ./scope.nix { pkgs = final; }; };
  # nixpkgs is evaluated once per system, and every output uses the result.
  scopes = lib.genAttrs systems (system: (import nixpkgs {
    inherit system;
    overlays = [ overlay ];
    config.allowUnfree = true; # the CUDA compiler's wheels
  }).pyxla);
  perSystem = f: lib.genAttrs systems (system: f scopes.${system});
in
{
  packages = perSystem (scope: scope.packages);
  # The same packages without CUDA code: nix build .#cpu.rms_norm; and the tool chain that builds the ops.
  legacyPackages = perSystem (scope: { inherit (scope) toolchain; cpu = scope.cpu.packages // { inherit (scope.cpu) toolchain; }; });
  devShells = perSystem (scope: scope.shells);
  checks = perSystem (scope: scope.checks);
  apps = perSystem (scope: rec {
    devtool = { type = "app"; program = "${scope.devtool}/bin/devtool"; };
    default = devtool;
  });
  formatter = perSystem (scope: scope.formatter);

  overlays.default = overlay;
  templates = rec {
    kernel = { path = ../templates/kernel; description = "A repository of kernels of your own, built by pyxla"; };
    default = kernel;
  };
  lib = {
    # Called by that template: the packages of the op folders in `kernels`.
    kernelPackages = { system, kernels, cuda ? true }:
      (scopes.${system} or (throw "flake: system: expected one of ${toString systems}, got ${system}")).packagesOf {
        inherit kernels cuda;
      };
  };

  # hydraJobs.<kind>.<name>.<system>
  hydraJobs = lib.genAttrs [ "packages" "checks" ] (kind:
    lib.genAttrs (builtins.attrNames self.${kind}.x86_64-linux) (name:
      builtins.listToAttrs (map (system: { name = system; value = self.${kind}.${system}.${name}; })
        (builtins.filter (system: self.${kind}.${system} ? ${name}) systems))));
}
