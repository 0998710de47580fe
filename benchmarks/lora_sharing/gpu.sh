#!/bin/bash
# One slice on a GPU:  gpu.sh OUT_DIR COMMIT SECONDS GROUP[,GROUP] [further arguments of run.py]
# Rows go to OUT_DIR/lora_sharing.jsonl, which begins as the rows that the repository has, cell by cell.
# SECONDS bounds the whole call, starting the engines included: no cell starts that would end later, and after 30 s
# more all is ended. What is printed goes to OUT_DIR/lora_sharing-TIME.out, .log, and the engines' logs to .engines.
set -u
out=${1:?folder}; export COMMIT=${2:?commit}; seconds=${3:?seconds}; groups=${4:?groups}; shift 4
here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../.." && pwd)
export PYTHONPATH=$root/runtime:$root/kernels:$root${PYTHONPATH:+:$PYTHONPATH}
rows=lora_sharing.jsonl
name=$out/lora_sharing-$(date +%H%M%S)
mkdir -p "$out"
[ -s "$out/$rows" ] || cp "$here/../results/$rows" "$out/$rows" 2>/dev/null
export FLASHAGENTS_ENGINE_LOG=$name.engines
python3 "$here/../paper/bounded.py" $((seconds + 30)) python3 "$here/run.py" --group "$groups" "$@" \
  --budget-seconds "$seconds" --out "$out/$rows" >"$name.out" 2>"$name.log" </dev/null
code=$?
tail -30 "$name.out"
grep "up after" "$name.log"
[ $code = 0 ] || { tail -40 "$name.log"; grep -iE "error|out of memory" "$name.engines" | tail -20; }
exit $code
