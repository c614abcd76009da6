#!/usr/bin/env bash
# Type-checks the library with its Metal backend for Apple silicon, on a machine that is none: with std built from Debian's sources,
# whose compiler knows the target. Needs Debian 12. Arguments are those of cargo; without any, the library is checked.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
source tools/debian-rust.sh

debian_rust
[[ $# -gt 0 ]] || set -- check --package abreast --lib --features metal
command=$1
shift
# Debian's compiler calls itself stable; building std is for nightly ones. Nothing runs: what is built is built quickly.
export RUSTC_BOOTSTRAP=1 CARGO_TARGET_DIR=target/darwin CARGO_PROFILE_DEV_OPT_LEVEL=0 CARGO_PROFILE_DEV_DEBUG=0
exec cargo "$command" --locked -Zbuild-std=std,panic_abort --target aarch64-apple-darwin "$@"
