# The files and folders of `path` whose relative paths match, so that an edit of another file changes nothing.
{ path, files, folders ? ".*", name ? "pyxla-${baseNameOf path}" }:
builtins.path {
  inherit name path;
  filter = file: type:
    let relative = builtins.replaceStrings [ "${toString path}/" ] [ "" ] file; in
    builtins.match "(.*/)?__pycache__(/.*)?" relative == null
    && builtins.match (if type == "directory" then folders else files) relative != null;
}
