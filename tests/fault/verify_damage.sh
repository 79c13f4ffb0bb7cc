#!/bin/bash
# verify_damage.sh - d9d-map verify finds a changed byte, a cut, a longer, a missing, an added and
# an exchanged file, anywhere in each kind of directory that the tools write, and nothing else.
# A thousand times; with D9D_LONG, 10,000.  D9D_SEED selects others.
set -eu
cd "$(dirname "$0")/../.."
driver=$(realpath "${D9D_BUILD:-build}/tests/fault/verify_driver") golden=$PWD/tests/golden
export PATH=${D9D_BIN:-$PWD/build/bin}:$PATH OMP_NUM_THREADS=1
work=$(mktemp -d "${TMPDIR:-/dev/shm}/d9d-verify-XXXXXX" 2>/dev/null || mktemp -d /tmp/d9d-verify-XXXXXX)
trap 'rm -rf "$work"' EXIT
cd "$work"

cp -R "$golden/moe" moe
cp "$golden/../../examples/tokenizer/tokenizer.json" moe
mkdir moe/1_Pooling
echo '{"pooling": "mean"}' >moe/1_Pooling/config.json
d9d-map -q moe d9d
[ -s d9d/1_Pooling/config.json ]
d9d-map -q --shard-size 40kB "$golden/moe" d9d-shards
d9d-map -q --to hf moe hf
d9d-map -q --to hf --shard-size 40kB "$golden/moe_fused" hf-shards
d9d-map init -q --model "$golden/dense_tied/config.json" --shard-size 20kB random
d9d-shard -q --format tokens --out data "$golden/moe/train.jsonl"
cat >c.json <<JSON
{"data": {"dataset": "data"},
 "model_provider": {"name": "qwen3_moe", "hf_config": "$golden/moe/config.json"},
 "trainer": {"run": {"name": "small", "dir": "run", "steps": 2},
   "batching": {"global_batch_size": 4, "microbatch_size": 2},
   "checkpointing": {"period_steps": 2}},
 "optimizer": {"name": "adamw", "lr": 1e-3}}
JSON
d9d-train -q c.json
dirs=(d9d d9d-shards hf hf-shards random run/checkpoints/step-00000002 run/export)
"$driver" "${D9D_SEED:-1}" "$([ -n "${D9D_LONG:-}" ] && echo 1429 || echo 150)" "${dirs[@]}"
