#!/usr/bin/env bats
# shellcheck disable=SC2154 # variables of bats and of the helper
# The tutorials, and what other pages let a reader try, command by command as they stand there, in one
# folder that all of them go on in.  What needs a Slurm is in tests/slurm/docs.bats.

load helper

setup_file() {
    ln -s "$(cd "$BATS_TEST_DIRNAME/../.." && pwd)/examples" "$BATS_FILE_TMPDIR"
}

setup() {
    cd "$BATS_FILE_TMPDIR" || return 1
    unset "${!SLURM_@}" "${!D9D_TRAIN@}" "${!OMPI_COMM@}" "${!PMIX_@}"
    # Launchers remove the session directory that they share while others begin to use it.
    OMPI_MCA_orte_tmpdir_base=$(mktemp -d "$BATS_RUN_TMPDIR/mpi-XXXXXX")
    export OMPI_MCA_orte_tmpdir_base OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMPI_MCA_mpi_yield_when_idle=0
}

# page NAME: its commands, once; what they said is in NAME.log.
page() {
    local rc=0
    [ ! -e "$1.log" ] || return 0
    awk '/^```/ { yes = $0 == "```sh"; next } yes' "$BATS_TEST_DIRNAME"/../../docs/*/"$1.md" >"$1.sh"
    [ "$(wc -l <"$1.sh")" -ge 5 ]
    timeout -k 5 "${patience:-1800}" bash -eu -o pipefail "$1.sh" >"$1.log" 2>&1 3>&- </dev/null || rc=$?
    [ $rc -eq 0 ] || cat "$1.log"
    return $rc
}

# right FILE TEXT...: the texts that a model should have written, of which rounding may spoil one.
right() {
    sed -nE 's/.*"text": "([^"]*)".*/\1/p' "$1" | diff - <(printf '%s\n' "${@:2}") >differences || true
    assert_equal "$(wc -l <"$1")" "$(($# - 1))"
    [ "$(grep -c '^>' differences)" -le 1 ] || { cat "$1"; false; }
}

@test "sft-chat.md: a model learns to answer" {
    page sft-chat
    grep -F '13<|im_end|>⟧' sft-chat.log
    grep -q 'runs/sft: 200 of 200 steps' sft-chat.log
    right answers.jsonl 7 18 2
    grep -q '^d9d-shard: own/chat_template.jinja renders the chats; trained is what it adds for the assistant' sft-chat.log
    right own.jsonl 7 18 2
}

@test "convert.md: both ways to the bit, a checkpoint of a run, torchtitan's names" {
    page sft-chat
    page convert
    assert_equal "$(grep -c '^24 tensors equal, 0 different$' convert.log)" 2
    grep -q 'base-hf: 4 files, 24 tensors, [0-9]* bytes are sound' convert.log
    grep -q 'runs/sft: no checkpoint is there, but a run, whose model is in export/' convert.log
    grep -q '^exit code 2$' convert.log
    cmp base/model.safetensors base-hf/model.safetensors
}

@test "mixed-precision.md: choices of precision, and what the log says of each" {
    page sft-chat
    page mixed-precision
    for said in 'parameters, float32$' 'bfloat16 weights updated as float32 master weights' 'bfloat16 weights rounded to nearest' \
        'parameters, bfloat16, products of layers in FP8$'; do
        grep -qE "$said" mixed-precision.log || { echo "no $said"; cat mixed-precision.log; false; }
    done
    for name in float32 master nearest fp8; do [ -d runs/choice-$name/export ]; done
}

@test "lora.md: adapters, beside the model and merged" {
    page sft-chat
    page lora
    grep -q '^exit code 2$' lora.log
    grep -q ' 0 different' lora.log
    right adapted.jsonl 4 10 17
}

# perplexities FILE: what d9d-infer --json said, one a line.
perplexities() { sed -nE 's/.*"perplexity": *([0-9.eE+]+).*/\1/p' "$1"; }

@test "continue.md: new text is learned, old is kept, and data of another tokenizer is refused" {
    page sft-chat
    page continue
    perplexities continue.log | paste -s | awk '{ exit !(NF == 4 && $1 > 100 && $2 < 2 && $3 < 10 && $4 < 2.5) }'
    grep -q 'others: its id 32 is the token "B", and in runs/sft/export/tokenizer.json "A"' continue.log
    grep -q '^exit code 2$' continue.log
}

@test "continue.md: a tokenizer that adds tokens or renames added ones is taken, for evaluations too" {
    page sft-chat
    page continue
    sed 's/<|im_start|>/<|i_begin|>/g' base/tokenizer.json >renamed.json
    run ! cmp -s base/tokenizer.json renamed.json
    d9d-shard -q --tokenizer renamed.json --append-eos '<|endoftext|>' --pack 128 --out renamed squares.jsonl
    d9d-train -q --set 'data={"dataset": "renamed", "epochs": null}' --set trainer.run.steps=1 --set trainer.run.dir=taken examples/tutorial/continue.json
    run -2 d9d-train -q --set evaluation.0.data.dataset=others --set evaluation.0.data.split=train --set trainer.run.dir=none \
        examples/tutorial/continue.json
    assert_output --partial 'others: its id 32 is the token "B"'
    run -2 d9d-infer -q --set data.dataset=others --set data.split=train examples/tutorial/perplexity.json
    assert_output --partial 'others: its id 32 is the token "B"'
    # random weights have no tokenizer, but the export has that beside hf_config
    random=(--set 'data={"dataset": "others", "epochs": null}' --set evaluation=null --set trainer.model_stage_factory.source_checkpoint=null
        --set trainer.run.steps=1 --set trainer.run.dir=random)
    run -2 d9d-train -q "${random[@]}" --set model_provider.hf_config=base/config.json examples/tutorial/continue.json
    assert_output --partial 'others: its id 32 is the token "B", and in base/tokenizer.json "A"'
    cp base/config.json alone.json
    d9d-train -q "${random[@]}" --set model_provider.hf_config=alone.json examples/tutorial/continue.json
}

@test "classify.md: classes of texts, and questions that find their answers" {
    page sft-chat
    page classify
    awk '$1 == "accuracy" { yes = $2 > 0.9 } END { exit !yes }' classify.log
    awk '/questions find their answer/ { yes = $1 >= 28 } END { exit !yes }' classify.log
}

@test "multi-node.md: four ranks, interrupted, and two that go on" {
    [ -e "$D9D_BUILD/lib/libd9d_mpi.so.0" ] || skip "built without MPI"
    page sft-chat
    ASAN_OPTIONS=detect_leaks=0 page multi-node
    grep -q '4 ranks (dps 2 tp 2) compute what one computes' multi-node.log
    grep -q '^exit code 75$' multi-node.log
    grep -q 'resuming after step [0-9]* from runs/ranks/' multi-node.log
    awk '$1 == 10 { yes = ($4 ^ 2 < 1e-10) } END { exit !yes }' multi-node.log
}

@test "check-a-mesh.md: a plan, a self-test and a certificate of four ranks" {
    [ -e "$D9D_BUILD/lib/libd9d_mpi.so.0" ] || skip "built without MPI"
    page sft-chat
    ASAN_OPTIONS=detect_leaks=0 page check-a-mesh
    grep -q '^it fits: ' check-a-mesh.log
    grep -q '4 ranks (pp 2 tp 2) compute what one computes' check-a-mesh.log
    grep -qE '^meshes +ok ' check-a-mesh.log
}

@test "debug-a-hang.md: the rank that was stopped is named, and the run goes on without it" {
    [ -e "$D9D_BUILD/lib/libd9d_mpi.so.0" ] || skip "built without MPI"
    command -v ps >/dev/null || skip "no ps"
    page sft-chat
    ASAN_OPTIONS=detect_leaks=0 page debug-a-hang
    grep -q 'rank 2 (.*, dps 1 tp 0), which is stopped' debug-a-hang.log
    grep -q 'error: .*rank 2 (.*, dps 1 tp 0), which is stopped' hang.log
    grep -q '^exit code 1$' debug-a-hang.log
    grep -q 'resuming after step [0-9]*00 from runs/hang/' debug-a-hang.log
    # The report of a run that ended well has nothing of the recorder.
    d9d-metrics report -q runs/hang -o hang.html
    run ! grep -q 'Flight recorder' hang.html
}
