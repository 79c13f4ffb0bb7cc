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
}

@test "a frozen model at another path is the same if its weights are" {
    train
    cp -r teacher elsewhere
    cut_off moved
    run -0 --separate-stderr train --set trainer.run.dir=moved --set 'task.reference={"checkpoint": "elsewhere"}'
    [ -z "$stderr" ]
    cmp run/export/model.safetensors moved/export/model.safetensors
    cut_off other
    run -2 train --set trainer.run.dir=other --set 'task.reference={"checkpoint": "student"}'
    [[ "$output" =~ 'was trained beside other weights than student has now: their identity was '([0-9a-f]{32})' and is '([0-9a-f]{32})';' ]]
    [ "${BASH_REMATCH[1]}" != "${BASH_REMATCH[2]}" ]
    # "start" of a source is its weights, and without one no weights that a checkpoint knows.
    run -2 train --set trainer.run.dir=other --set task.reference=start
    [[ "$output" == *'was trained beside other weights than student has now'* ]]
    run -2 train --set trainer.run.dir=other --set task.reference=start --set trainer.model_stage_factory.source_checkpoint=null
    [[ "$output" == *"was trained beside other weights than the model's start has now"* ]]
}

@test "\"start\" without adapters is held to the reference that a checkpoint names" {
    lora=(--set 'peft={"kind": "lora", "module_name_pattern": ".*q_proj", "params": {"r": 2, "alpha": 4}}')
    train "${lora[@]}"
    cut_off other
    run -2 train "${lora[@]}" --set trainer.run.dir=other --set task.reference=start
    [[ "$output" == *'was trained beside other weights than student has now'* ]]
    rm -rf run
    train "${lora[@]}" --set 'task.reference={"checkpoint": "student"}'
    cut_off same
    train "${lora[@]}" --set trainer.run.dir=same --set task.reference=start
    # One that was trained beside "start" names nothing, and goes on with its own base.
    rm -rf run
    train "${lora[@]}" --set task.reference=start
    [ "$(jq -r .reference run/checkpoints/step-00000004/manifest.json)" = null ]
    cut_off own
    run -0 --separate-stderr train "${lora[@]}" --set trainer.run.dir=own --set task.reference=start
    [ -z "$stderr" ]
    # The base is in its checkpoints, and may be gone.
    rm -rf run own && cp -r student base
    train "${lora[@]}" --set task.reference=start --set trainer.model_stage_factory.source_checkpoint=base
    cut_off own
    rm -rf base
    run -0 --separate-stderr train "${lora[@]}" --set trainer.run.dir=own --set task.reference=start --set trainer.model_stage_factory.source_checkpoint=base
}
