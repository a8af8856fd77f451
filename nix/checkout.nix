# A checkout of pyxla with the locked wheels, and its own devtool and pyxla: `nix develop`, the checks, the pages.
shell:
rec {
  source = builtins.path { name = "pyxla-source"; path = ../.; };

  # Commands in a copy of the checkout; they write $out.
  run = name: commands: shell.run {
    inherit name source;
    commands = ''
      chmod +x bin/devtool
      export PATH=$PWD/bin:$PATH PYTHONPATH=$(python3 -I nix/link_checkout.py .)
      ${commands}
    '';
  };

  develop = shell.shell {
    name = "pyxla-shell";
    pyxla = "${../pyxla}";
    commands = ''
      if [ -x "$pyxla_root/bin/devtool" ]; then
        export PYTHONPATH=$(python3 -I "$pyxla_root/nix/link_checkout.py" "$pyxla_root")
        export PATH=$pyxla_root/bin:$PATH
        [ -e "$pyxla_root/build/cmake/compile_commands.json" ] || devtool build --configure-only
      else
        echo "nix develop: checkout: expected bin/devtool in $pyxla_root, got none" >&2
        printf '\nhint: cd into a checkout of pyxla\n' >&2
      fi
    '';
  };
}
