#!/usr/bin/env bash
# Runs public programs for this NPU under the preload library and prints the table of docs/programs.md.
#
#   programs.sh LIBRARY FOLDER
#
# FOLDER holds each project under its name, with its programs as its author builds them; what is not there
# is left out, with a line on standard error. A run is right when the program, which checks itself, says so
# and nothing was wrong or not modelled.
set -uo pipefail
library=$(realpath "$1") folder=$(realpath "$2")
report=$(mktemp) output=$(mktemp)
trap 'rm -f "$report" "$output"' EXIT
export RKNPU_SIM_REPORT=$report RKNPU_SIM_CLOCK=virtual RKNPU_SIM_TIMING=none RKNPU_SIM_EXIT=99

echo '| program | what | shapes | right | stops with |'
echo '|---|---|---|---|---|'

# row DRIVER PROJECT PROGRAM WHAT: one line of the table; argument lists come on standard input.
row() {
    local driver=$1 project=$2 program=$3 what=$4 runs=0 right=0 reason='' command
    local path=$folder/$project/$program
    [ -e "$path" ] || { echo "$project: no $program" >&2; return; }
    while read -r arguments; do
        command=("$path")
        case $path in *.py) command=(python3 "$path") ;; esac
        : >"$report"
        # shellcheck disable=SC2086
        (cd "$(dirname "$path")" && LD_PRELOAD=$library RKNPU_SIM_DRIVER=$driver \
            timeout 300 "${command[@]}" $arguments) >"$output" 2>&1 </dev/null
        local status=$?
        runs=$((runs + 1))
        if [ $status = 0 ] && ! grep -qE '\bFAIL|mismatch' "$output"; then
            right=$((right + 1))
        elif [ -z "$reason" ]; then
            reason=$(grep -m1 -oE '(wrong|not modelled): .*' "$report" | sed 's/ (1 times)$//; s/program at IOVA [^ ]*: //')
            [ -n "$reason" ] || reason="status $status: $(tail -n 1 "$output" | tr -d '|' | cut -c1-100)"
            reason="${arguments:+\`$arguments\`: }$reason"
        fi
    done
    echo "| $project: \`$(basename "$program")\` | $what | $runs | $right | ${reason:-nothing} |"
}

# Sizes that the author's checks allow, thinned out: columns at least, bytes of an element, rows at most.
shapes() {
    local m k n
    for m in 1 4 8 36 128 $3; do for k in 32 96 512 2048 4096; do for n in $1 256 1024; do
        # Rows and one channel's weights must fit into the buffer of a core.
        [ $((m * k * $2)) -le $((11 * 32768)) ] && [ $((32 * k / 1024 + (m * k * $2 + 32767) / 1024)) -le 384 ] &&
            echo "$m $k $n"
    done; done; done
}

shapes 32 1 544 | row rknpu mtx512/rk3588-npu matmul_int8 'int8 to int32, planes'
shapes 16 2 384 | row rknpu mtx512/rk3588-npu matmul_fp16 'fp16 to fp32, planes'
shapes 16 2 384 | row rknpu mtx512/rk3588-npu matmul_fp16_fp16 'fp16 to fp16, planes'
echo | row rknpu mtx512/rk3588-npu matmul_4_36_16 'fp16, K of 36'
echo | row rknpu allbilly/rk3588 examples/simple_add.py 'halves added: 14 commands'
printf '%s\n' ADD MUL SUB MAX NEG FDIV 'ALL --out fp32' |
    row rknpu allbilly/rk3588 examples/elementwise.py 'halves, 10 lengths each, chains'
printf '%s\n' '' '--out fp16' | row rknpu allbilly/rk3588 examples/gemm.py 'fp16, row-major: 44 commands'
echo | row rknpu allbilly/rk3588 experimental/gemm_int8.py 'int8, 5 shapes'
echo | row rknpu allbilly/rk3588 experimental/gemm_int16.py 'int16, 5 shapes'
printf '%s\n' '--op min' '--op max' '--op avg' | row rknpu allbilly/rk3588 experimental/pool.py 'pooling'
echo conv2d_b1_c16_h18_w18_oc16_wic16_k3x3_g1 |
    row rknpu allbilly/rk3588 examples/conv_simple.py 'convolution, 3 by 3'
for type in fp16 int8 int4 bf16 tf32 int16; do
    for shape in '1 64 64' '4 64 64' '16 512 128' '130 1024 256' '64 3072 96'; do echo "$shape tiled $type"; done |
        row rocket gregordinary/rocket-userspace build/matmul_correctness_matrix_rocket "$type, tiled"
done
for type in fp16 int8 int4; do
    for shape in '4 64 64' '16 512 128' '130 1024 256'; do echo "$shape prepacked $type"; done |
        row rocket gregordinary/rocket-userspace build/matmul_correctness_matrix_rocket "$type, packed before"
done
