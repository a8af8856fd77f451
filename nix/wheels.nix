# The wheels of wheels.json for this Python and system; `devtool lock` writes that file together with requirements/*.txt.
{ pkgs, python, system }:
let
  inherit (pkgs) lib;
  lock = builtins.fromJSON (builtins.readFile ./wheels.json);
  files = lock.environments.${system}.${python.pythonVersion};
  fetch = file:
    let
      # No wheel of the lock has a build tag, which would be a sixth part.
      parts = builtins.match "([^-]+)-([^-]+)-([^-]+)-([^-]+)-([^-]+)\\.whl" file;
      part = builtins.elemAt parts;
    in
    pkgs.fetchPypi {
      pname = part 0;
      version = part 1;
      format = "wheel";
      dist = part 2;
      python = part 2;
      abi = part 3;
      platform = part 4;
      hash = lock.hashes.${file};
    };
in
rec {
  # set -> package -> { file, path }
  sets = builtins.mapAttrs (_: builtins.mapAttrs (_: file: { inherit file; path = fetch file; })) files;

  # A shell command that fills the folder $wheels with links to these packages' wheels, under the wheels' names.
  link = packages: ''
    wheels=$NIX_BUILD_TOP/wheels
    mkdir -p $wheels
  '' + lib.concatMapStringsSep "\n" (wheel: "ln -sf ${wheel.path} $wheels/${wheel.file}") packages + "\n";

  # The locked pip, run from its wheel.
  pip = "${python.interpreter} -I $wheels/${sets.dev.pip.file}/pip";
}
