# The release: all libraries with their manifests, manifest.json over all of them, and a tarball of the same.
{ pkgs, python, version, ops }:
let name = "pyxla-kernels-${version}-${pkgs.stdenv.hostPlatform.system}"; in
pkgs.runCommand name { nativeBuildInputs = [ python ]; } ''
  mkdir -p $out/lib
  for op in ${toString (builtins.attrValues ops)}; do cp -r $op/lib/* $out/lib/; done
  cp ${../LICENSE} $out/LICENSE
  ${python.interpreter} -I ${./release.py} $out/lib ${version} ${pkgs.stdenv.hostPlatform.system}
  chmod -R u+w,a+rX $out
  tar --sort=name --mtime=@315532800 --owner=0 --group=0 --numeric-owner --mode=u+rwX,go+rX,go-w \
    --transform "s,^\.,${name}," -C $out -cf - ./LICENSE ./lib | gzip -9n > ${name}.tar.gz
  mv ${name}.tar.gz $out/
''
