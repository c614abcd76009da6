#!/usr/bin/env bash
# Brings NVIDIA's run-time compiler from PyPI to target/nvrtc, and prints what to set, so that every kernel can be compiled for every
# architecture on a machine without a GPU or toolkit:
#     eval "$(tools/nvrtc.sh)"
#     cargo test --features abreast/cuda -p abreast every_kernel_compiles
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

version="13.0.*"
# One folder a version: another is never mistaken for it.
home=$PWD/target/nvrtc/${version%.\*}

find_library() {
    find "$home" -name 'libnvrtc.so.*' -print -quit 2>/dev/null
}

if [ -z "$(find_library)" ]; then
    # Installed beside its place: what was interrupted is not taken for whole.
    rm -rf "$home" "$home.new"
    python3 -m venv "$home.new" >&2
    "$home.new/bin/pip" install --quiet --disable-pip-version-check --no-cache-dir "nvidia-cuda-nvrtc==$version" >&2
    mv "$home.new" "$home"
fi
library=$(find_library)
[ -n "$library" ] || { echo "the package nvidia-cuda-nvrtc==$version has no libnvrtc" >&2; exit 1; }

printf 'export ABREAST_NVRTC=%q ABREAST_REQUIRE_NVRTC=1\n' "$library"
