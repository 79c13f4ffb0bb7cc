#!/usr/bin/env bats
# shellcheck disable=SC2154,SC2030,SC2031 # variables of bats and of the helper
# d9d-train: a run from its configuration to an exported model; stopping, killing, resuming.

load train_bench

# --- what a run leaves ---------------------------------------------------------------------

@test "a run makes its directory: configuration, manifest, metrics, checkpoints, model" {
    run -0 --separate-stderr d9d-train --set trainer.checkpointing.period_steps=8 c.json
    [[ "$output" == "run: 20 of 20 steps, "*", loss "*"; model in run/export" ]]
    run -0 bash -c 'cd run && find . -type f | sort'
    assert_output - <<LIST
./checkpoints/.lock
./checkpoints/.lock-run
./checkpoints/step-00000008/manifest.json
./checkpoints/step-00000008/ranks-00000/manifest.json
./checkpoints/step-00000008/ranks-00000/model-r00000.safetensors
./checkpoints/step-00000008/ranks-00000/optimizer-r00000.safetensors
./checkpoints/step-00000016/manifest.json
./checkpoints/step-00000016/ranks-00000/manifest.json
./checkpoints/step-00000016/ranks-00000/model-r00000.safetensors
./checkpoints/step-00000016/ranks-00000/optimizer-r00000.safetensors
./checkpoints/step-00000020/manifest.json
./checkpoints/step-00000020/ranks-00000/manifest.json
./checkpoints/step-00000020/ranks-00000/model-r00000.safetensors
./checkpoints/step-00000020/ranks-00000/optimizer-r00000.safetensors
./config.json
./export/config.json
./export/generation_config.json
./export/manifest.json
./export/model.safetensors
./manifest.json
./metrics.jsonl
./samples.jsonl
LIST
    grep -q '"schema": "d9d.run.v1"' run/manifest.json
    cmp "$golden/moe/generation_config.json" run/export/generation_config.json
    d9d-map verify -q run/export
}

@test "metrics have their fields, counted from 1, with full precision" {
    number='-?[0-9]+(\.[0-9]+)?(e[-+]?[0-9]+)?'
    d9d-train -q c.json
    [ "$(records run)" = 20 ]
    run grep -vE "^\{\"step\": [0-9]+, \"loss\": $number, \"grad_norm\": $number, \"lr\": 0\.001, \"tokens\": [0-9]+, \"samples\": [0-9]+, \"step_ms\": $number, \"tokens_per_s\": $number, \"data_ms\": $number, \"mem_bytes\": [0-9]+, \"expert_imbalance\": $number, \"expert_entropy\": $number\}\$" run/metrics.jsonl
    [ "${#lines[@]}" -eq 2 ]
    [[ "${lines[0]}" =~ ^'{"save": 20, "blocked_ms": '[0-9.]+', "total_ms": '[0-9.]+', "time": "'.*'Z"}'$ ]]
    [[ "${lines[1]}" == '{"end": "done", "step": 20, "time": "'*'Z"}' ]]
    [ "$(sed -nE 's/^\{"step": ([0-9]+),.*/\1/p' run/metrics.jsonl | tr '\n' ' ')" = "$(seq -s ' ' 20) " ]
    sed -n 1p run/metrics.jsonl | grep -q '"tokens": 36, "samples": 4,'
    sed -n 20p run/metrics.jsonl | grep -q '"samples": 80,'
    sed -n 1p run/metrics.jsonl | grep -qE '"loss": 5\.47758[0-9]{9,}'
}

@test "--json gives the summary; --quiet says nothing; --set overrides" {
    run -0 --separate-stderr d9d-train --json -q --set trainer.run.steps=2 c.json
    [ -z "$stderr" ]
    for part in '"run_dir": "run"' '"first_step": 0' '"steps": 2' '"total_steps": 2' '"tokens": 74' \
        '"samples": 8' '"first_loss": 5.47758' '"last_loss": 5.31' '"export": "run/export"'; do
        [[ "$output" == *"$part"* ]]
    done
    run -0 --separate-stderr d9d-train -q --set trainer.run.dir=other --set trainer.run.steps=1 c.json
    d9d-train -q --set trainer.run.dir=2026 --set trainer.run.name=7 --set trainer.run.steps=1 c.json # digits are a text
    [ -s 2026/metrics.jsonl ]
    [ -z "$output$stderr" ]
    [ -d other/export ]
}

@test "--print-config says the same when it is read again" {
    d9d-train --print-config --set optimizer.lr=0.25 c.json >a.json
    d9d-train --print-config a.json >b.json
    cmp a.json b.json
    grep -q '"lr": 0.25' a.json
    grep -q '"num_to_keep": 0' a.json
    [ ! -e run ]
    d9d-train -q --set trainer.run.steps=1 a.json
    d9d-train -q --print-config run/config.json >/dev/null
    d9d-train --print-schema | grep -q '"d9d.train.v1"'
}

@test "null is no tracker and no evaluation" {
    d9d-train -q --set trainer.run.steps=1 --set trainer.logging.tracker=null --set evaluation=null c.json
    run ! grep valid run/metrics.jsonl
    d9d-train --print-config run/config.json | grep -q '"evaluation": null'
    d9d-train --print-config c.json >left_out.json
    d9d-train --print-config --set lr_scheduler=null c.json | cmp - left_out.json
}

@test "hf_config left out is that of source_checkpoint, for both programs" {
    sed -i 's/, "hf_config": "[^"]*"//' c.json i.json
    run ! grep hf_config c.json i.json
    d9d-train --print-config c.json | grep -qF "\"hf_config\": \"$golden/moe\""
    d9d-infer --print-config i.json | grep -qF "\"hf_config\": \"$golden/moe\""
    d9d-train -q --set trainer.run.steps=2 --set model_provider.name=auto c.json
    d9d-train -q --set trainer.run.steps=2 --set trainer.run.dir=named --set model_provider.hf_config="$golden/moe/config.json" c.json
    same_run run named
    # null is not replaced, and weights without a config.json name no family
    says 2 'c.json: model_provider: give either hf_config or model' d9d-train --set model_provider.hf_config=null c.json
    mkdir bare
    says 2 'bare/config.json: cannot open' d9d-train --set trainer.model_stage_factory.source_checkpoint=bare c.json
    says 2 'needs a config.json, which names the family; left out, it is that of source_checkpoint' \
        d9d-train --set model_provider.name=auto --set trainer.model_stage_factory.source_checkpoint=null c.json
}

@test "periods: records, norms and checkpoints, the last step always" {
    d9d-train -q --set trainer.run.steps=8 --set trainer.logging.period_steps=3 \
        --set trainer.gradient_clipping.log_total_steps=2 --set trainer.checkpointing.period_steps=3 c.json
    [ "$(sed -nE 's/^\{"step": ([0-9]+),.*/\1/p' run/metrics.jsonl | tr '\n' ' ')" = '3 6 8 ' ]
    [ "$(grep -c grad_norm run/metrics.jsonl)" = 2 ]
    [ "$(echo run/checkpoints/*)" = "$(echo run/checkpoints/step-0000000{3,6,8})" ]
    d9d-train -q --set trainer.run.dir=none --set trainer.logging.period_steps=disable \
        --set trainer.checkpointing.period_steps=disable c.json
    [ "$(cut -c 1-27 none/metrics.jsonl)" = '{"end": "done", "step": 20,' ]
    [ -z "$(ls none/checkpoints)" ]
    [ -e none/export/model.safetensors ]
}

@test "lines of progress come when they are asked for, with the time, and the last says where it went" {
    run -0 --separate-stderr env D9D_LOG_TIME=1 d9d-train --set trainer.run.steps=5 --set trainer.logging.line_steps=2 c.json
    stamp='[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}Z d9d-train: '
    [ "$(grep -cE "^$stamp" <<<"$stderr")" = "$(wc -l <<<"$stderr")" ]
    [ "$(grep -oE 'train: [0-9]+ of 5 steps' <<<"$stderr" | tr '\n' ' ')" = 'train: 2 of 5 steps train: 4 of 5 steps ' ]
    grep -E "^${stamp}time: [0-9.]+ s, start [0-9]+ %, steps [0-9]+ % \(waiting for batches [0-9]+ %\), saves [0-9]+ %, export [0-9]+ %$" <<<"$stderr"
    run -0 --separate-stderr env D9D_LOG_TIME=0 d9d-train --set trainer.run.steps=5 --set trainer.run.dir=other c.json
    [[ "$stderr" == d9d-train:* ]]
    [[ "$stderr" != *' of 5 steps'* ]]
}

@test "num_to_keep keeps the newest checkpoints" {
    d9d-train -q --set trainer.checkpointing.period_steps=3 --set trainer.checkpointing.num_to_keep=2 c.json
    [ "$(echo run/checkpoints/*)" = "$(echo run/checkpoints/step-000000{18,20})" ]
}

@test "the model goes where export_to says; the checkpoints where save_dir says" {
    d9d-train -q --set export_to=out/model --set trainer.checkpointing.save_dir=saved --set trainer.run.steps=1 c.json
    [ -e out/model/model.safetensors ]
    [ -d saved/step-00000001 ]
    [ ! -e run/export ]
}

@test "a run does not go on from the checkpoints of another in the same save_dir" {
    one=(--set trainer.checkpointing.save_dir=saved --set trainer.run.steps=1)
    d9d-train -q "${one[@]}" c.json
    run -2 d9d-train -q "${one[@]}" --set trainer.run.name=other --set trainer.run.dir=other c.json
    assert_output --partial 'saved/step-00000001: is of a run with another trainer.run.name than "other"; give this run a trainer.checkpointing.save_dir of its own'
    d9d-train -q --set trainer.run.steps=1 --set trainer.run.dir=here c.json # its own directory may have any name
    rm -r here/export
    run -0 d9d-train -q --set trainer.run.steps=2 --set trainer.run.name=renamed --set trainer.run.dir=here c.json
    cp -r here/checkpoints moved # which say of no run
    run -0 d9d-train -q --set trainer.checkpointing.save_dir=moved --set trainer.run.steps=3 --set trainer.run.dir=there c.json
    [ "$(echo moved/*)" = "$(echo moved/step-0000000{1,2,3})" ]
}

@test "a configuration of another name brings no files along; random weights need no source" {
    mkdir my
    cp "$golden/moe_fused/config.json" my/tiny.json
    touch my/notes.txt
    d9d-train -q --set model_provider.hf_config=my/tiny.json --set trainer.run.steps=2 \
        --set trainer.model_stage_factory.source_checkpoint=null c.json
    [ "$(echo run/export/*)" = 'run/export/config.json run/export/manifest.json run/export/model.safetensors' ]
    d9d-map verify -q run/export
}

@test "clipping scales the update" {
    sgd='{"name": "sgd", "lr": 0.5}'
    d9d-train -q --set "optimizer=$sgd" --set trainer.gradient_clipping.max_norm=null --set trainer.run.steps=3 c.json
    d9d-train -q --set "optimizer=$sgd" --set trainer.gradient_clipping.max_norm=1e9 --set trainer.run.dir=far --set trainer.run.steps=3 c.json
    d9d-train -q --set "optimizer=$sgd" --set trainer.gradient_clipping.max_norm=0.1 --set trainer.run.dir=near --set trainer.run.steps=3 c.json
    same_run run far
    # The first loss and norm are before any update, the second are not.
    [ "$(history_of run | head -n 1)" = "$(history_of near | head -n 1)" ]
    run -1 same_run run near
}

# --- one bit and the other ------------------------------------------------------------------

@test "threads do not matter" {
    OMP_NUM_THREADS=1 d9d-train -q c.json
    OMP_NUM_THREADS=2 d9d-train -q --set trainer.run.dir=two c.json
    OMP_NUM_THREADS=3 d9d-train -q --set trainer.run.dir=three c.json
    same_run run two 00000020
    same_run run three 00000020
}

@test "activation checkpointing changes no bit" {
    for mode in off full selective; do
        d9d-train -q --set "model_provider.checkpointing=$mode" --set "trainer.run.dir=$mode" c.json
    done
    same_run off full 00000020
    same_run off selective 00000020
}

@test "packed documents learn what they learn apart" {
    d9d-shard -q --format tokens --pack 40 --out packed "$golden/moe/train.jsonl"
    d9d-train -q --set trainer.batching.global_batch_size=80 c.json
    samples=$(sed -nE 's/^ {1,2}"samples": ([0-9]+),$/\1/p' packed/manifest.json)
    d9d-train -q --set data.dataset=packed --set trainer.run.dir=packed.run \
        --set "trainer.batching.global_batch_size=$samples" --set trainer.batching.microbatch_size=1 c.json
    paste <(head -n 1 run/metrics.jsonl) <(head -n 1 packed.run/metrics.jsonl) | tr -d '",{}' | awk '
        $3 != "loss:" || $5 != "grad_norm:" { exit 1 }
        { n = NF / 2; a = $4 / $(4 + n) - 1; b = $6 / $(6 + n) - 1; if (a * a > 1e-13 || b * b > 1e-12) exit 1 }'
}

# Cut a finished run back to its checkpoint of each step, as kill -9 leaves it: the records may be
# ahead of the checkpoint, the last of them torn.  Go on; the end must be the same.
resume_everywhere() {
    local last k
    d9d-train -q --set trainer.checkpointing.period_steps=1 "$@" c.json
    last=$(printf '%s\n' run/checkpoints/step-* | tail -n 1)
    last=$((10#${last##*-}))
    sed -i '/"save"/d' run/metrics.jsonl
    for ((k = 1; k < last; k++)); do
        mkdir cut cut/checkpoints
        cp -r "run/checkpoints/$(printf 'step-%08d' $k)" cut/checkpoints
        { head -n $((k + k % 2)) run/metrics.jsonl; printf '{"step": 99, "lo'; } >cut/metrics.jsonl
        d9d-train -q --set trainer.checkpointing.period_steps=1 "$@" --set trainer.run.dir=cut c.json
        sed -n $((k + k % 2 + 1))p cut/metrics.jsonl | grep -qE "^\{\"restart\": 1, \"step\": $k, \"time\": \"[-0-9]+T[:0-9]+Z\"\}\$"
        # What came after the checkpoint is done again, behind the restart line.
        { head -n $k cut/metrics.jsonl; sed '1,/restart/d' cut/metrics.jsonl; } >whole
        mv whole cut/metrics.jsonl
        same_run run cut "$(printf '%08d' "$last")"
        grep -q '"restarts": 1' cut/manifest.json
        rm -r cut
    done
}

@test "resumed at any step: AdamW, sequential" {
    resume_everywhere --set trainer.run.steps=6
}

@test "resumed at any step: SGD with momentum, shuffled, over the end of an epoch" {
    resume_everywhere --set 'optimizer={"name": "sgd", "lr": 0.1, "momentum": 0.9, "nesterov": true}' \
        --set data.order=shuffled --set data.seed=3 --set data.epochs=2 \
        --set trainer.batching.global_batch_size=20
}

@test "resumed at any step: stochastic AdamW in bfloat16, bucketed, a schedule" {
    resume_everywhere --set 'optimizer={"name": "stochastic_adamw", "lr": 0.01, "state_dtype": "bfloat16"}' \
        --set model_provider.dtype=bfloat16 --set data.order=bucketed --set data.epochs=2 \
        --set trainer.batching.global_batch_size=20 \
        --set 'lr_scheduler={"name": "piecewise", "scheduler": {"initial_multiplier": 0, "phases": [{"mode": "rest", "target_multiplier": 1}]}}'
}

@test "resumed at any step: AdamW with float32 masters of bfloat16 weights" {
    resume_everywhere --set model_provider.dtype=bfloat16 --set optimizer.lr=1e-4 --set trainer.run.steps=6
}

@test "resumed at any step: SGD with masters, Adam with bfloat16 moments" {
    resume_everywhere --set 'optimizer={"name": "sgd", "lr": 0.01, "momentum": 0.9}' \
        --set model_provider.dtype=bfloat16 --set trainer.run.steps=4
    rm -r run
    resume_everywhere --set 'optimizer={"name": "adam", "lr": 1e-4, "state_dtype": "bfloat16"}' \
        --set model_provider.dtype=bfloat16 --set trainer.run.steps=4
}

@test "resumed at any step: AdamW with states in 8 bits, in host memory" {
    resume_everywhere --set 'optimizer={"name": "adamw", "lr": 1e-3, "state_dtype": "int8"}' \
        --set model_provider.dtype=bfloat16 --set trainer.offload.optimizer=host --set trainer.run.steps=4
}

@test "resumed at any step: Adam with amsgrad, bfloat16 gradients, random weights" {
    resume_everywhere --set 'optimizer={"name": "adam", "lr": 0.01, "amsgrad": true}' \
        --set trainer.model_stage_factory.source_checkpoint=null --set trainer.gradient_manager.grad_dtype=bfloat16 \
        --set trainer.run.steps=5
}

@test "a run goes on with steps of another size, and takes every sample once" {
    data=80 # samples, of which 8 steps of 4 take 32
    cut() { d9d-train -q "$@" --set trainer.run.steps=8 c.json && rm -r run/export; }
    batch() { echo "--set trainer.batching.global_batch_size=$1 --set trainer.batching.microbatch_size=1"; }
    for g in 8 2 3; do
        cut
        # shellcheck disable=SC2046 # words
        d9d-train -q $(batch $g) c.json
        [ "$(records run)" -eq $((8 + (data - 32) / g)) ]
        assert_equal "$(tail -n 1 run/samples.jsonl)" "{\"step\": $(records run), \"first\": $((32 + ((data - 32) / g - 1) * g)), \"count\": $g}"
        rm -r run
    done
    cut
    # shellcheck disable=SC2046
    says 2 "trainer.run.steps is 33, and after step 8 and 32 samples data has $(((data - 32) / 2)) further steps of 2 samples; raise data.epochs" \
        d9d-train $(batch 2) --set trainer.run.steps=33 c.json
}

@test "a run whose checkpoints are gone says that it begins again" {
    d9d-train -q --set trainer.run.steps=2 c.json
    rm -r run/checkpoints run/export
    run -0 d9d-train -q --set trainer.run.steps=2 c.json
    assert_output --partial "run/checkpoints: has no checkpoint of this run, which begins again"
    rm -r run
    run -0 d9d-train --set trainer.run.steps=2 c.json
    refute_output --partial "begins again"
    rm -r run # saved before its first step, it has a checkpoint
    # shellcheck disable=SC2016 # a shell of its own, whose signal is pending when the tool begins
    run -75 env --block-signal=TERM sh -c 'kill -TERM $$; exec d9d-train -q c.json'
    run -0 d9d-train c.json
    assert_output --partial "resuming after step 0 from run/checkpoints/step-00000000"
    refute_output --partial "begins again"
}

@test "a run that ended early goes on with more steps" {
    d9d-train -q --set trainer.run.dir=whole c.json
    d9d-train -q --set trainer.run.steps=7 --set export_to=first c.json
    d9d-train -q c.json
    diff <(history_of whole) <(history_of run)
    cmp whole/export/model.safetensors run/export/model.safetensors
}

@test "a complete run does nothing, and says so" {
    d9d-train -q c.json
    find run -type f ! -name .lock -exec md5sum {} + | sort >before
    run -0 --separate-stderr d9d-train --json c.json
    [[ "$stderr" == *"all 20 steps are done already"* ]]
    [[ "$output" == *'"first_step": 20'* && "$output" == *'"steps": 20'* && "$output" == *'"first_loss": null'* ]]
    [[ "$output" == *'"export": "run/export"'* ]]
    find run -type f ! -name .lock -exec md5sum {} + | sort | cmp - before
}

@test "a complete run on a read-only file system does nothing either" {
    unshare --mount --map-root-user true 2>/dev/null || skip "not allowed to mount"
    d9d-train -q c.json
    find run -type f -exec md5sum {} + | sort >before
    run -0 --separate-stderr on_read_only run d9d-train --json c.json
    [[ "$stderr" == *"all 20 steps are done already"* ]]
    [[ "$output" == *'"first_step": 20'* && "$output" == *'"export": "run/export"'* ]]
    find run -type f -exec md5sum {} + | sort | cmp - before
    # One that is not complete is refused before it computes.
    run -2 on_read_only run d9d-train -q --set trainer.run.steps=30 --set data.epochs=null --set export_to=new c.json
    assert_output --partial "run: cannot be written to: Read-only file system"
}

@test "a complete run whose model is missing exports it" {
    d9d-train -q c.json
    cp run/export/model.safetensors run/metrics.jsonl .
    rm -r run/export
    # And what killed processes left of it goes, what is somebody's own stays.
    mkdir run/export.tmp-77-0 run/export.tmp-mine
    touch run/export.tmp-77-0/x run/{config,manifest}.json.tmp-77-0
    d9d-train -q c.json
    [ "$(echo run/*.tmp-*)" = run/export.tmp-mine ]
    cmp model.safetensors run/export/model.safetensors
    diff metrics.jsonl run/metrics.jsonl | grep -qE '^> \{"end": "done", "step": 20,'
}

# --- told to leave -----------------------------------------------------------------------------

# A run that takes some seconds; its process is $pid.
start_long() {
    d9d-train --set data.epochs=1000 --set trainer.run.steps=20000 --set trainer.batching.microbatch_size=1 \
        "$@" c.json 2>log &
    pid=$!
    wait_for has_lines run/metrics.jsonl "${lines_wanted:-5}"
}

# The step that it was saved after; its records end there.
saved_step() {
    local last
    last=$(printf '%s\n' run/checkpoints/step-* | tail -n 1)
    last=$((10#${last##*-}))
    tail -n 1 run/metrics.jsonl | grep -q "^{\"end\": \"saved\", \"step\": $last," &&
        tail -n 2 run/metrics.jsonl | grep -q "^{\"save\": $last," &&
        { [ "$last" -eq 0 ] || tail -n 3 run/metrics.jsonl | grep -q "^{\"step\": $last,"; } && echo "$last"
}

goes_on_from() { # STEP
    run -0 --separate-stderr d9d-train --set data.epochs=1000 --set "trainer.run.steps=$(($1 + 3))" \
        --set trainer.batching.microbatch_size=1 c.json
    [[ "$stderr" == *"resuming after step $1 from run/checkpoints/step-"* ]]
    grep -q "^{\"restart\": 1, \"step\": $1," run/metrics.jsonl
    [ "$(history_of run | wc -l)" = $(($1 + 3)) ]
}

@test "SIGTERM, SIGUSR1, SIGINT: saved, exit 75; the next call goes on" {
    for signal in TERM USR1 INT; do
        rm -rf run
        start_long
        kill -s $signal "$pid"
        ends 75
        step=$(saved_step)
        grep -q "^d9d-train: interrupted: SIG$signal: saved after step $step of 20000 in run/checkpoints\$" log
        goes_on_from "$step"
    done
}

@test "two signals at once, and more while it saves" {
    start_long
    kill -s STOP "$pid"
    kill -s TERM "$pid"
    kill -s USR1 "$pid"
    kill -s CONT "$pid"
    for _ in 1 2 3 4 5; do kill -s TERM "$pid" 2>/dev/null || break; done
    ends 75
    goes_on_from "$(saved_step)"
}

@test "a signal before the first step is heeded too" {
    long=(--set data.epochs=1000 --set trainer.run.steps=20000)
    d9d-train -q "${long[@]}" c.json &
    pid=$!
    # SIGTERM, SIGINT and both of the user's are blocked, and no others: the shell, which is there
    # first, and whoever begins a thread block more for a moment
    wait_for grep -qE '^SigBlk:[[:space:]]*0*4a02$' "/proc/$pid/status"
    kill -s TERM "$pid"
    ends 75
    steps=$(($(saved_step) + 3))
    d9d-train -q "${long[@]}" --set trainer.run.steps=$steps c.json
    d9d-train -q "${long[@]}" --set trainer.run.steps=$steps --set trainer.run.dir=whole c.json
    same_run whole run "$(printf %08d $steps)"
}

@test "near the end of a Slurm allocation: saved, exit 75" {
    mkdir bin
    printf '#!/bin/sh\necho "$*" >squeue.args\necho 0:02\n' >bin/squeue
    chmod +x bin/squeue
    # However few steps it makes in a second.
    lines_wanted=1 PATH=$PWD/bin:$PATH SLURM_JOB_ID=12 start_long --set trainer.timeout.save_margin=1
    ends 75
    [ "$(cat squeue.args)" = '-h -j 12 -o %L' ]
    grep -q 'the allocation ends in 2 s; saving 1 s before' log
    grep -q "the end of the Slurm allocation: saved after step" log
    goes_on_from "$(saved_step)"
    # The environment says it without asking; what lies far ahead does not matter.
    rm -rf run squeue.args
    PATH=$PWD/bin:$PATH SLURM_JOB_ID=12 near_end d9d-train -q \
        --set data.epochs=1000 --set trainer.run.steps=20000 --set trainer.timeout.save_margin=1 c.json
    [ "$status" = 75 ]
    SLURM_JOB_ID=12 SLURM_JOB_END_TIME=$(($(date +%s) + 9999)) d9d-train -q --set trainer.run.dir=far --set trainer.run.steps=2 c.json
    [ ! -e squeue.args ]
}

@test "an allocation that is shorter than the margin is refused at once" {
    SLURM_JOB_ID=12 SLURM_JOB_END_TIME=$((EPOCHSECONDS + 240)) run -2 d9d-train c.json
    assert_output --regexp "ends in (240|2[0-3][0-9]) s, and 300 s before its end"
    [ ! -e run ]
    # A second start in a job, which was long enough: requeued, it has time again.
    SLURM_JOB_ID=12 SLURM_JOB_START_TIME=$((EPOCHSECONDS - 900)) SLURM_JOB_END_TIME=$((EPOCHSECONDS + 240)) run -75 d9d-train c.json
    assert_output --partial 'there is no time but to save: this start is for the next allocation'
    SLURM_JOB_ID=12 SLURM_JOB_START_TIME=$((EPOCHSECONDS - 9)) SLURM_JOB_END_TIME=$((EPOCHSECONDS + 240)) run -2 d9d-train c.json
    SLURM_JOB_ID=12 SLURM_JOB_END_TIME=$((EPOCHSECONDS + 9999)) run -0 d9d-train --set trainer.timeout.save_margin=30 c.json
}

@test "kill -9 between checkpoints: gone on from the newest" {
    args=(--set data.epochs=100 --set trainer.run.steps=400 --set trainer.checkpointing.period_steps=50)
    d9d-train -q "${args[@]}" --set trainer.run.dir=whole c.json
    d9d-train -q "${args[@]}" c.json &
    pid=$!
    wait_for has_lines run/metrics.jsonl 120
    kill -9 "$pid"
    ends 137
    run -0 --separate-stderr d9d-train "${args[@]}" c.json
    [[ "$stderr" =~ 'resuming after step '([0-9]+)' from' ]]
    step=${BASH_REMATCH[1]}
    [ "$step" -ge 50 ]
    grep -q "^{\"restart\": 1, \"step\": $step," run/metrics.jsonl
    { history_of run | head -n "$step"; sed '1,/restart/d' run/metrics.jsonl | grep loss | sed 's/, "step_ms".*//'; } >again
    diff <(history_of whole) again
    cmp whole/export/model.safetensors run/export/model.safetensors
}

@test "a second process on the same run is refused" {
    start_long
    says 1 'run/metrics.jsonl: another process is writing it' d9d-train --set data.epochs=1000 --set trainer.run.steps=20000 c.json
    kill -s TERM "$pid"
    ends 75
}

# Neither saves during the test; each would remove the other's checkpoints, and resume from them.
@test "a second run that shares its save_dir with one that goes on is refused" {
    start_long --set trainer.checkpointing.save_dir=saved
    says 1 'saved/.lock-run: another process is writing it; wait for its end, or name another; each run needs a trainer.checkpointing.save_dir of its own' \
        d9d-train --set trainer.checkpointing.save_dir=saved --set trainer.run.dir=other c.json
    [ -z "$(ls saved)" ]
    kill -s TERM "$pid"
    ends 75
    d9d-train -q --set trainer.checkpointing.save_dir=own --set trainer.run.dir=other c.json
}

# --- what is not finite -----------------------------------------------------------------------

@test "a run directory that is removed or renamed under the run ends it, exit 1" {
    for go_away in "rm -rf run" "mv run moved"; do
        start_long
        $go_away
        ends 1
        [ "$(grep -c 'error' log)" -eq 1 ]
        grep -q '^d9d-train: input/output error: run: the run directory was removed or renamed under the run$' log
        [ ! -e run ]
    done
}

@test "a place that was good when the run began fails it, exit 1" {
    may=()
    [ "$(id -u)" -ne 0 ] || may=(setpriv "--bounding-set=-dac_override,-dac_read_search")
    mkdir place
    "${may[@]}" d9d-train --set data.epochs=1000 --set trainer.run.steps=500 --set export_to=place/out c.json 2>log &
    pid=$!
    wait_for has_lines run/metrics.jsonl 5
    chmod 555 place
    ends 1
    chmod 755 place
    grep -q '^d9d-train: input/output error: place/out.*: cannot create the directory: Permission denied$' log
}

@test "a NaN among the weights: exit 1, step, tensor and samples named, nothing written" {
    cp -r "$golden/moe" bad
    chmod -R u+w bad
    printf '\0\0\300\177' | dd of=bad/model.safetensors bs=1 conv=notrunc status=none \
        seek=$(($(stat -c %s bad/model.safetensors) - 4))
    says 1 'non-finite number: step 1: the loss of samples 0, 1 of the split train is nan; model.' \
        d9d-train --set trainer.model_stage_factory.source_checkpoint=bad c.json
    [[ "$stderr" == *" is not finite at element "*"; nothing was updated" ]]
    grep -qE '^\{"end": "failed", "step": 0, "time": "[-0-9]+T[:0-9]+Z"\}$' run/metrics.jsonl
    [ "$(wc -l <run/metrics.jsonl)" = 1 ]
    [ -z "$(ls run/checkpoints)" ]
    [ ! -e run/export ]
}

@test "a run that diverges stops before the update; the last checkpoint stands" {
    says 1 'non-finite number: step ' d9d-train --set optimizer.lr=1e6 --set optimizer.weight_decay=1e6 \
        --set trainer.checkpointing.period_steps=1 \
        --set data.order=shuffled c.json
    [[ "${stderr_lines[-1]}" =~ 'step '([0-9]+)': the '(loss|gradient|norm)' of '.*'samples '[0-9]+', '[0-9]+ ]]
    step=$((BASH_REMATCH[1] - 1))
    [ "$(records run)" = $step ]
    # Called again it stops at the same place.
    first=${stderr_lines[-1]}
    says 1 "$first" d9d-train --set optimizer.lr=1e6 --set optimizer.weight_decay=1e6 \
        --set trainer.checkpointing.period_steps=1 \
        --set data.order=shuffled c.json
    [[ "$stderr" == *"resuming after step $step from"* ]]
}

@test "steps without a target learn nothing and go on" {
    yes '{"input_ids": [1, 2, 3], "labels": [-100, -100, -100]}' | head -n 3 >none.jsonl
    head -n 5 "$golden/moe/train.jsonl" | cat none.jsonl - none.jsonl >mixed.jsonl
    d9d-shard -q --format tokens --out mixed mixed.jsonl
    run -0 --separate-stderr d9d-train --set data.dataset=mixed --set trainer.batching.global_batch_size=2 c.json
    [[ "$stderr" == *'step 1: no target in samples 0, 1 of the split train; nothing to learn'* ]]
    sed -n 1p run/metrics.jsonl | grep -q '"step": 1, "lr": .* "tokens": 0, "samples": 2,'
    [ "$(grep -c '"tokens_per_s"' run/metrics.jsonl)" = 5 ]
    sed -n 3p run/metrics.jsonl | grep -qE '"loss": [1-9]'
    # Nothing takes them for steps of the loss 0, the first and the last one least.
    [[ "${lines[-1]}" =~ ", loss "[1-9][0-9.]*" to "[1-9] ]]
    d9d-metrics summary --json run | jq -e '.[0] | .first_loss > 1 and .min_loss > 1 and .last_loss > 1 and .last_step == 5'
}

@test "one sample is enough" {
    head -n 1 "$golden/moe/train.jsonl" | d9d-shard -q --format tokens --out one -
    d9d-train -q --set data.dataset=one --set data.epochs=3 --set trainer.batching.global_batch_size=1 \
        --set trainer.batching.microbatch_size=1 c.json
    [ "$(records run)" = 3 ]
}

@test "a full disk: exit 1, path and bytes named, the old checkpoint intact" {
    [ "$(id -u)" = 0 ] || skip "needs root to mount a small file system"
    mkdir small
    mount -t tmpfs -o size=1400k tmpfs small 2>/dev/null || skip "cannot mount a tmpfs here"
    args=(--set trainer.run.dir=small --set trainer.checkpointing.period_steps=4 --set trainer.run.steps=12 --set export_to=model)
    run -1 --separate-stderr d9d-train "${args[@]}" c.json
    message=${stderr_lines[-1]}
    ls small/checkpoints >left
    cp -r small/checkpoints kept
    umount small
    [[ "$message" =~ 'input/output error: small/checkpoints/step-000000'[0-9]+'.tmp-'.*': cannot write '[0-9]+' bytes at '[0-9]+': No space left on device' ]]
    run cat left
    [ "${#lines[@]}" -ge 1 ]
    mkdir again
    mv kept again/checkpoints
    d9d-train -q "${args[@]}" --set trainer.run.dir=again c.json
    d9d-train -q "${args[@]}" --set trainer.run.dir=whole --set export_to=other c.json
    cmp model/model.safetensors other/model.safetensors
}

@test "profiling writes the timeline of the steps asked for" {
    run -0 --separate-stderr d9d-train --set trainer.profiling.period_steps=8 \
        --set trainer.profiling.active_steps=2 c.json
    assert_equal "$(find run/traces -type f | sort | tr '\n' ' ')" \
        "run/traces/step-00000008/rank-0.json run/traces/step-00000016/rank-0.json "
    for name in "step 7" "step 8" forward backward "linear wgrad" "attention dgrad" optimizer "rank 0, cpu"; do
        grep -q "\"name\": \"$name\"" run/traces/step-00000008/rank-0.json
    done
    refute grep -q '"step 9"' run/traces/step-00000008/rank-0.json
    [[ $stderr == *"run/traces/step-00000016/rank-0.json: "*" %, "* ]]
    d9d-train -q --set trainer.run.dir=plain c.json
    same_run run plain 00000020
    [ ! -e plain/traces ]
    says 2 'trainer.profiling: active_steps is 3, of period_steps 2' d9d-train --set trainer.run.dir=no \
        --set trainer.profiling.period_steps=2 --set trainer.profiling.active_steps=3 c.json
}

@test "a trace ends with its period, and one that cannot be written ends no run" {
    d9d-train -q --set trainer.run.steps=5 --set trainer.profiling.period_steps=2 \
        --set trainer.profiling.active_steps=2 c.json
    assert_equal "$(find run/traces -type f | sort | tr '\n' ' ')" \
        "$(printf 'run/traces/step-0000000%d/rank-0.json ' 2 4 5)"
    refute grep -q '"step 2"' run/traces/step-00000004/rank-0.json
    for step in 3 4; do grep -q "\"step $step\"" run/traces/step-00000004/rank-0.json; done
    : >file
    run -0 --separate-stderr d9d-train --set trainer.run.dir=two --set trainer.run.steps=2 \
        --set trainer.profiling.period_steps=1 --set trainer.profiling.traces_dir="$PWD/file" c.json
    [[ $stderr == *"file"*"the run goes on without this trace"* ]]
    [ -e two/export/model.safetensors ]
}

@test "a run goes on from a checkpoint of d9d.checkpoint.v1" {
    cp "$golden/dense_tied/train.jsonl" tied.jsonl # a dataset has the names of its files
    d9d-shard -q --format tokens --out tied tied.jsonl
    run_config dense_tied | sed 's|"dataset": "data"|"dataset": "tied"|' >tied.json
    d9d-train -q --set trainer.run.steps=4 --set trainer.run.dir=whole tied.json
    mkdir -p run/checkpoints && cp -r "$BATS_TEST_DIRNAME/checkpoint_v1/step-00000002" run/checkpoints/
    run -0 d9d-train --set trainer.run.steps=4 tied.json
    assert_output --partial "resuming after step 2 from run/checkpoints/step-00000002"
    [ "$(records run)" -eq 2 ]
    paste -d ' ' <(history_of whole | tail -2 | grep -o '"loss": [0-9.]*') <(history_of run | grep -o '"loss": [0-9.]*') |
        awk '{ d = $2 - $4; if (d < -1e-4 || d > 1e-4) exit 1; n++ } END { exit n != 2 }'
    d9d-map verify -q run/checkpoints/step-00000004
    d9d-map verify -q run/checkpoints/step-00000002
}

@test "a run goes on with its dataset made again of the same samples, with other samples it does not" {
    d9d-train -q --set trainer.run.steps=2 --set trainer.run.dir=old c.json
    d9d-train -q --set trainer.run.steps=4 c.json
    cp "$golden/moe/train.jsonl" again.jsonl
    d9d-shard -q --format tokens --out again again.jsonl
    run cmp -s data/manifest.json again/manifest.json
    [ "$status" -eq 1 ] # it names its input
    run -0 d9d-train --set trainer.run.steps=4 --set trainer.run.dir=old --set data.dataset=again --set export_to=e c.json
    assert_output --partial 'resuming after step 2 from old/checkpoints/step-00000002'
    cmp run/export/model.safetensors e/model.safetensors
    tac again.jsonl >other.jsonl
    d9d-shard -q --format tokens --out other other.jsonl
    run -2 d9d-train --set trainer.run.steps=6 --set trainer.run.dir=old --set data.dataset=other --set export_to=f c.json
    assert_output --partial 'was trained on another dataset than other'
}

@test "a tokenizer beside the weights goes into the export, whatever file has the dimensions" {
    cp -r "$golden/moe" src && chmod -R u+w src
    cp "$BATS_TEST_DIRNAME/../../examples/tokenizer/tokenizer.json" src
    cp src/config.json small.json
    start() { d9d-train -q --set trainer.run.dir="$1" --set trainer.run.steps=1 --set model_provider.hf_config="$2" \
        --set trainer.model_stage_factory.source_checkpoint=src c.json; }
    start alone small.json
    cmp src/tokenizer.json alone/export/tokenizer.json
    cmp src/generation_config.json alone/export/generation_config.json
    # a folder with files of its own keeps to them
    mkdir own
    cp src/config.json own
    start beside own
    cmp src/tokenizer.json beside/export/tokenizer.json
    echo '{"eos_token_id": 3}' >own/generation_config.json
    start kept own
    cmp own/generation_config.json kept/export/generation_config.json
    [ ! -e kept/export/tokenizer.json ]
}
