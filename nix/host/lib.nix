# The names of nixpkgs.lib that nix/*.nix use, with the same arguments and results. surface.json lists them; a test
# compares that list with nix/*.nix, with this file and with all names of the real one (nixpkgs-lib.txt, of 2025-06-10).
rec {
  trivial.version = "nix/host";
  genAttrs = names: f: builtins.listToAttrs (map (name: { inherit name; value = f name; }) names);
  optionals = condition: values: if condition then values else [ ];
  optionalAttrs = condition: set: if condition then set else { };
  optionalString = condition: text: if condition then text else "";
  concatMapStringsSep = separator: f: values: builtins.concatStringsSep separator (map f values);
  getLib = package: package.lib or package.out or package;
  licenses.asl20 = { spdxId = "Apache-2.0"; free = true; };
}
