#!/bin/sh
# Compiles the simulated NVML and installs its files: build.sh DESTDIR [DRIVER_VERSION]
# DESTDIR is / or the stage of a package. CC may name a compiler with its options.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
destination=${1%/}
version=${2:-550.163.01}

libc=$(ldconfig -p | awk '$1 == "libc.so.6" {print $NF; exit}')
libraries=$destination/usr$(dirname "${libc#/usr}")
units=$destination/usr/lib/systemd/system
generated=$(mktemp -d)
trap 'rm -rf "$generated"' EXIT
awk '{printf "STUB(%s, %d)\n", $1, $2}' "$here/symbols.txt" >"$generated/stubs.inc"

mkdir -p "$libraries" "$units/sysinit.target.wants" "$destination/usr/libexec"
"$here/compile.sh" -I"$generated" -DDRIVER_VERSION="\"$version\"" -Wl,-soname,libnvidia-ml.so.1 \
    -o "$libraries/libnvidia-ml.so.$version" "$here"/source/*.c
# Container tools look for the CUDA driver's library beside NVML's; nothing calls it without a real device.
"$here/compile.sh" -Wl,-soname,libcuda.so.1 -o "$libraries/libcuda.so.$version" -x c /dev/null -x none
for name in libnvidia-ml libcuda; do
    ln -sf "$name.so.$version" "$libraries/$name.so.1"
done

firmware="$destination/usr/lib/firmware/nvidia/$version"
mkdir -p "$firmware"
# Relative: a container that has the node's root in a directory follows them there.
ln -sf ../../../../../etc/simulated-nvml.conf "$firmware/gsp_simulated.bin"
ln -sf ../../../../../var/lib/simulated-nvml/state "$firmware/gsp_simulated_kept.bin"
ln -sf ../../../../../run/simulated-nvml/state "$firmware/gsp_simulated_state.bin"

install -m 0755 "$here/simulated-gpus" "$destination/usr/libexec/simulated-gpus"
install -m 0644 "$here/simulated-gpus.service" "$units/simulated-gpus.service"
ln -sf ../simulated-gpus.service "$units/sysinit.target.wants/simulated-gpus.service"
