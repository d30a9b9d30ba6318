#!/usr/bin/env bash
# Model-checks the concurrent part of ork-cache and fails when a model is missing or ran nothing:
# under a plain `cargo test` they are not compiled.
set -euo pipefail
cd "$(dirname "$0")/.."
models=19
out=$(RUSTFLAGS="--cfg loom" CARGO_TARGET_DIR=target/loom \
    cargo test --release -p ork-cache --lib loom -- --nocapture 2>&1) || { echo "$out"; exit 1; }
grep '^loom: ' <<<"$out"
ran=$(grep -cE '^loom: .*: [1-9][0-9]* iterations' <<<"$out")
[ "$ran" -eq "$models" ] || { echo "loom: $ran of $models models ran"; exit 1; }
