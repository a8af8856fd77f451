{
  description = "Write a GPU kernel and use it from PyTorch through XLA: one custom-call library per folder of kernels/";

  inputs.nixpkgs.url = "github:NixOS/nixpkgs/nixos-25.05";

  outputs = inputs: import ./nix/outputs.nix inputs;
}
