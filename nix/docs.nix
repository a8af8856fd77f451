# The documentation as pages, with the sources that it links to; a broken link is an error.
{ pkgs, tools, version }:
let
  source = builtins.path { name = "pyxla-docs-source"; path = ../.; };
  config = pkgs.writeText "mkdocs.yml" ''
    site_name: pyxla ${version}
    docs_dir: ${source}
    theme: {name: mkdocs}
    use_directory_urls: false
    plugins: [search]
  '';
in
pkgs.runCommand "pyxla-docs-${version}" { SOURCE_DATE_EPOCH = "315532800"; } ''
  ${tools}/bin/python -I -m mkdocs build --quiet --strict --config-file ${config} --site-dir $out
''
