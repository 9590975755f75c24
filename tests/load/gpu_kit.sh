#!/bin/sh
# gpu_kit.sh BUILD KIT PROGRAM... - what gpu_check.py needs, in the archive KIT.tar.xz: for a machine
# with a GPU, its driver, CUDA's libraries and Python, but no compiler, packages or network.  There:
#
#     python3 -m tarfile -e KIT.tar.xz && cd KIT && tests/load/gpu_check.py
#
# The shared libraries go along, but for glibc, which must be no older there, and CUDA's.
set -e
build=$1 kit=$2
shift 2

rm -rf "$kit" "$kit.tar.xz"
mkdir -p "$kit/build/cuda/lib"
cp -r --parents tests/run.sh tests/golden tests/load tests/e2e/server.py "$kit"
rm -rf "$kit"/tests/load/__pycache__
for program in "$@"; do
    to=$kit/build/cuda/${program#"$build"/}
    mkdir -p "$(dirname "$to")"
    strip -o "$to" "$program"
    LD_LIBRARY_PATH='' ldd "$program" | sed -n 's/.* => \(\/[^ ]*\) .*/\1/p'
done | sort -u | grep -vE '/(lib(c|m|dl|rt|pthread|gcc_s|stdc\+\+)\.so|libcu(blas|blasLt|dart)\.so)' |
    xargs -I{} cp -L {} "$kit/build/cuda/lib"
# One long window: the programs share most of their bytes.
tar -C "$(dirname "$kit")" -c "$(basename "$kit")" | xz -T1 --lzma2=preset=6,dict=256MiB >"$kit.tar.xz"
rm -rf "$kit"
ls -l "$kit.tar.xz"
