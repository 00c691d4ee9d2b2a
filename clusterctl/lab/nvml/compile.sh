#!/bin/sh
# Compiles a shared library: compile.sh ARGUMENT.. of the compiler, which CC may name with options. No start files and no libgcc: the
# C library of this system is all that is linked, so that a compiler which was only unpacked, not installed, will do.
set -eu
libc=$(ldconfig -p | awk '$1 == "libc.so.6" {print $NF; exit}')
# shellcheck disable=SC2086  # CC may carry options
exec ${CC:-gcc} -std=c99 -D_GNU_SOURCE -O1 -Wall -Wextra -fPIC -fvisibility=hidden -shared -nostdlib \
    -Wl,-z,defs -Wl,-z,noexecstack "$@" "$libc"
