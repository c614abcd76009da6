#!/usr/bin/env bash
# Fuzzes with the stable compiler and without cargo-fuzz; the layout is that of cargo-fuzz, which works too.
#     tools/fuzz.sh                      builds every target
#     tools/fuzz.sh TARGET [SECONDS]     builds and runs one, for a minute by default
# What is found lies in fuzz/artifacts/TARGET; give its path as a third argument to run it alone.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../fuzz"

triple=x86_64-unknown-linux-gnu
# Coverage for libFuzzer and AddressSanitizer, both unstable in Rust.
export RUSTC_BOOTSTRAP=1
export RUSTFLAGS="--cfg fuzzing -Cdebug-assertions -Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4 \
-Cllvm-args=-sanitizer-coverage-inline-8bit-counters -Cllvm-args=-sanitizer-coverage-pc-table -Zsanitizer=address"
cargo build --release --target "$triple"
[[ $# -gt 0 ]] || exit 0

name=$1
seconds=${2:-60}
mkdir -p "corpus/$name" "artifacts/$name"
what=("corpus/$name")
[[ -n ${3:-} ]] && what=("$3")
exec "target/$triple/release/$name" -max_total_time="$seconds" -timeout=30 -rss_limit_mb=4096 -max_len=4096 \
    -artifact_prefix="artifacts/$name/" -print_final_stats=1 "${what[@]}"
