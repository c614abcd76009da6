#!/usr/bin/env bash
# Runs the library's tests under a tool that sees what tests do not, after it has found a bug that was planted for it:
#     tools/sanitize.sh address [ARGUMENTS OF CARGO TEST]     AddressSanitizer: memory that is not ours
#     tools/sanitize.sh thread [...]                          ThreadSanitizer: two threads at one place
#     tools/sanitize.sh memory [...]                          MemorySanitizer: bytes that nobody wrote
#     tools/sanitize.sh valgrind [...]                        the first and the third without a build of its own; slow
# `thread` and `memory` need std built with the sanitizer too: Debian 12's compiler comes with std's sources.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
source tools/debian-rust.sh

[[ $# -gt 0 ]] || { echo "usage: tools/sanitize.sh address|thread|memory|valgrind [arguments of cargo test]" >&2; exit 2; }
tool=$1
shift
target=x86_64-unknown-linux-gnu
cargo_options=(--release --locked --target "$target")
# The sanitizers are unstable in Rust; this lets the stable compiler use them.
export RUSTC_BOOTSTRAP=1
# An allocation that is too large is the library's to report.
export ASAN_OPTIONS=allocator_may_return_null=1
export TSAN_OPTIONS=$ASAN_OPTIONS MSAN_OPTIONS=$ASAN_OPTIONS

# Debian's compiler with its std built anew; the run-time library is the one of the rustup toolchain.
build_std() {
    local runtimes
    runtimes=$(rustc --print sysroot)/lib/rustlib/$target/lib
    debian_rust
    cp "$runtimes"/librustc-stable_rt.*san.a "$debian_rust_home/root/usr/lib/rustlib/$target/lib/"
    cargo_options+=(-Zbuild-std)
}

case $tool in
address)
    bugs=(out-of-bounds)
    words="AddressSanitizer: heap-buffer-overflow"
    export RUSTFLAGS="-Zsanitizer=address"
    ;;
thread)
    bugs=(race)
    words="ThreadSanitizer: data race"
    build_std
    export RUSTFLAGS="-Zsanitizer=thread"
    ;;
memory)
    bugs=(uninitialised)
    words="MemorySanitizer: use-of-uninitialized-value"
    build_std
    export RUSTFLAGS="-Zsanitizer=memory -Zsanitizer-memory-track-origins"
    ;;
valgrind)
    bugs=(out-of-bounds uninitialised)
    words="Invalid read|depends on uninitialised value"
    command -v valgrind >/dev/null || apt-get install -qq -y valgrind >/dev/null || skip "no valgrind"
    export CARGO_TARGET_X86_64_UNKNOWN_LINUX_GNU_RUNNER="valgrind --quiet --error-exitcode=99"
    ;;
*)
    echo "no such tool: $tool" >&2
    exit 2
    ;;
esac

export RUSTDOCFLAGS=${RUSTFLAGS:-}
# Places of their own: the two workspaces would take each other's std for outdated.
export CARGO_TARGET_DIR=target/sanitize/$tool-planted
for bug in "${bugs[@]}"; do
    cargo build "${cargo_options[@]}" --quiet --manifest-path tools/planted/Cargo.toml --bin "$bug"
    if report=$(cargo run "${cargo_options[@]}" --quiet --manifest-path tools/planted/Cargo.toml --bin "$bug" 2>&1); then
        echo "$tool did not fail on the planted bug '$bug'" >&2
        exit 1
    fi
    grep -E -m1 "$words" <<<"$report" || { echo "$tool did not name the planted bug '$bug'" >&2; exit 1; }
    echo "$tool finds the planted bug '$bug'"
done

export CARGO_TARGET_DIR=target/sanitize/$tool
cargo test "${cargo_options[@]}" --package abreast "$@"
