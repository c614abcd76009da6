#!/usr/bin/env bash
# Packs what tests need on a GPU machine that has no Rust, to target/gpu-pack and target/gpu-pack.tar.gz: see docs/gpu-testing.md.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

pack=target/gpu-pack
most_bytes=$((16 << 20))
rm -rf "$pack" "$pack.tar.gz"
mkdir -p "$pack"

# Of cargo's messages, the path of every program that it built.
executables() {
    cargo "$@" --locked --message-format=json | sed -n 's/.*"executable":"\([^"]*\)".*/\1/p'
}

# The symbols stay in target/.
take() {
    local program=$1 name=$2 bytes
    strip --strip-all -o "$pack/$name" "$program"
    bytes=$(stat --format %s "$pack/$name")
    echo "$name: $((bytes >> 10)) KiB"
    [ "$bytes" -lt $most_bytes ] || { echo "$name is not below 16 MiB" >&2; exit 1; }
}

tests=$(executables test --no-run -p abreast --features cuda --lib --test cuda --test cuda_process --test offsets)
for program in $tests; do
    # cargo appends a hash to the test's name.
    name=$(basename "$program")
    take "$program" "test-${name%-*}"
done
take "$(executables build --release -p abreast-cli --features cuda --bin abreast)" abreast
for name in test-abreast test-cuda test-cuda_process test-offsets abreast; do
    [ -x "$pack/$name" ] || { echo "$name was not built" >&2; exit 1; }
done

cp data/peers/h200.csv "$pack/peers.csv"

cat >"$pack/run.sh" <<'RUN'
#!/usr/bin/env bash
#     run.sh              every test that needs a GPU, and the program's own checks
#     run.sh sanitize     compute-sanitizer's four tools, on a few cases
#     run.sh bench        every operation's figures: a report each, a page and a table; OUT, PEERS and BENCH_SECONDS say where they go, what
#                         they are held against and about how long each takes
#     run.sh sanitize_all the whole suite under them; TOOLS, METHOD and JOBS say which tools, which method and how many at once, KEEP where
#                         the logs are kept
# Ends with 0 where everything ran and nothing was found: what skips itself counts as a failure.
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"
log=$(mktemp)
trap 'rm -f "$log"' EXIT
failures=0

# stage STATUS COMMAND...: the command ends with this status, and skips nothing.
stage() {
    local want=$1 start=$SECONDS status
    shift
    echo "=== $*"
    "$@" 2>&1 | tee "$log"
    status=${PIPESTATUS[0]}
    if [ "$status" != "$want" ] || grep -q SKIPPED "$log"; then
        echo "=== FAILED with status $status, or skipped: $*"
        failures=$((failures + 1))
    fi
    echo "=== $((SECONDS - start)) s"
}

everything() {
    stage 0 ./abreast info
    stage 0 ./test-abreast backend::cuda --nocapture
    stage 0 ./test-cuda --nocapture
    stage 0 ./test-cuda --ignored --nocapture
    stage 0 ./test-offsets --nocapture gpu
    stage 0 ./test-cuda_process --nocapture
    local method
    for method in reference fast; do
        stage 0 ./abreast verify --backend cuda --method $method
        stage 0 ./abreast replay --backend cuda --method $method
    done
}

figures() {
    local to=$1
    shift
    ./abreast bench --backend cuda --seconds "${BENCH_SECONDS-0.01}" --json "$@" >"$to"
}

# A report for each method and operation: what is measured stays if a later one fails.
bench() {
    local out=${OUT-bench} peers=${PEERS-peers.csv} op method
    mkdir -p "$out"
    # What nobody has tuned comes last.
    for method in fast reference; do
        for op in sparse_attention index_scores select_keys top_k compress gather_rows step; do
            case $op-$method in top_k-reference | compress-reference | gather_rows-reference | step-reference) continue ;; esac
            stage 0 figures "$out/$method-$op.json" --method $method --op "$op " --peers "$peers"
        done
    done
    for method in fast reference; do
        stage 0 ./abreast report "$out/$method"-*.json --peers "$peers" -o "$out/$method.html"
        stage 0 ./abreast report "$out/$method"-*.json --peers "$peers" --markdown
        cp "$log" "$out/$method.md"
    done
}

found=9
check=()
find_sanitizer() {
    local program
    program=$(command -v compute-sanitizer || echo /usr/local/cuda/bin/compute-sanitizer)
    [ -x "$program" ] || { echo "no compute-sanitizer" >&2; exit 1; }
    check=("$program" --error-exitcode "$found")
}

sanitize() {
    find_sanitizer
    # A read of no memory is planted there: a tool that does not find it finds nothing.
    stage $found "${check[@]}" --tool memcheck ./test-cuda_process --exact cuda_process::failure::faults --ignored
    stage 0 "${check[@]}" --tool memcheck --padding 256 --track-stream-ordered-races all ./abreast verify --backend cuda --method fast --filter /r7/
    stage 0 env ABREAST_TEST_OPENINGS=5 "${check[@]}" --tool memcheck --leak-check full \
        ./test-cuda_process --exact cuda_process::memory::opens_and_drops --ignored
    # Each of these tools, too, first on a kernel that it must not pass.
    stage $found "${check[@]}" --tool racecheck ./test-abreast planted_race --ignored
    stage $found "${check[@]}" --tool initcheck ./test-abreast planted_uninitialised --ignored
    stage $found "${check[@]}" --tool synccheck ./test-abreast planted_divergence --ignored
    for tool in racecheck initcheck synccheck; do
        for method in reference fast; do
            stage 0 "${check[@]}" --tool "$tool" ./abreast verify --backend cuda --method $method --filter /r7/
        done
    done
}

# The suite, briefly, under each of TOOLS, by METHOD, piece by piece, JOBS at a time on each GPU: minutes. What is in the folder KEEP as clean from an
# earlier run is left out, so that a run that was cut short can be taken up.
sanitize_all() {
    local keep tool piece log gpus slots=0 method=${METHOD-reference}
    find_sanitizer
    keep=${KEEP-$(mktemp -d)}
    mkdir -p "$keep"
    IFS=, read -ra gpus <<<"${CUDA_VISIBLE_DEVICES-$(nvidia-smi --query-gpu=index --format=csv,noheader | paste -sd,)}"
    # Of the others, both methods are the same kernels.
    local of='.'
    [ "$method" = reference ] || of='^(sparse_attention|index_scores|select_keys|steps)/'
    ./abreast verify --brief --method "$method" --list | cut -d / -f 1,2 | grep -E "$of" | sort -u >"$keep/pieces"
    for tool in ${TOOLS-memcheck racecheck initcheck synccheck}; do
        for piece in $(sort -r "$keep/pieces"); do
            log=$keep/$tool-$method-${piece//\//-}
            [ ! -e "$log.clean" ] || continue
            while [ "$(jobs -rp | wc -l)" -ge $((${JOBS-6} * ${#gpus[@]})) ]; do wait -n; done
            (
                start=$SECONDS
                export CUDA_VISIBLE_DEVICES=${gpus[slots % ${#gpus[@]}]}
                "${check[@]}" --tool "$tool" ./abreast verify --brief --backend cuda --method "$method" --filter "$piece/" >"$log.running" 2>&1
                status=$?
                echo "$tool $piece: status $status, $((SECONDS - start)) s"
                [ $status = 0 ] && mv "$log.running" "$log.clean" || mv "$log.running" "$log.failed"
            ) &
            slots=$((slots + 1))
        done
    done
    wait
    failures=$(find "$keep" -name '*.failed' | wc -l)
    find "$keep" -name '*.failed' -exec tail -n 20 {} +
    echo "$(find "$keep" -name '*.clean' | wc -l) pieces clean, of $(wc -l <"$keep/pieces") a tool"
}

case ${1-everything} in
everything | bench | sanitize | sanitize_all) "${1-everything}" ;;
*) echo "usage: run.sh [bench | sanitize | sanitize_all]" >&2; exit 2 ;;
esac
echo "$failures stages failed"
[ "$failures" = 0 ]
RUN
chmod +x "$pack/run.sh"
tar czf "$pack.tar.gz" -C target gpu-pack
echo "$pack.tar.gz: $(($(stat --format %s "$pack.tar.gz") >> 10)) KiB"
