#!/usr/bin/env bash
# Judges the library with an unmodified llama.cpp, on the simulator.
#
#   bash ggml-ork/judge.sh LIBRARY [prebuilt]
#
# ORK_JUDGE_PRELOAD names librknpu_sim_preload.so, and ORK_JUDGE_LIBC this library built with
# RUSTFLAGS="--cfg rustix_use_libc", which calls a driver by the C library: with both, an NPU is wedged in the middle.
# llama.cpp comes from npm: node-llama-cpp has libraries that are built already, and carries the whole tree, with
# tests, which is built once, into ORK_LLAMA_DIR (~/.cache/ork-llama). With `prebuilt` nothing is built: the same text
# in every way, by the libraries alone. Needs npm, node, git, a C++ compiler, cmake and ninja (else pip's), and the
# models that ORK_TEST_SMOLLM2 and ORK_TEST_GEMMA name. Exit code 77: something of these is missing.
set -euo pipefail
library=$(realpath "$1")
version=3.22.1
dir=${ORK_LLAMA_DIR:-$HOME/.cache/ork-llama}/$version
work=$(mktemp -d)
server=
boards=()
trap '[ -z "$server" ] || kill "$server" 2>/dev/null; kill "${boards[@]}" 2>/dev/null || true; rm -rf "$work"' EXIT
tools=(test-backend-ops llama-completion llama-bench llama-server llama-perplexity llama-quantize ggml-rpc-server)

lacking() { echo "left out: $1"; exit 77; }
for model in "${ORK_TEST_SMOLLM2:-}" "${ORK_TEST_GEMMA:-}"; do
    [ -f "$model" ] || lacking "no model: ORK_TEST_SMOLLM2 and ORK_TEST_GEMMA name GGUF files"
done

part() { printf -- '--- %s (%d s)\n' "$1" $SECONDS; }
fail() { echo "FAILED: $1"; exit 1; }

prompts=(
    "The capital of France is Paris. The capital of Germany is Berlin. The capital of Italy is Rome. The capital of Spain is Madrid. The capital of Portugal is"
    "Once upon a time there was a small dog who lived in a red house near the river with an old man and his cat. Every morning the dog went to the market to buy bread. One day"
    "To make a good cup of tea, first boil fresh water in a kettle. Then warm the pot, put in one spoon of leaves for each person and one for the pot, pour the water on, and"
)

export ORK_DEVICE=sim ORK_LOG=1

# node_text MODEL PROMPT [VARIABLE=VALUE…]: what Node's libraries write, and on $work/log what was said.
node_text() {
    local model=$1 prompt=$2
    shift 2
    env -u LD_LIBRARY_PATH GGML_BACKEND_PATH="$library" "$@" node "$dir/node/run.mjs" "$model" "$prompt" \
        2>"$work/log" || { tail -n 5 "$work/log"; fail "node"; }
}

# prebuilt MODEL…: the same text in every way, by the libraries that node-llama-cpp has built.
prebuilt() {
    local model pack tool
    for tool in npm node; do command -v $tool >/dev/null || { echo "left out: no $tool"; return; }; done
    mkdir -p "$dir/node"
    [ -d "$dir/node/node_modules" ] || (cd "$dir/node" && npm install --silent --no-audit --no-fund \
        --ignore-scripts "node-llama-cpp@$version" >/dev/null) || lacking "npm does not answer"
    cat >"$dir/node/run.mjs" <<'SCRIPT'
import {getLlama, LlamaCompletion} from "node-llama-cpp";
const llama = await getLlama({gpu: false, build: "never", logLevel: "warn"});
const model = await llama.loadModel({modelPath: process.argv[2]});
const context = await model.createContext({contextSize: 512});
const completion = new LlamaCompletion({contextSequence: context.getSequence()});
console.log(await completion.generateCompletion(process.argv[3], {maxTokens: 12, temperature: 0}));
await context.dispose();
await model.dispose();
SCRIPT
    for model in "$@"; do
        part "prebuilt libraries: $(basename "$model")"
        pack=$work/node-$(basename "$model").orkpack
        node_text "$model" "${prompts[0]}" >"$work/wanted"
        grep 'ork: .* products of' "$work/log" || fail "nothing was computed by the library"
        grep Lisbon "$work/wanted" || fail "the text makes no sense"
        # Packed on the way and streamed; then from the pack, resident.
        node_text "$model" "${prompts[0]}" ORK_WCACHE_BUDGET_MB=60 ORK_PERSIST="$pack" >"$work/text"
        cmp "$work/text" "$work/wanted" || fail "a small budget changes the text"
        grep -q 'MiB are streamed' "$work/log" || fail "nothing was streamed"
        node_text "$model" "${prompts[0]}" ORK_PERSIST="$pack" >"$work/text"
        cmp "$work/text" "$work/wanted" || fail "a pack changes the text"
        grep -q 'weights are those of' "$work/log" || fail "the pack was not loaded"
    done
}

if [ "${2:-}" = prebuilt ]; then
    command -v npm >/dev/null && command -v node >/dev/null || lacking "no npm, or no node"
    prebuilt "$ORK_TEST_SMOLLM2"
    part "done"
    exit
fi

build() {
    local tool
    for tool in npm git g++; do command -v $tool >/dev/null || lacking "no $tool"; done
    mkdir -p "$dir/npm"
    if ! command -v cmake >/dev/null || ! command -v ninja >/dev/null; then
        pip install --quiet --target "$dir/pip" cmake ninja || lacking "no cmake"
        export PATH=$dir/pip/bin:$PATH PYTHONPATH=$dir/pip
    fi
    if [ ! -d "$dir/src" ]; then
        (cd "$dir/npm" && npm pack --silent "node-llama-cpp@$version" >/dev/null) || lacking "npm does not answer"
        tar -xzf "$dir/npm/node-llama-cpp-$version.tgz" -C "$dir/npm"
        git clone --quiet "$dir/npm/package/llama/gitRelease.bundle" "$dir/src"
    fi
    local cpu=()
    # A backend that is loaded must not be built for this CPU alone, so what every machine of CI has.
    [ "$(uname -m)" != x86_64 ] || cpu=(-DGGML_AVX2=ON -DGGML_FMA=ON -DGGML_F16C=ON -DGGML_BMI2=ON)
    cmake -G Ninja -S "$dir/src" -B "$dir/build" -DCMAKE_BUILD_TYPE=Release -DBUILD_SHARED_LIBS=ON \
        -DGGML_BACKEND_DL=ON -DGGML_RPC=ON -DGGML_NATIVE=OFF "${cpu[@]}" -DLLAMA_CURL=OFF -DLLAMA_OPENSSL=OFF \
        -DLLAMA_BUILD_TESTS=ON -DLLAMA_BUILD_EXAMPLES=OFF -DLLAMA_BUILD_UI=OFF >"$dir/cmake.log"
    ninja -C "$dir/build" "${tools[@]}" >"$dir/ninja.log" || { tail -n 20 "$dir/ninja.log"; exit 1; }
}

for tool in "${tools[@]}"; do
    [ -x "$dir/build/bin/$tool" ] || { build; break; }
done
bin=$dir/build/bin
export GGML_BACKEND_PATH=$library LD_LIBRARY_PATH=$bin


part "the library is loaded"
"$bin/llama-completion" --list-devices 2>/dev/null | grep 'ORK: RK3588 NPU' || fail "not loaded"

# Mixtures of 128 experts are minutes of simulated work each, for the arithmetic of those of 4 and 8.
for op in MUL_MAT: "MUL_MAT_ID:n_mats=[48],"; do
    part "test-backend-ops ${op%%:*}"
    filter=(); [ -z "${op#*:}" ] || filter=(-p "${op#*:}")
    ORK_TAKE_ALL=1 ORK_LOG=0 "$bin/test-backend-ops" test -b ORK -o "${op%%:*}" "${filter[@]}" \
        >"$work/ops" 2>&1 || { grep -a -A 9 'Failing tests' "$work/ops"; fail "$op"; }
    grep -a 'tests passed' "$work/ops"
    echo "not taken: $(grep -a -c 'not supported' "$work/ops" || true)"
done

# text MODEL PROMPT [VARIABLE=VALUE…]: what is written, and on $work/log what was said.
text() {
    local model=$1 prompt=$2
    shift 2
    env "$@" "$bin/llama-completion" -m "$model" -p "$prompt" -n 20 --temp 0 -no-cnv -t 2 \
        </dev/null 2>"$work/log"
}

# Whether a small file system can be had.
mountable() {
    mkdir -p "$work/small"
    unshare -rm mount -t tmpfs -o size=1m tmpfs "$work/small" 2>/dev/null || { echo "left out: no mount namespaces"; false; }
}

# peak MODEL [VARIABLE=VALUE…]: the most memory that a process has had that answers a prompt, in MiB, files it has
# mapped and the simulator's memory of the device included.
peak() {
    local model=$1
    shift
    env "$@" "$bin/llama-completion" -m "$model" -p "${prompts[0]}" -n 8 --temp 0 -no-cnv -t 2 -c 512 \
        </dev/null >/dev/null 2>"$work/log" &
    local most=0 now pid=$!
    while now=$(awk '/^VmHWM/ { print int($2 / 1024) }' /proc/$pid/status 2>/dev/null) && [ -n "$now" ]; do
        most=$now
        sleep 0.02
    done
    wait $pid && echo "$most"
}

# memory MODEL BUDGET: beside what the CPU backend takes alone, an answer takes the weights that are loaded, or what they
# are streamed through, and little more: activations, programs, threads.
memory() {
    local alone with loaded
    alone=$(peak "$1" GGML_BACKEND_PATH='') && with=$(peak "$1" "$2") || return
    loaded=$(sed -n 's/^ork: .* loads of weights, \([0-9]*\) MiB.*/\1/p' "$work/log" | tail -n 1)
    case $2 in *=60) loaded=60 ;; esac
    echo "$2: $with MiB at most, $alone by the CPU backend alone, $loaded of weights on the device"
    [ $((with - alone - loaded)) -le 40 ]
}

for model in "$ORK_TEST_SMOLLM2" "$ORK_TEST_GEMMA"; do
    part "the same text in every way: $(basename "$model")"
    pack=$work/$(basename "$model").orkpack
    for prompt in "${prompts[@]}"; do
        text "$model" "$prompt" >"$work/wanted"
        grep -q 'ork: .* products of' "$work/log" || fail "nothing was computed by the library"
        text "$model" "$prompt" GGML_BACKEND_PATH='' >"$work/cpu"
        cmp -s "$work/wanted" "$work/cpu" && echo "as the CPU's" || echo "otherwise than the CPU's"
        for way in ORK_WCACHE_BUDGET_MB=60 ORK_WCACHE_BUDGET_MB=40 ORK_CORES=1 ORK_DEVICE=sim:rocket \
            ORK_PERSIST="$pack" ORK_PERSIST="$pack"; do
            text "$model" "$prompt" "$way" >"$work/text" || fail "$way"
            cmp "$work/text" "$work/wanted" || fail "$way changes the text"
            case $way in *BUDGET*) grep -q 'MiB are streamed' "$work/log" || fail "$way: nothing was streamed" ;; esac
        done
        grep -q 'weights are those of' "$work/log" || fail "the pack was not loaded"
    done
    # Killed while it packs, then run again.
    rm -f "$pack"
    ORK_PERSIST=$pack timeout -s KILL 1 "$bin/llama-completion" -m "$model" -p "${prompts[0]}" -n 1 -no-cnv \
        </dev/null >/dev/null 2>&1 || true # killed, or done already
    text "$model" "${prompts[2]}" ORK_PERSIST="$pack" >"$work/text"
    cmp "$work/text" "$work/wanted" || fail "a kill changes the text"
    # Weights that no file is behind.
    env "$bin/llama-completion" -m "$model" -p "${prompts[2]}" -n 20 --temp 0 -no-cnv -t 2 --load-mode none \
        </dev/null 2>"$work/log" >"$work/text" || fail "--load-mode none"
    cmp "$work/text" "$work/wanted" || fail "--load-mode none changes the text"
    # A disk that is full while it packs: the NPU goes on without the pack.
    if mountable; then
        unshare -rm bash -c 'mount -t tmpfs -o size=40m tmpfs "$1" && shift && exec "$@"' - "$work/small" \
            env ORK_PERSIST="$work/small/m.orkpack" "$bin/llama-completion" -m "$model" -p "${prompts[2]}" -n 20 \
            --temp 0 -no-cnv -t 2 </dev/null 2>"$work/log" >"$work/text" || fail "a full disk"
        cmp "$work/text" "$work/wanted" || fail "a full disk changes the text"
        [ "$(grep -c 'ork: the pack could not be completed: .*No space' "$work/log")" = 1 ] || fail "a full disk is not said once"
        grep -q 'left to the CPU:' "$work/log" && fail "a full disk takes products from the NPU"
    fi
    # An NPU that is wedged from the middle of the prompt on.
    if [ -f "${ORK_JUDGE_PRELOAD:-}" ] && [ -f "${ORK_JUDGE_LIBC:-}" ]; then
        text "$model" "${prompts[2]}" ORK_DEVICE=auto GGML_BACKEND_PATH="$ORK_JUDGE_LIBC" LD_PRELOAD="$ORK_JUDGE_PRELOAD" \
            RKNPU_SIM_CLOCK=virtual RKNPU_SIM_FAULTS=hang:after=40:times=1000 >"$work/text" || fail "a wedged NPU"
        cmp "$work/text" "$work/wanted" || fail "a wedged NPU changes the text"
        [ "$(grep -c 'ork: the NPU has failed, the CPU goes on' "$work/log")" = 1 ] || fail "a wedged NPU is not said once"
    else
        echo "left out: a wedged NPU (ORK_JUDGE_PRELOAD, ORK_JUDGE_LIBC)"
    fi
    # Weights are in memory once: mapped, which is the system's to take back, and quantised, within the budget.
    for way in ORK_WCACHE_BUDGET_MB=3072 ORK_WCACHE_BUDGET_MB=60; do
        memory "$model" "$way" || fail "$way: a second copy of weights"
    done
    printf '%s\n' damaged >"$work/bad.orkpack"
    text "$model" "${prompts[2]}" ORK_PERSIST="$work/bad.orkpack" >"$work/text"
    grep -q 'left to the CPU' "$work/log" || fail "a damaged pack is not said"
done

part "llama-bench"
"$bin/llama-bench" -m "$ORK_TEST_SMOLLM2" -p 64 -n 4 -r 1 -t 2 2>"$work/log" | grep -a -E 'pp64|tg4' || fail "llama-bench"
grep -q 'ork: .* products of' "$work/log" || fail "llama-bench computed nothing by the library"

part "llama-server: four requests at once, one of them cancelled"
port=$((20000 + $$ % 20000))
"$bin/llama-server" -m "$ORK_TEST_SMOLLM2" --port $port -np 4 -t 2 -c 2048 >"$work/server" 2>&1 &
server=$!
for _ in $(seq 60); do curl -sf "http://127.0.0.1:$port/health" >/dev/null && break; sleep 1; done
ask() {
    curl -s "$@" "http://127.0.0.1:$port/v1/completions" -H 'Content-Type: application/json' \
        -d "{\"prompt\": \"${prompts[0]}\", \"max_tokens\": 8, \"temperature\": 0}"
}
waiting=()
for i in 1 2 3; do ask >"$work/answer$i" & waiting+=($!); done
ask --max-time 0.5 >/dev/null || true
wait "${waiting[@]}"
for i in 1 2 3; do grep -q Lisbon "$work/answer$i" || { cat "$work/answer$i"; fail "request $i"; }; done
ask | grep -q Lisbon || fail "after the cancelled one"
kill "$server"; wait "$server" || true; server=
grep -a 'ork: .* products of' "$work/server" | tail -n 1

part "a draft model, and a verifier that is streamed"
"$bin/llama-quantize" --allow-requantize "$ORK_TEST_SMOLLM2" "$work/large.gguf" f32 >/dev/null 2>&1 || fail "llama-quantize"
# verified BUDGET: what a server writes that verifies 16 drafted tokens at a time.
verified() {
    port=$((port + 1))
    ORK_WCACHE_BUDGET_MB=$1 ORK_MIN_ROWS=8 "$bin/llama-server" -m "$work/large.gguf" -md "$ORK_TEST_SMOLLM2" \
        --port $port -np 1 -t 2 -c 1024 --spec-type draft-simple --spec-draft-n-max 16 --spec-draft-n-min 4 \
        >"$work/server" 2>&1 &
    server=$!
    for _ in $(seq 60); do curl -sf "http://127.0.0.1:$port/health" >/dev/null && break; sleep 1; done
    curl -s "http://127.0.0.1:$port/completion" \
        -d "{\"prompt\": \"${prompts[0]}\", \"n_predict\": 40, \"temperature\": 0}" >"$work/answer"
    kill "$server"; wait "$server" || true; server=
    grep -o '"draft_n_accepted":[0-9]*' "$work/answer" || fail "nothing was drafted"
    sed -n 's/.*"content":"\([^"]*\)".*/\1/p' "$work/answer" >"$work/verified$1"
    [ -s "$work/verified$1" ] || fail "nothing was written"
}
verified 3072
verified 200
grep -qE ', [1-9][0-9]* MiB are streamed' "$work/server" || fail "nothing was streamed"
cmp "$work/verified3072" "$work/verified200" || fail "a small budget changes the text"

part "over two boards: half of the layers each, by llama.cpp's RPC server"
for i in 1 2; do
    ORK_RPC=1 "$bin/ggml-rpc-server" -p $((port + i)) -t 1 >"$work/board$i" 2>&1 &
    boards+=($!)
done
sleep 1
for model in "$ORK_TEST_SMOLLM2" "$ORK_TEST_GEMMA"; do
    text "$model" "${prompts[0]}" >"$work/wanted"
    env GGML_BACKEND_PATH='' "$bin/llama-completion" -m "$model" -p "${prompts[0]}" -n 20 --temp 0 -no-cnv -t 2 \
        --rpc "127.0.0.1:$((port + 1)),127.0.0.1:$((port + 2))" -ngl 99 -ts 1,1 \
        </dev/null 2>"$work/log" >"$work/text" || fail "two boards"
    cmp "$work/text" "$work/wanted" || fail "two boards change the text"
done
kill "${boards[@]}"; wait "${boards[@]}" || true; boards=()
for i in 1 2; do
    [ "$(grep -a -c 'ork: [1-9][0-9]* products of' "$work/board$i")" = 2 ] || fail "board $i computed nothing on its NPU"
    grep -a 'ork: .* products of' "$work/board$i" | tail -n 1
done

prebuilt "$ORK_TEST_SMOLLM2" "$ORK_TEST_GEMMA"

part "made-up mixtures against the CPU backend (mean KL <= 0.006)"
[ -d "$dir/gguf" ] || pip install --quiet --target "$dir/gguf" gguf 2>/dev/null || lacking "no gguf from PyPI"
for architecture in qwen3moe olmoe; do
    mixture=$work/$architecture.gguf
    PYTHONPATH=$dir/gguf python3 "$(dirname "$0")/mixture.py" $architecture "$mixture"
    run() { "$bin/llama-perplexity" -m "$mixture" -f "$(dirname "$0")/../DESIGN.md" -c 512 --chunks 4 -t 2 "$@" 2>&1; }
    GGML_BACKEND_PATH='' run --kl-divergence-base "$work/mixture.kld" >/dev/null || fail "$architecture on the CPU"
    for budget in 3072 4; do
        ORK_WCACHE_BUDGET_MB=$budget run --kl-divergence --kl-divergence-base "$work/mixture.kld" >"$work/kl"
        kl=$(sed -n 's/^Mean *KLD: *\([-0-9.]*\).*/\1/p' "$work/kl")
        echo "$architecture, $budget MiB: KL $kl, first token $(sed -n 's/^Same top p: *\([0-9.]*\).*/\1/p' "$work/kl") %"
        awk -v kl="$kl" 'BEGIN { exit !(kl != "" && kl <= 0.006) }' || fail "not near enough"
        [ $budget = 3072 ] || grep -qE ', [1-9][0-9]* MiB are streamed' "$work/kl" || fail "nothing was streamed"
    done
    # A prompt of one letter: few experts are chosen, and nothing else is loaded.
    text "$mixture" "$(printf 'o%.0s' {1..40})" >/dev/null
    count=$(grep -o '[0-9]* of [0-9]* experts chosen, [0-9]* loads' "$work/log" | tail -n 1)
    echo "$architecture: $count"
    # Beside experts: four matrices of attention in each of three layers, and a head at most.
    awk -v count="$count" 'BEGIN { split(count, n, " "); exit !(n[1] > 0 && n[1] < n[3] / 2 && n[6] <= n[1] + 13) }' ||
        fail "experts that nobody chose were loaded"
done

part "divergence from f32 (mean KL <= 0.006, same first token >= 95.5 %)"
for model in "$ORK_TEST_SMOLLM2" "$ORK_TEST_GEMMA"; do
    base=$dir/$(basename "$model").kld
    run() { "$bin/llama-perplexity" -m "$1" -f "$(dirname "$0")/../DESIGN.md" -c 512 --chunks 4 -t 2 "${@:2}" 2>&1; }
    # A base is of this text: another text, another base.
    base=$base.$(sha256sum <"$(dirname "$0")/../DESIGN.md" | cut -c 1-16)
    if [ ! -f "$base" ]; then
        "$bin/llama-quantize" --allow-requantize "$model" "$work/f32.gguf" f32 >/dev/null 2>&1
        GGML_BACKEND_PATH='' run "$work/f32.gguf" --kl-divergence-base "$base" >/dev/null || fail "f32"
    fi
    for bits in 16 8; do
        ORK_ACTIVATIONS=$bits run "$model" --kl-divergence --kl-divergence-base "$base" >"$work/kl"
        kl=$(sed -n 's/^Mean *KLD: *\([-0-9.]*\).*/\1/p' "$work/kl")
        same=$(sed -n 's/^Same top p: *\([0-9.]*\).*/\1/p' "$work/kl")
        echo "$(basename "$model"), $bits bits: KL $kl, first token $same %"
        [ $bits = 8 ] || awk -v kl="$kl" -v same="$same" 'BEGIN { exit !(kl != "" && kl <= 0.006 && same >= 95.5) }' ||
            fail "not near enough"
    done
done
part "done"
