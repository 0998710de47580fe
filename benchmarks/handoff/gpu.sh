#!/bin/bash
# The hand-off on one GPU, in slices:  gpu.sh OUT_DIR COMMIT [SECONDS] [fa3|triton] [further arguments of run.py]
# Rows go to OUT_DIR/handoff.jsonl; rows of earlier slices in benchmarks/results/handoff.jsonl are not
# measured again. SECONDS (default 400) bounds the measuring; starting and warming up take about 60 s more.
set -u
out=${1:?folder}; export COMMIT=${2:?commit}; seconds=${3:-400}; attention=${4:-fa3}
shift $(($# < 4 ? $# : 4))
here=$(cd "$(dirname "$0")" && pwd)
known=$here/../results/handoff.jsonl
[ -s "$out/handoff.jsonl" ] || cp "$known" "$out/handoff.jsonl" 2>/dev/null
timeout $((seconds + 150)) python3 "$here/run.py" --shape qwen2.5-7b --attention "$attention" \
  --budget-seconds "$seconds" --out "$out/handoff.jsonl" "$@" 2>"$out/handoff-$attention.log"
code=$?
[ $code = 0 ] || tail -40 "$out/handoff-$attention.log"
exit $code
