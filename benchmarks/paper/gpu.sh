#!/bin/bash
# One slice on a GPU:  gpu.sh OUT_DIR COMMIT SECONDS cascade|workflows|load|sjf|overhead [arguments of its run.py]
# Rows go to OUT_DIR/paper_*.jsonl, which begin as the rows that the repository has, and are appended cell by cell.
# SECONDS bounds the whole call, starting the engines included: no cell starts that would end later, and after 30 s
# more all is ended. What is printed goes to OUT_DIR/EXPERIMENT-TIME.out, .log, and the engines' logs to .engines.
set -u
out=${1:?folder}; export COMMIT=${2:?commit}; seconds=${3:?seconds}; experiment=${4:?experiment}; shift 4
here=$(cd "$(dirname "$0")" && pwd)
rows=paper_$experiment.jsonl
name=$out/$experiment-$(date +%H%M%S)
mkdir -p "$out"
[ -s "$out/$rows" ] || cp "$here/../results/$rows" "$out/$rows" 2>/dev/null
export FLASHAGENTS_ENGINE_LOG=$name.engines
python3 "$here/bounded.py" $((seconds + 30)) python3 "$here/$experiment/run.py" "$@" \
  --budget-seconds "$seconds" --out "$out/$rows" >"$name.out" 2>"$name.log" </dev/null
code=$?
tail -30 "$name.out"
[ $code = 0 ] || tail -40 "$name.log"
exit $code
