#!/usr/bin/env bash
# Cross-builds the tests for aarch64 and runs them under emulation, so that the NEON bodies are executed on an x86-64
# machine. Needs Debian 12 and root. Arguments are those of cargo, `test --package abreast` where there are none:
#     tools/aarch64.sh run --package abreast-cli -- replay
#
# A rustup toolchain has no aarch64 std without a download from its own servers. Debian's has: its compiler and both
# stds are unpacked into target/ (not installed), and our cargo drives them.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

target=aarch64-unknown-linux-gnu
tools=$PWD/target/aarch64-tools
root=$tools/root

skip() {
    echo "SKIPPED: aarch64: $1"
    exit 0
}

# The linker, its C library and the emulator are small enough to be installed.
install_host_tools() {
    local missing=()
    command -v aarch64-linux-gnu-gcc >/dev/null || missing+=(gcc-aarch64-linux-gnu)
    [[ -e /usr/aarch64-linux-gnu/lib/libc.so.6 ]] || missing+=(libc6-dev-arm64-cross)
    command -v qemu-aarch64 >/dev/null || missing+=(qemu-user)
    [[ ${#missing[@]} -eq 0 ]] && return
    echo "aarch64: installing ${missing[*]}"
    apt-get install -qq -y --no-install-recommends "${missing[@]}" >/dev/null ||
        skip "apt-get cannot install ${missing[*]}"
}

# apt with its own package lists, which include arm64: the system's stay as they are.
private_apt() {
    local command=$1
    shift
    "$command" -qq -o APT::Architectures::=amd64 -o APT::Architectures::=arm64 -o APT::Sandbox::User=root \
        -o Dir::State::lists="$tools/lists" -o Dir::Cache="$tools/cache" "$@"
}

# Package of amd64 that $1 depends on and whose name starts with $2; its number changes with every version.
dependency() {
    private_apt apt-cache show --no-all-versions "$1" |
        awk -F '[:,] *' -v name="$2" '/^Depends/ { for (i = 2; i <= NF; i++)
            if (index($i, name) == 1) { sub(/ .*/, "", $i); print $i; found = 1 } } END { exit !found }'
}

unpack_compiler() {
    [[ -e $root/complete ]] && return
    command -v apt-get >/dev/null || skip "no apt-get: this needs Debian"
    [[ $(dpkg --print-architecture) == amd64 ]] || skip "this needs an x86-64 machine"
    rm -rf "$tools"
    mkdir -p "$tools"/{lists/partial,cache/archives/partial,debs,root}
    echo "aarch64: fetching Debian's compiler and std"
    private_apt apt-get update || skip "apt-get update failed"
    local shared llvm
    shared=$(dependency libstd-rust-web-dev:amd64 libstd-rust-web-) || skip "Debian has no rustc-web"
    llvm=$(dependency "$shared:amd64" libllvm) || skip "$shared names no libllvm"
    (cd "$tools/debs" && private_apt apt-get download rustc-web:amd64 "$shared:amd64" "$llvm:amd64" \
        libstd-rust-web-dev:amd64 libstd-rust-web-dev:arm64) || skip "apt-get cannot download the compiler"
    for package in "$tools"/debs/*.deb; do
        dpkg-deb -x "$package" "$root"
    done
    for program in rustc rustdoc; do
        cat >"$tools/$program" <<WRAPPER
#!/bin/sh
root=\$(dirname "\$0")/root/usr
LD_LIBRARY_PATH=\$root/lib/x86_64-linux-gnu exec "\$root/bin/$program" "\$@"
WRAPPER
        chmod +x "$tools/$program"
    done
    rm -rf "$tools"/{lists,cache,debs}
    touch "$root/complete"
}

check_version() {
    local have need
    have=$("$tools/rustc" --version | cut -d' ' -f2)
    need=$(sed -n 's/^rust-version = "\(.*\)"/\1/p' Cargo.toml)
    echo "aarch64: rustc $have, $(qemu-aarch64 --version | head -1)"
    [[ $(printf '%s\n' "$need" "$have" | sort -V | head -1) == "$need" ]] ||
        skip "Debian's rustc is $have, the library needs $need"
}

install_host_tools
unpack_compiler
check_version

[[ $# -gt 0 ]] || set -- test --package abreast
command=$1
shift
export RUSTC=$tools/rustc RUSTDOC=$tools/rustdoc CARGO_TARGET_DIR=target/aarch64
export CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER=aarch64-linux-gnu-gcc
export CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_RUNNER="qemu-aarch64 -L /usr/aarch64-linux-gnu"
exec cargo "$command" --release --locked --target "$target" "$@"
