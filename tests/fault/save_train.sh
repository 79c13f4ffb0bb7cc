#!/bin/bash
# save_train.sh - the tests of interrupted saves with d9d-train and a small MoE model.  A run takes
# a while, so only some calls are tried; with D9D_LONG, many.
set -u
cd "$(dirname "$0")/../.." || exit 1
bin=${D9D_BIN:-$PWD/build/bin}
here=$PWD
setup=$(mktemp -d "${TMPDIR:-/tmp}/d9d-train-XXXXXX") || exit 1
trap 'rm -rf "$setup"' EXIT
export OMP_NUM_THREADS=1 # affects time only: sums have a fixed order

# A dataset, a model of random weights, and the runner.
prepare() {
    seq 1 60 | awk '{ printf "{\"text\": \"%d and %d make %d\"}\n", $1, 7 * $1, 8 * $1 }' >"$setup/in.jsonl" &&
        "$bin/d9d-shard" -q -t examples/tokenizer/tokenizer.json --pack 16 -o "$setup/data" "$setup/in.jsonl" &&
        sed 's/"vocab_size": [0-9]*/"vocab_size": 2048/' tests/golden/moe/config.json >"$setup/model.json" &&
        "$bin/d9d-map" init -q --model "$setup/model.json" --seed 1 "$setup/init" || return
    cat >"$setup/config.json" <<EOT
{"data": {"dataset": "$setup/data", "order": "shuffled", "seed": 3},
 "model_provider": {"name": "qwen3_moe", "hf_config": "$setup/init/config.json", "dtype": "float32"},
 "trainer": {"run": {"name": "interrupted", "dir": "unset"},
             "batching": {"global_batch_size": 4, "microbatch_size": 2},
             "model_stage_factory": {"source_checkpoint": "$setup/init"},
             "checkpointing": {"period_steps": 1, "num_to_keep": 2},
             "gradient_clipping": {"max_norm": 1.0}},
 "optimizer": {"name": "adamw", "lr": 0.001},
 "lr_scheduler": {"name": "piecewise", "scheduler": {"initial_multiplier": 1.0,
   "phases": [{"mode": "rest", "target_multiplier": 1.0, "curve": {"type": "linear"}}]}}}
EOT
    cat >"$setup/run" <<EOT
#!/bin/bash
exec "$bin/d9d-train" -q -d cpu "$setup/config.json" --set "trainer.run.dir=\$1" \\
    --set "trainer.run.steps=\$2" --set "export_to=\$1/export-\$2"
EOT
    chmod +x "$setup/run"
}

if ! prepare >"$setup/log" 2>&1; then
    echo "not ok 1 - a run to interrupt: $(tail -n 1 "$setup/log")"
    exit 1
fi
failed=0
plan="save_kill:20 save_full:5" # test:stride
[ -z "${D9D_LONG:-}" ] || plan="save_kill:3 save_full:1"
for test in ${SAVE_PLAN:-$plan}; do
    SAVE_RUNNER=$setup/run SAVE_UNTIL=/export- SAVE_STRIDE=${test#*:} "$here/tests/fault/${test%:*}.sh" >"$setup/out" || failed=1
    sed '/^1\.\./d; s/^\(not ok\|ok\) [0-9]* - /\1 - d9d-train: /' "$setup/out"
done
exit $failed
