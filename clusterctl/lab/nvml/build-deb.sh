#!/bin/sh
# Packs the simulated NVML as a Debian package: build-deb.sh OUTPUT.deb PACKAGE_VERSION
# PACKAGE_VERSION is that of the distribution's nvidia-smi, for instance 550.163.01-2, which depends on its companions
# in exactly that version. To be run in the distribution that the package is for; CC as for build.sh.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
output=$1
version=$2
driver=${version%-*}
stage=$(mktemp -d)
trap 'rm -rf "$stage"' EXIT
chmod 0755 "$stage"

"$here/build.sh" "$stage" "$driver"
# Debian's nvidia-smi is at the path to which its alternatives system would link.
mkdir -p "$stage/usr/bin" "$stage/DEBIAN"
ln -s ../lib/nvidia/current/nvidia-smi "$stage/usr/bin/nvidia-smi"

cat >"$stage/DEBIAN/control" <<CONTROL
Package: libnvidia-ml1-simulated
Version: $version
Architecture: $(dpkg --print-architecture)
Maintainer: clusterctl <clusterctl@localhost>
Depends: libc6
Provides: libnvidia-ml1 (= $version), libnvidia-ml.so.1 (= $driver), nvidia-alternative (= $version), libcuda1 (= $version)
Conflicts: libnvidia-ml1, nvidia-alternative, libcuda1
Section: misc
Priority: optional
Description: simulated NVIDIA management library for clusterctl's lab
 Answers NVML's calls from a configuration file instead of a driver, so that
 NVIDIA's own tools run on a machine without GPUs. There is no driver in it.
CONTROL
printf 'activate-noawait ldconfig\n' >"$stage/DEBIAN/triggers"
dpkg-deb --root-owner-group -Znone --build "$stage" "$output" >/dev/null
