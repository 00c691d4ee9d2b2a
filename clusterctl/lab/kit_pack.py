"""Scripts that pack what a recipe built, run in the build container: Debian packages, and trees of images as archives.

Programs are in /work/bin, the module in /work/source, Maven's artifacts in /work/maven, the recipe's files in
/work/recipe, results in /made.
"""

import shlex

from clusterctl.lab.kit_recipe import Image, Package, architecture

EPOCH = "1767225600"  # of every file in a package or an image, so that builds are reproducible

SCRIPTS = ("preinst", "postinst", "prerm", "postrm")
# The directories and files that programs expect of every system. A loader's path is /lib64/….
_SKELETON = r"""mkdir -p etc tmp usr/bin usr/sbin usr/lib usr/lib64
chmod 1777 tmp
ln -s usr/bin usr/sbin usr/lib usr/lib64 .
printf '%s\n' root:x:0:0:root:/root:/sbin/nologin nonroot:x:65532:65532:nonroot:/:/sbin/nologin > etc/passwd
printf '%s\n' root:x:0: nonroot:x:65532: > etc/group
echo 'hosts: files dns' > etc/nsswitch.conf"""
# What mmdebstrap writes for apt, and what a runtime writes.
_EXCLUDED = ("./etc/apt", "./etc/dpkg", "./etc/fstab", "./etc/hostname", "./etc/resolv.conf")


def packages_archive(image: Image) -> str:
    """Return the name of the file with the unpacked Debian packages of an image."""
    return f"packages-{image.archive}"


def package_script(name: str, package: Package) -> str:
    """Return the script that makes a Debian package."""
    tree = f"/work/packages/{name}"
    head = f"Package: {name}\nVersion: {package.version}\nArchitecture: {architecture()}\n"
    lines = ["cd /work", *(_install(origin, path, tree) for path, origin in package.files.items())]
    lines.append(
        f"mkdir -p {tree}/DEBIAN && cat > {tree}/DEBIAN/control <<'END'\n{head}{package.control.rstrip()}\nEND"
    )
    if kept := [path for path, origin in package.files.items() if path.startswith("/etc/") and origin != "/dev/null"]:
        lines.append(f"printf '%s\\n' {shlex.join(kept)} > {tree}/DEBIAN/conffiles")
    for script in SCRIPTS:
        if origin := getattr(package, script):
            lines.append(f"install -m 0755 {shlex.quote(origin)} {tree}/DEBIAN/{script}")
    if package.setup:
        lines.append(f"(cd {tree}\n{package.setup.rstrip()}\n)")
    # gzip: for 66 MB of programs xz, the default, takes 35 CPU-s instead of 10, and twice the time on every node.
    lines.append(f"dpkg-deb --root-owner-group -Zgzip --build {tree} /made")
    return "\n".join(lines) + "\n"


def image_script(image: Image) -> str:
    """Return the script that makes the archive of an image's tree."""
    tree = f"/work/images/{image.name}"
    lines = [f"mkdir -p {tree}", f"cd {tree}", _SKELETON]
    if image.packages:
        archive = f"/made/{packages_archive(image)}"
        excluded = " ".join(f"--exclude={path}" for path in _EXCLUDED)
        lines += [f"tar --extract --file {archive} {excluded} ./usr ./etc", f"rm {archive}"]
        lines.append("rm -rf usr/lib/*/gconv usr/share/doc usr/share/man usr/share/lintian")
    lines += ["cd /work", *(_install(origin, path, tree) for path, origin in image.files.items())]
    if image.setup:
        lines.append(f"(cd {tree}\n{image.setup.rstrip()}\n)")
    lines.append(
        f"tar --create --file /made/{image.archive} --sort=name --mtime=@{EPOCH} --numeric-owner --owner=0 --group=0 "
        f"--directory {tree} ."
    )
    lines.append(f"rm -r {tree}")
    return "\n".join(lines) + "\n"


def _install(origin: str, path: str, tree: str) -> str:
    mode = "0755" if origin.startswith("bin/") or "/bin/" in path else "0644"
    return f"install -D -m {mode} {shlex.quote(origin)} {shlex.quote(tree + path)}"
