#!/bin/bash
# The soak on one GPU, in slices:  soak_gpu.sh OUT_DIR COMMIT [SECONDS] [further arguments of scripts/soak.py]
# Random mixed workflows on the default model, its pool too small for them, with integrity checks; appends a
# line to OUT_DIR/soak.jsonl. A further call goes on with the next round (its state is in .cache/soak.json).
set -u
out=${1:?folder}; export COMMIT=${2:?commit}; seconds=${3:-450}
shift $(($# < 3 ? $# : 3))
root=$(cd "$(dirname "$0")/../.." && pwd)
cd "$root" || exit 1
timeout $((seconds + 140)) python3 scripts/soak.py --engine embedded --max-total-tokens 8192 --workflows 24 \
  --seconds "$seconds" --resume --out "$out/soak.jsonl" "$@" 2>"$out/soak.log"
code=$?
[ $code = 0 ] || tail -40 "$out/soak.log"
exit $code
