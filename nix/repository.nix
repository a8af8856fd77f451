# What the flake of a repository of kernels has for one system: its ops and their release; a shell with devtool; and its
# tests as a check. The repository's pyproject.toml says which namespace the ops have.
{ shell, pyxla, kernelPackages }:
root:
let
  project = (builtins.fromTOML (builtins.readFile (root + "/pyproject.toml"))).project;
in
{
  packages = kernelPackages (root + "/kernels") (builtins.head (builtins.attrNames project.entry-points."pyxla.kernels"));
  shell = shell.shell { name = "${project.name}-shell"; inherit pyxla; commands = ""; };
  tests = shell.run {
    name = "${project.name}-tests";
    source = builtins.path { name = "${project.name}-source"; path = root; };
    commands = "devtool test --all; touch $out";
  };
}
