# The names of the ops and their implementations: the folders of `kernels` that hold code. An invalid name is an error,
# and so is code without the file that registers the op or names the op that it implements.
kernels:
let
  entries = builtins.readDir kernels;
  # Names of the flake's other packages.
  reserved = [ "default" "docs" "python" "wheel" "cmake" "common" ];
  # A folder with an underscore holds headers and Python that several ops share.
  code = folder: if builtins.match "_.*" folder == null then ".*\\.(h|cuh|cc|cu|py)" else ".*\\.(cc|cu)";
  holdsCode = folder:
    builtins.any (file: builtins.match (code folder) file != null)
      (builtins.attrNames (builtins.readDir (kernels + "/${folder}")));
  folders = builtins.filter (name: entries.${name} == "directory" && name != "common" && name != "cmake")
    (builtins.attrNames entries);
  check = name:
    if builtins.elem name reserved || builtins.match "[a-z][a-z0-9_]*" name == null then
      throw ''
        flake: kernels/${name}: expected a name of lower-case letters, digits and _ that is none of ${toString reserved}, got it

        hint: git mv kernels/${name} kernels/<another name>''
    else if ! builtins.any (file: builtins.pathExists (kernels + "/${name}/${file}")) [ "${name}_ffi.cc" "implements" ] then
      throw ''
        flake: kernels/${name}: expected ${name}_ffi.cc, which registers the op, got none

        hint: devtool new-op ${name} writes one; a file that git does not know is not seen: git add -N kernels/${name}''
    else name;
in
map check (builtins.filter holdsCode folders)
