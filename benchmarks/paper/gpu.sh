#!/bin/bash
# One slice on a GPU:  gpu.sh OUT_DIR COMMIT SECONDS cascade|workflows|load [arguments of its run.py]
# Rows go to OUT_DIR/paper_*.jsonl, which begin as the rows that the repository has. SECONDS bounds the
# measuring; the engines take about two minutes to come up.
set -u
out=${1:?folder}; export COMMIT=${2:?commit}; seconds=${3:?seconds}; experiment=${4:?experiment}; shift 4
here=$(cd "$(dirname "$0")" && pwd)
rows=paper_$experiment.jsonl
[ -s "$out/$rows" ] || cp "$here/../results/$rows" "$out/$rows" 2>/dev/null
timeout -k 20 $((seconds + 200)) python3 "$here/$experiment/run.py" "$@" --budget-seconds "$seconds" \
  --out "$out/$rows" >"$out/$experiment.out" 2>"$out/$experiment.log" </dev/null
code=$?
tail -30 "$out/$experiment.out"
[ $code = 0 ] || tail -40 "$out/$experiment.log"
exit $code
