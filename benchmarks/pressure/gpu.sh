#!/bin/bash
# Pressure on one GPU, in slices:  gpu.sh OUT_DIR COMMIT [SECONDS] [fa3|triton] [further arguments of run.py]
# Rows go to OUT_DIR/pressure.jsonl. SECONDS (default 400) bounds the measuring; starting two engines and
# warming them up takes about 90 s more. All cells take about 15 minutes: `--forecasts none wrong` and
# `--forecasts huge endless` are two slices.
set -u
out=${1:?folder}; export COMMIT=${2:?commit}; seconds=${3:-400}; attention=${4:-fa3}
shift $(($# < 4 ? $# : 4))
here=$(cd "$(dirname "$0")" && pwd)
timeout $((seconds + 180)) python3 "$here/run.py" --shape qwen2.5-7b --attention "$attention" \
  --budget-seconds "$seconds" --out "$out/pressure.jsonl" "$@" 2>"$out/pressure-$attention.log"
code=$?
[ $code = 0 ] || tail -40 "$out/pressure-$attention.log"
exit $code
