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

rm -rf "$kit" "$kit.tar.xz" "$kit.tar" "$kit.needs"
mkdir -p "$kit/build/cuda/lib"
git ls-files -z tests/run.sh tests/golden tests/load tests/e2e/server.py >"$kit.needs"
xargs -0 cp --parents -t "$kit" <"$kit.needs"
# No command that may fail stands before a pipe, which would hide that.
: >"$kit.needs"
for program in "$@"; do
    to=$kit/build/cuda/${program#"$build"/}
    mkdir -p "$(dirname "$to")"
    strip -o "$to" "$program"
    LD_LIBRARY_PATH='' ldd "$program" >>"$kit.needs"
done
if grep 'not found' "$kit.needs"; then
    echo "gpu_kit.sh: these libraries are not here, so the kit would lack them" >&2
    exit 1
fi
sed -n 's/.* => \(\/[^ ]*\) .*/\1/p' "$kit.needs" | sort -u |
    grep -vE '/(lib(c|m|dl|rt|pthread|gcc_s|stdc\+\+)\.so|libcu(blas|blasLt|dart)\.so)' |
    xargs -I{} cp -L {} "$kit/build/cuda/lib"
# One long window: the programs share most of their bytes.
tar -C "$(dirname "$kit")" -cf "$kit.tar" "$(basename "$kit")"
xz -T1 --lzma2=preset=6,dict=256MiB "$kit.tar"
rm -rf "$kit" "$kit.needs"
ls -l "$kit.tar.xz"
