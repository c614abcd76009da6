#!/usr/bin/env bash
# Fuzzes with the stable compiler and without cargo-fuzz; the layout is that of cargo-fuzz, which works too.
#     tools/fuzz.sh                      builds every target
#     tools/fuzz.sh TARGET [SECONDS]     builds and runs one, for a minute by default
#     tools/fuzz.sh TARGET 0 FILE        runs what was found: files in fuzz/artifacts/TARGET
# Further arguments are libFuzzer's.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../fuzz"

triple=x86_64-unknown-linux-gnu
# Coverage for libFuzzer and AddressSanitizer, both unstable in Rust.
export RUSTC_BOOTSTRAP=1
export RUSTFLAGS="--cfg fuzzing -Cdebug-assertions -Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4 \
-Cllvm-args=-sanitizer-coverage-inline-8bit-counters -Cllvm-args=-sanitizer-coverage-pc-table -Zsanitizer=address"
cargo build --locked --release --target "$triple"
[[ $# -gt 0 ]] || exit 0

name=$1
seconds=${2:-60}
if [[ $seconds == 0 ]]; then
    exec "target/$triple/release/$name" "${@:3}"
fi
mkdir -p "corpus/$name" "artifacts/$name"
exec "target/$triple/release/$name" -max_total_time="$seconds" -timeout=30 -rss_limit_mb=4096 -max_len=4096 \
    -artifact_prefix="artifacts/$name/" -print_final_stats=1 "${@:3}" "corpus/$name"
