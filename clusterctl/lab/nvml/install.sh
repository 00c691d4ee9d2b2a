#!/bin/sh
# Installs the simulated NVML and NVIDIA's own nvidia-smi in a root file system: install.sh ROOT
# Made to be a customize hook of mmdebstrap; works on any chroot with apt sources, ROOT being / included. The compiler
# that it needs is only unpacked in a temporary directory of ROOT and never installed. Debian has nvidia-smi in its
# component non-free; where there is none, everything else is installed, and a line says so.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
root=$1
work=/tmp/simulated-nvml

# shellcheck disable=SC2317  # called by the trap
clean() {
    rm -rf "${root:?}$work"
    rm -f "$root"/var/cache/apt/*.bin "$root"/var/cache/apt/archives/nvidia-smi_*.deb
    if [ -n "${lists_were_empty:-}" ]; then
        rm -rf "${root:?}"/var/lib/apt/lists/*
    fi
}
trap clean EXIT

inside() {
    chroot "$root" env DEBIAN_FRONTEND=noninteractive LC_ALL=C.UTF-8 "$@"
}
apt_get() {
    inside apt-get -qq -o APT::Sandbox::User=root -o Dpkg::Use-Pty=false -o Dpkg::Options::=--force-unsafe-io "$@"
}

# Not of the driver: a node whose driver is removed keeps it (../node/init preloads it).
compile_unified_cgroup() {
    mkdir -p "$root/usr/local/lib/lab-node"
    inside env CC="$1" "$work/source/compile.sh" -o /usr/local/lib/lab-node/libunified-cgroup.so "$work/source/unified_cgroup.c"
}

mkdir -p "$root$work/compiler"
cp -r "$here/." "$root$work/source"

# Not Debian's family: the compiler is installed, used and removed again, and there is no nvidia-smi to be had.
if [ ! -x "$root/usr/bin/apt-get" ]; then
    inside rpm -q gcc >/dev/null || installed=yes
    [ -z "${installed:-}" ] || inside dnf -y -q --setopt=install_weak_deps=False install gcc
    inside "$work/source/build.sh" /
    compile_unified_cgroup gcc
    [ -z "${installed:-}" ] || inside dnf -y -q history undo last
    inside ldconfig
    exit
fi

if ! ls "$root"/var/lib/apt/lists/*_Packages* >/dev/null 2>&1; then
    lists_were_empty=yes
    apt_get -o Acquire::Languages=none update
fi

# The compiler: what apt would install, less the run-time libraries that no C program here links.
packages=$(apt_get install --simulate --no-install-recommends gcc libc6-dev | awk '$1 == "Inst" {print $2}' |
    grep -Ev '^(lib[a-z]+san[0-9]*|lib(atomic|cc1|gomp|itm|quadmath|gprofng|crypt).*|rpcsvc-proto)$' || true)
if [ -n "$packages" ]; then
    # shellcheck disable=SC2086  # a list of package names
    inside sh -c "cd $work/compiler && apt-get -qq -o APT::Sandbox::User=root download \"\$@\" &&
        ls ./*.deb | xargs -P 4 -I DEB dpkg-deb -x DEB . && rm ./*.deb" unpack $packages
fi
cat >"$root$work/cc" <<CC
#!/bin/sh
# Not installed: its libraries, headers and programs are all below $work/compiler.
prefix=$work/compiler/usr
triplet=\$(cd \$prefix/lib && ls -d *-linux-gnu)
export LD_LIBRARY_PATH=\$prefix/lib/\$triplet PATH=\$prefix/bin:\$PATH
exec gcc -B\$prefix/bin -isystem \$prefix/include/\$triplet -isystem \$prefix/include "\$@"
CC
chmod 0755 "$root$work/cc"
compiler=gcc
[ -z "$packages" ] || compiler=$work/cc

compile_unified_cgroup "$compiler"
candidate=$(inside apt-cache policy nvidia-smi | awk '$1 == "Candidate:" && $2 != "(none)" {print $2}')
inside env CC="$compiler" "$work/source/build-deb.sh" "$work/simulated.deb" "${candidate:-550.163.01-1}"
if [ -n "$candidate" ]; then
    apt_get install --yes --no-install-recommends "$work/simulated.deb" nvidia-smi
else
    apt_get install --yes --no-install-recommends "$work/simulated.deb"
    echo "simulated NVML: nvidia-smi is not to be had from this root's apt sources (component non-free); NVML alone is installed" >&2
fi
