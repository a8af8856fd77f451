{
  description = "Stand-in for nixpkgs on a machine with a tool chain under /usr and no way to fetch nixpkgs";

  # The outputs of nixpkgs' own flake that pyxla's flake reads. `devtool nix` uses it as
  #   --override-input nixpkgs path:nix/host
  outputs = { self }:
    let lib = import ./lib.nix; in
    {
      inherit lib;
      legacyPackages = lib.genAttrs [ "x86_64-linux" "aarch64-linux" ] (system: import ./. { inherit system; });
    };
}
