#!/usr/bin/env bats
# shellcheck disable=SC2154 # variables of bats
# A run beside a frozen model resumes bit for bit, and not beside other weights.

setup() {
    load ../tools/helper
    work=$(workplace)
    cd "$work" || return 1
    golden=$BATS_TEST_DIRNAME/../golden/preference
    cp -r "$golden/student" "$golden/teacher" . && chmod -R u+w student teacher
    d9d-shard -q --format preference --template "$golden/chat.jinja" -o pairs \
        -t "$BATS_TEST_DIRNAME/../../examples/tokenizer/tokenizer.json" "$golden/pairs.jsonl"
    cat >run.json <<'JSON'
{"data": {"dataset": "pairs", "order": "shuffled", "epochs": null},
 "task": {"name": "preference", "reference": {"checkpoint": "teacher"}}, "metrics": [{"name": "rewards"}],
 "model_provider": {"name": "auto", "hf_config": "student", "dtype": "float32"},
 "trainer": {"run": {"name": "run", "dir": "run", "steps": 6}, "batching": {"global_batch_size": 4, "microbatch_size": 2},
   "checkpointing": {"period_steps": 2, "num_to_keep": 10}, "model_stage_factory": {"source_checkpoint": "student"}},
 "optimizer": {"name": "adamw", "lr": 1e-3}}
JSON
}
teardown() { cd / && rm -rf "$work"; }
train() { d9d-train -q --device "${D9D_TEST_DEVICE:-cpu}" "$@" run.json; }

# cut DIR: what is left of run/ as it was after step 4.
cut_off() {
    cp -r run "$1"
    rm -rf "$1/export" "$1/checkpoints/step-00000006"
}

@test "a run that goes on has the bits of one that did not stop" {
    train
    cut_off again
    train --set trainer.run.dir=again
    cmp run/export/model.safetensors again/export/model.safetensors
    manifest=run/checkpoints/step-00000004/manifest.json
    [ "$(jq -r '.reference | length' $manifest)" -eq 32 ]
    run jq -e '[.tensors[].name | select(test("reference|frozen|teacher"))] | length == 0' $manifest
    [ "$status" -eq 0 ]
}

@test "a frozen model that was replaced is refused" {
    train
    cut_off again
    cp student/model.safetensors teacher/model.safetensors
    run -2 train --set trainer.run.dir=again
    [[ "$output" == *'was trained beside other weights than teacher has now'* ]]
    # Another path is a choice.
    cut_off other
    train --set trainer.run.dir=other --set 'task.reference={"checkpoint": "student"}'
}
