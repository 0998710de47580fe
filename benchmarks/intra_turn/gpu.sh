#!/bin/bash
# All of the benchmark on one GPU, in about 7 minutes:  gpu.sh OUT_DIR COMMIT [SECONDS_FOR_THE_GRID]
# The second log-prob check runs beside the start of the large engine.
set -u
out=${1:?folder}; commit=${2:?commit}; seconds=${3:-200}
here=$(cd "$(dirname "$0")" && pwd)
device=$(nvidia-smi --query-gpu=name --format=csv,noheader | head -1)
common="--device=$device"
run=$(date +%Y%m%d-%H%M%S)
exact() { python3 "$here/exact.py" --attention "$1" "$common" --commit "$commit" --run "$run-exact" \
  --families 3 --out "$out/exact-$1.jsonl" >"$out/exact-$1.log" 2>&1; tail -3 "$out/exact-$1.log"; }
exact fa3
exact triton &
timeout $((seconds + 80)) python3 "$here/run.py" --attention fa3 "$common" --commit "$commit" --run "$run" \
  --seconds "$seconds" --out "$out/fa3.jsonl" 2>"$out/fa3.log"
wait
[ -s "$out/fa3.jsonl" ] || tail -20 "$out/fa3.log"
timeout 110 python3 "$here/run.py" --attention triton "$common" --commit "$commit" --run "$run" \
  --seconds 40 --parts staggered,grid --out "$out/triton.jsonl" 2>"$out/triton.log"
[ -s "$out/triton.jsonl" ] || tail -20 "$out/triton.log"
true
