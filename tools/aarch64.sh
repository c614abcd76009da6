#!/usr/bin/env bash
# Cross-builds for aarch64 and runs under emulation, so that the NEON bodies are executed on an x86-64 machine. Needs
# Debian 12 and root. Arguments are those of cargo; without any, the library's tests run.
#     tools/aarch64.sh run --package abreast-cli -- replay
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
source tools/debian-rust.sh

missing=()
command -v aarch64-linux-gnu-gcc >/dev/null || missing+=(gcc-aarch64-linux-gnu)
[[ -e /usr/aarch64-linux-gnu/lib/libc.so.6 ]] || missing+=(libc6-dev-arm64-cross)
command -v qemu-aarch64 >/dev/null || missing+=(qemu-user)
if [[ ${#missing[@]} -gt 0 ]]; then
    echo "installing ${missing[*]}"
    apt-get install -qq -y --no-install-recommends "${missing[@]}" >/dev/null ||
        skip "apt-get cannot install ${missing[*]}"
fi
qemu-aarch64 --version | head -1
debian_rust

if [[ $# -eq 0 ]]; then
    # QEMU 7 aborts where a forked child starts a thread; gigabytes are slow to emulate and the same everywhere.
    echo "not run under emulation: a_forked_child_gets_an_error, beyond_2_to_the_32"
    set -- test --package abreast -- --skip a_forked_child_gets_an_error --skip beyond_2_to_the_32
fi
command=$1
shift
export CARGO_TARGET_DIR=target/aarch64
export CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER=aarch64-linux-gnu-gcc
export CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_RUNNER="qemu-aarch64 -L /usr/aarch64-linux-gnu"
exec cargo "$command" --release --locked --target aarch64-unknown-linux-gnu "$@"
