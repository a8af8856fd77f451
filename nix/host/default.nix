# `import nixpkgs { system }` with the machine's own tool chain: bash, coreutils, g++ and Python of /usr. Its compilers and
# auto-patchelf do what nixpkgs' do to a library, so that a build that forgets to ask otherwise fails here too. Builds run
# without a sandbox. Every derivation depends on the fingerprint of these tools (toolchain.json, which `devtool nix`
# writes), so that another compiler causes a rebuild.
{ system ? builtins.currentSystem }:
let
  lib = import ./lib.nix;
  tools =
    if builtins.pathExists ./toolchain.json then builtins.fromJSON (builtins.readFile ./toolchain.json)
    else throw ''
      nix/host: toolchain.json: expected the machine's tools, got none

      hint: run Nix by `devtool nix build`, which writes it'';

  mkDerivation = attributes:
    let
      made = derivation (removeAttrs attributes [ "passthru" "meta" "pname" "version" ] // {
        name = attributes.name or "${attributes.pname}-${attributes.version}";
        inherit system;
        outputs = [ "out" ]; # `nix develop` reads it
        builder = "/bin/bash";
        args = [ "-e" ./build.sh ];
        stdenv = ./stdenv;
        compilers = "${compilers}/bin";
        hostTools = tools.fingerprint;
      });
    in
    made // (attributes.passthru or { }) // { meta = attributes.meta or { }; };

  stdenv = {
    inherit mkDerivation;
    hostPlatform = { inherit system; };
    cc.cc = machineLibraries "gcc" [ "libstdc++.so.6" "libgcc_s.so.1" "libgomp.so.1" ];
  };

  compilers = derivation {
    name = "host-cc";
    inherit system;
    builder = "/bin/bash";
    args = [ "-c" "/bin/mkdir -p $out/bin; for name in g++ gcc c++ cc; do /bin/cp ${./cc-wrapper} $out/bin/$name; done" ];
    hostTools = tools.fingerprint;
  };

  # Links to the machine's commands.
  hostTool = name: commands: mkDerivation {
    name = "host-${name}";
    buildCommand = "mkdir -p $out/bin\n" + lib.concatMapStringsSep "\n"
      (command: "ln -s $(command -v ${command}) $out/bin/${command}") commands;
  };

  # Links to the machine's libraries.
  machineLibraries = name: libraries: mkDerivation {
    name = "host-lib${name}";
    buildCommand = "mkdir -p $out/lib\n" + lib.concatMapStringsSep "\n"
      (library: "ln -s $(gcc -print-file-name=${library}) $out/lib/${library}") libraries;
  };

  packages = {
    inherit lib stdenv system;
    gcc12Stdenv = stdenv;

    runCommand = name: attributes: buildCommand: mkDerivation ({ inherit name buildCommand; } // attributes);
    writeShellScriptBin = name: text: mkDerivation {
      inherit name;
      text = "#!/bin/bash\n${text}\n";
      passAsFile = [ "text" ];
      buildCommand = "mkdir -p $out/bin; cp $textPath $out/bin/${name}; chmod +x $out/bin/${name}";
    };
    bashInteractive = hostTool "bash" [ "bash" "sh" ];
    autoPatchelfHook = mkDerivation {
      name = "host-auto-patchelf";
      buildCommand = "mkdir -p $out/bin; cp ${./auto-patchelf} $out/bin/auto-patchelf";
    };
    zlib = machineLibraries "z" [ "libz.so.1" ];

    python312 = (mkDerivation {
      name = "host-python-${tools.pythonVersion}";
      buildCommand = "mkdir -p $out/bin; ln -s ${tools.python} $out/bin/python3; ln -s python3 $out/bin/python";
    }) // {
      # The machine's: 3.11 or 3.12.
      inherit (tools) pythonVersion;
      interpreter = "${packages.python312}/bin/python3";
    };

    # A wheel by its file's name and SHA-256: the same store path as from nixpkgs' fetchPypi.
    fetchPypi = { pname, version, format, dist, python, abi, platform, hash }:
      assert format == "wheel" && dist == python;
      derivation {
        name = "${pname}-${version}-${python}-${abi}-${platform}.whl";
        inherit system pname version python abi platform hash;
        inherit (tools) pip;
        builder = "/bin/bash";
        args = [ "-e" ./fetch-wheel.sh ];
        outputHashMode = "flat";
        outputHashAlgo = "sha256";
        outputHash = hash;
        preferLocalBuild = true;
        # The machine's own settings of pip and the network.
        impureEnvVars = [
          "http_proxy" "https_proxy" "no_proxy" "HTTP_PROXY" "HTTPS_PROXY" "NO_PROXY" "SSL_CERT_FILE" "SSL_CERT_DIR"
          "PIP_CERT" "PIP_CONFIG_FILE" "PIP_INDEX_URL" "PIP_EXTRA_INDEX_URL" "PIP_FIND_LINKS" "PIP_NO_INDEX"
          "PIP_CACHE_DIR" "PIP_DEFAULT_TIMEOUT"
        ];
      };
  };
in
packages
