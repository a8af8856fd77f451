# The wheels of wheels.json for this Python and system, and what is installed from them. `devtool lock` writes that file
# together with requirements/*.txt.
{ pkgs, stdenv, python }:
let
  inherit (pkgs) lib;
  lock = builtins.fromJSON (builtins.readFile ./wheels.json);
  fetch = file:
    let
      # No wheel of the lock has a build tag, which would be a sixth part.
      part = builtins.elemAt (builtins.match "([^-]+)-([^-]+)-([^-]+)-([^-]+)-([^-]+)\\.whl" file);
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
  sets = builtins.mapAttrs (_: builtins.mapAttrs (_: file: { inherit file; path = fetch file; }))
    lock.environments.${stdenv.hostPlatform.system}.${python.pythonVersion};

  # A shell command that installs these wheels and `more`, by the locked pip, where `options` say; --ignore-installed, as
  # pip sees itself in its wheel and would not install that.
  install = options: packages: more:
    let files = map (wheel: "wheels/${wheel.file}") packages; in ''
      mkdir -p wheels
      ${lib.concatMapStringsSep "\n" (wheel: "ln -sf ${wheel.path} wheels/${wheel.file}") ([ sets.dev.pip ] ++ packages)}
      ${python.interpreter} -I wheels/${sets.dev.pip.file}/pip ${options} --quiet --no-index --no-deps --no-compile --ignore-installed \
        --no-warn-script-location --disable-pip-version-check --root-user-action ignore ${toString (files ++ more)}
    '';

  # A derivation of installed wheels, whose programs and libraries find what they need in the store.
  installed = attributes: stdenv.mkDerivation ({
    dontUnpack = true;
    dontStrip = true;
    dontPatchELF = true; # it would drop folders that a library opens others from
    nativeBuildInputs = [ python pkgs.autoPatchelfHook ];
    # Most need libstdc++, Triton needs zlib.
    buildInputs = [ (lib.getLib stdenv.cc.cc) pkgs.zlib ];
    # cuDNN opens the libraries beside it; all need the driver, which NixOS has there.
    appendRunpaths = [ "$ORIGIN" "/run/opengl-driver/lib" ];
    # The driver; libpython, which the interpreter has loaded; what only hardware and programs beyond the lock need.
    autoPatchelfIgnoreMissingDeps = [
      "libcuda.so.1" "libpython3.*" "libmlx5.so.1" "libibverbs.so.1" "librdmacm.so.1" "libucs.so.0" "libucp.so.0" "libpmix.so.2"
      "liboshmem.so.40" "libmpi.so.40" "libfabric.so.1" "libcutensor.so.2" "libcutensorMg.so.2"
    ];
  } // attributes);

  # A folder `site` for PYTHONPATH.
  site = name: packages: installed {
    name = "pyxla-${name}";
    installPhase = install "install --target $out/site" packages [ ];
  };

  # Where an environment has its packages.
  folder = "lib/python${python.pythonVersion}/site-packages";

  # A Python environment: a venv in the store with these wheels, and wheels of our own, on top of `base`, another
  # environment. Layers, because torch's wheels are 7 GB that an edit of pyxla must not copy.
  environment = { name, packages ? { }, own ? [ ], base ? null }:
    installed ({
      name = "pyxla-${name}";
      installPhase = ''
        ${python.interpreter} -I -m venv --without-pip $out
        ${lib.optionalString (base != null) "echo \"import site; site.addsitedir('${base}/${folder}')\" > $out/${folder}/base.pth"}
        ${install "--python $out/bin/python install" (builtins.attrValues packages) own}
        # Bytecode that is checked by its source's content: the store keeps no times.
        $out/bin/python -I -m compileall -q -j 0 --invalidation-mode unchecked-hash $out/${folder} || true
      '';
    } // lib.optionalAttrs (packages == { }) {
      # Our own libraries alone: their manifests have their SHA-256.
      dontFixup = true;
    });
}
