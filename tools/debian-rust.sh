# Debian's Rust compiler, unpacked below target/ and not installed. To be sourced; then `debian_rust` sets RUSTC.
#
# A rustup toolchain gets another target's std, or the sources of std, only from its own servers. Debian's packages
# have both, for the compiler of the same packages; our cargo drives it. Needs Debian 12 on x86-64.

debian_rust_home=$PWD/target/debian-rust

skip() {
    echo "SKIPPED: $(basename "$0"): $1"
    exit 0
}

# apt with its own package lists, which include arm64: the system's stay as they are.
private_apt() {
    local command=$1
    shift
    "$command" -qq -o APT::Architectures::=amd64 -o APT::Architectures::=arm64 -o APT::Sandbox::User=root \
        -o Dir::State::lists="$debian_rust_home/lists" -o Dir::Cache="$debian_rust_home/cache" "$@"
}

# The package that $1 depends on and whose name starts with $2: the name holds a version.
dependency() {
    private_apt apt-cache show --no-all-versions "$1" |
        awk -F '[:,] *' -v name="$2" '/^Depends/ { for (i = 2; i <= NF; i++)
            if (index($i, name) == 1) { sub(/ .*/, "", $i); print $i; found = 1 } } END { exit !found }'
}

unpack_debian_rust() {
    command -v apt-get >/dev/null || skip "no apt-get: this needs Debian"
    [[ $(dpkg --print-architecture) == amd64 ]] || skip "this needs an x86-64 machine"
    rm -rf "$debian_rust_home"
    mkdir -p "$debian_rust_home"/{lists/partial,cache/archives/partial,debs,root}
    echo "fetching Debian's Rust compiler"
    private_apt apt-get update || skip "apt-get update failed"
    local std llvm package program
    std=$(dependency libstd-rust-web-dev:amd64 libstd-rust-web-) || skip "Debian has no rustc-web here"
    llvm=$(dependency "$std:amd64" libllvm) || skip "$std names no libllvm"
    (cd "$debian_rust_home/debs" && private_apt apt-get download rustc-web:amd64 "$std:amd64" "$llvm:amd64" \
        libstd-rust-web-dev:amd64 libstd-rust-web-dev:arm64 rust-web-src) ||
        skip "apt-get cannot download the compiler"
    for package in "$debian_rust_home"/debs/*.deb; do
        dpkg-deb -x "$package" "$debian_rust_home/root"
    done
    for program in rustc rustdoc; do
        cat >"$debian_rust_home/$program" <<WRAPPER
#!/bin/sh
root=\$(dirname "\$0")/root/usr
LD_LIBRARY_PATH=\$root/lib/x86_64-linux-gnu exec "\$root/bin/$program" "\$@"
WRAPPER
        chmod +x "$debian_rust_home/$program"
    done
    rm -rf "$debian_rust_home"/{lists,cache,debs}
    touch "$debian_rust_home/complete"
}

debian_rust() {
    [[ -e $debian_rust_home/complete ]] || unpack_debian_rust
    export RUSTC=$debian_rust_home/rustc RUSTDOC=$debian_rust_home/rustdoc
    local have need
    have=$("$RUSTC" --version | cut -d' ' -f2)
    need=$(sed -n 's/^rust-version = "\(.*\)"/\1/p' Cargo.toml)
    echo "Debian's rustc $have"
    [[ $(printf '%s\n' "$need" "$have" | sort -V | head -1) == "$need" ]] ||
        skip "Debian's rustc is $have, the library needs $need"
}
