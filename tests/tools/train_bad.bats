#!/usr/bin/env bats
# shellcheck disable=SC2154,SC2030,SC2031 # variables of bats and of the helper
# Requests that d9d-train and d9d-infer reject: message, exit status, and nothing is changed.

load train_bench
teardown() {
    local made=
    [ ! -e run ] && [ ! -e out.jsonl ] || made=1 # no test here comes so far as to make them
    clear_bench
    [ -z "$made" ]
}


refused() { # SENTENCE [OPTION...]: by d9d-train, exit status 2
    local sentence=$1
    shift
    says 2 "$sentence" d9d-train "$@" c.json
}

@test "keys: unknown, misspelt, mistyped, out of range, missing" {
    refused 'c.json: trainer.batching.global_batchsize: unknown key; did you mean "global_batch_size"?' --set trainer.batching.global_batchsize=8
    refused 'c.json: optimiser: unknown key; did you mean "optimizer"?' --set 'optimiser={}'
    refused 'c.json: zzz: unknown key' --set zzz=1
    refused 'c.json: trainer.batching.microbatch_size: ' --set trainer.batching.microbatch_size=two
    refused 'c.json: trainer.batching.microbatch_size: ' --set trainer.batching.microbatch_size=0
    refused 'c.json: trainer.batching.microbatch_size: ' --set trainer.batching.microbatch_size=1.5
    refused 'c.json: optimizer.lr: ' --set optimizer.lr=0
    refused 'c.json: optimizer.lr: ' --set optimizer.lr=-1
    refused 'c.json: optimizer.betas' --set 'optimizer.betas=[0.9]'
    refused 'c.json: optimizer.betas' --set 'optimizer.betas=[0.9, 1.0]'
    refused 'c.json: optimizer.momentum: unknown key' --set optimizer.momentum=0.9
    refused 'c.json: optimizer.name: unknown word "adamx"; did you mean "adamw"?' --set optimizer.name=adamx
    refused 'c.json: data.order: unknown word "shufled"; did you mean "shuffled"?' --set data.order=shufled
    refused 'c.json: model_provider.dtype: ' --set model_provider.dtype=float16
    refused 'c.json: model_provider.checkpointing: must be false, true, "off", "full" or "selective"' --set model_provider.checkpointing=half
    refused 'c.json: model_provider: give either hf_config or model' --set model_provider.hf_config=null
    refused 'c.json: trainer.logging.period_steps: 0 is below the minimum of 1; "disable" turns it off' --set trainer.logging.period_steps=0
    refused 'c.json: trainer.logging.period_steps: unknown word "last-step"; did you mean "last_step"?' --set trainer.logging.period_steps=last-step
    refused 'c.json: trainer.run.name: expected a string, got a list' --set 'trainer.run.name=[7]'
    refused 'c.json: trainer.run.name: expected a string, got an integer (7)' --set 'trainer.run={"name": 7}'
    refused 'trainer.run.name: ' --set trainer.run.name=a/b
    refused 'trainer.run.name: ' --set trainer.run.name=..
    refused 'nesterov needs a momentum and no dampening' --set 'optimizer={"name": "sgd", "lr": 1, "nesterov": true}'
    for key in data.dataset data.split export_to trainer.run.dir trainer.checkpointing.save_dir \
        trainer.model_stage_factory.source_checkpoint model_provider.hf_config; do
        refused "c.json: $key: has 0 bytes, at least 1 is needed" --set "$key="
    done
    echo '{"data": {"dataset": "data"}}' >c.json
    refused 'c.json: model_provider: ' --quiet
    echo '{"data": {}, "model_provider": 3}' >c.json
    refused 'c.json: '
}

@test "numbers that float32, in which they are used, does not have" {
    refused 'c.json: optimizer.eps: 1e-300 is 0 in float32, in which it is used' --set optimizer.eps=1e-300
    refused 'c.json: optimizer.lr: 1e-300 is 0 in float32' --set optimizer.lr=1e-300
    refused 'c.json: optimizer.betas[1]: 0.999999999 is 1 in float32' --set 'optimizer.betas=[0.9, 0.999999999]'
    refused 'c.json: optimizer.weight_decay: 1e-300 is 0 in float32' --set optimizer.weight_decay=1e-300
    refused 'c.json: trainer.gradient_clipping.max_norm: gradients clipped to a norm of 1e-300, below 1e-12, move nothing' \
        --set trainer.gradient_clipping.max_norm=1e-300
}

@test "names of vocabulary splits that no checkpoint could have, and too many of them" {
    own='{"name": "qwen3_dense", "model": {"layer": {"hidden_size": 8, "intermediate_size": 8,
        "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 4}, "num_hidden_layers": 1,
        "max_position_ids": 64, "split_vocab_size": {%s}, "split_vocab_order": [%s]}}'
    # shellcheck disable=SC2059 # of ours
    split() { printf "model_provider=$own" "$1" "$2"; }
    for name in '' 'a\nb' '\u007f'; do
        refused 'qwen3: split_vocab_size: split 0 is called "' --set "$(split "\"$name\": 157" "\"$name\"")" \
            --set trainer.model_stage_factory.source_checkpoint=null
    done
    sizes='"s0": 149' order='"s0"'
    for i in 1 2 3 4 5 6 7 8; do
        sizes+=", \"s$i\": 1" order+=", \"s$i\""
    done
    refused 'qwen3: split_vocab_size has 9 splits, 1 to 8 are possible' --set "$(split "$sizes" "$order")" \
        --set trainer.model_stage_factory.source_checkpoint=null
}

@test "more groups of experts are chosen than there are" {
    refused 'qwen3_moe: topk_group (router.top_groups) is 3, of n_group (router.groups) 1' --set model_provider.router.top_groups=3
    refused 'qwen3_moe: topk_group (router.top_groups) is 3, of n_group (router.groups) 2' --set model_provider.router.groups=2 \
        --set model_provider.router.top_groups=3
}

@test "a folder of local checkpoints that is none" {
    touch file
    for dir in /nowhere/local "$PWD/file"; do
        D9D_LOCAL_DIR=$dir refused "$dir: is no folder that can be written to; local checkpoints go where D9D_LOCAL_DIR says, or to /dev/shm" \
            --set trainer.checkpointing.local_period_steps=2
    done
}

@test "integers beyond those that are doubles are compared as they are" {
    refused 'c.json: data.seed: 9007199254740993 is above the maximum of 9007199254740992' --set data.seed=9007199254740993
    refused 'c.json: trainer.run.steps: 9007199254740993 is above the maximum' --set trainer.run.steps=9007199254740993
    d9d-train -q --print-config --set data.seed=9007199254740992 c.json | grep -q '"seed": 9007199254740992'
}

@test "learning rates that float32 does not have are refused before they are used" {
    phases='[{"mode": "rest", "target_multiplier": %s}]'
    schedule='{"name": "piecewise", "scheduler": {"initial_multiplier": %s, "phases": %s}}'
    # shellcheck disable=SC2059 # of ours
    for pair in '1e42 1' '1 1e42' '1e308 0'; do
        read -r first last <<<"$pair"
        refused 'is not at most 1000000' --set "lr_scheduler=$(printf "$schedule" "$first" "$(printf "$phases" "$last")")"
        refused 'is not at most 1000000' --plan --set "lr_scheduler=$(printf "$schedule" "$first" "$(printf "$phases" "$last")")"
    done
}

@test "documents that are none" {
    says 2 'absent.json: ' d9d-train absent.json
    says 2 '/: is a directory, must be a file' d9d-train /
    echo '{"data": {"dataset": "data"},}' >c.json
    refused 'c.json: '
    echo '[]' >c.json
    refused 'c.json: '
    : >c.json
    refused 'c.json: '
    echo '{"data": 1, "data": 2}' >c.json
    refused 'c.json: '
    says 2 '.: is a directory' d9d-train .
    printf '{"a": "\xff"}' >c.json
    refused 'c.json: '
    run -2 --separate-stderr d9d-train
    [[ "${stderr_lines[0]}" == 'd9d-train: expected CONFIG.json, got 0 operands' ]]
    run -2 --separate-stderr d9d-train --devcie cpu c.json
    [[ "${stderr_lines[0]}" == 'd9d-train: unknown option --devcie; did you mean --device?' ]]
}

@test "sections that another system has are accepted, and said to do nothing" {
    run -0 --separate-stderr d9d-train --set 'trainer.gc={"period_steps": 10}' \
        --set trainer.data_loading.pin_memory=true --set trainer.run.steps=1 \
        --set trainer.run.dir=other c.json
    [[ "$stderr" == *'trainer.gc'*'no effect'* ]]
    [[ "$stderr" == *'trainer.data_loading.pin_memory'*'no effect'* ]]
}

@test "sizes that do not fit each other" {
    refused 'mesh: pipeline_parallel 2 x data_parallel_shard 3 is 6 ranks, and this job has 1' \
        --set mesh.pipeline_parallel=2 --set mesh.data_parallel_shard=3
    refused 'mesh: pipeline_parallel 1048576 x data_parallel_replicate 1048576 x data_parallel_shard 1048576 x context_parallel_shard 1048576 x tensor_parallel 1048576 is ' \
        --set mesh.pipeline_parallel=1048576 --set mesh.data_parallel_shard=1048576 --set mesh.tensor_parallel=1048576 \
        --set mesh.context_parallel_shard=1048576 --set mesh.data_parallel_replicate=1048576
    refused 'mesh: expert_parallel 2 does not divide the 1 ranks of a pipeline stage' --set mesh.expert_parallel=2
    SLURM_STEP_NUM_TASKS=2 refused 'srun launched 2 tasks without PMIx'
    OMPI_COMM_WORLD_SIZE=2 refused 'mpirun launched 2 tasks without PMIx' --set mesh.data_parallel_shard=2
    refused 'trainer.batching: global_batch_size 4 is not a multiple of 3 (1 data-parallel ranks x microbatch_size 3)' \
        --set trainer.batching.microbatch_size=3
    refused 'trainer.run.steps is 21, and data has 20 steps of 4 samples in 1 epoch; raise data.epochs' --set trainer.run.steps=21
    refused 'data: 80 samples in 1 epoch are less than one step of 81' \
        --set trainer.batching.global_batch_size=81 --set trainer.batching.microbatch_size=1
    refused 'phases' --set 'lr_scheduler={"name": "piecewise", "scheduler": {"initial_multiplier": 1, "phases": []}}'
}

@test "files that are not there, or are something else" {
    refused 'nowhere' --set data.dataset=nowhere
    refused 'valid' --set data.split=valid
    refused 'nowhere/config.json' --set model_provider.hf_config=nowhere/config.json
    refused 'nowhere' --set trainer.model_stage_factory.source_checkpoint=nowhere
    mkdir empty
    refused 'empty' --set trainer.model_stage_factory.source_checkpoint=empty
    refused 'data/manifest.json: ' --set model_provider.hf_config=data/manifest.json
    refused "$golden/dense_tied and qwen3_moe: 51 missing, 6 unused, 18 mis-shaped tensors: tensor model.embed_tokens.weight is F32 [173, 36], qwen3_moe needs F32 [157, 32]" \
        --set trainer.model_stage_factory.source_checkpoint="$golden/dense_tied"
    refused 'device "gpu": expected auto, cpu, cuda or cuda:N' --device gpu
    refused 'device "cpu:1": expected auto, cpu, cuda or cuda:N' --device cpu:1
}

@test "a dataset of another model" {
    printf '{"input_ids": [1, 400, 3]}\n{"input_ids": [5, 6]}\n' | d9d-shard -q --format tokens --out wide -
    refused "wide: its ids are below 401 and the model's vocabulary has 157; is it another model's dataset?" --set data.dataset=wide \
        --set trainer.batching.global_batch_size=1 --set trainer.batching.microbatch_size=1
    d9d-shard -q --tokenizer "$BATS_TEST_DIRNAME/../../examples/tokenizer/tokenizer.json" --out text - <<<'{"text": "some words"}'
    refused "text: its ids are below 2048 and the model's vocabulary has 157; is it another model's dataset?" --set data.dataset=text \
        --set trainer.batching.global_batch_size=1 --set trainer.batching.microbatch_size=1
    sed 's/"max_position_embeddings": [0-9]*/"max_position_embeddings": 15/' "$golden/moe/config.json" >short.json
    refused 'data: its longest sample has 16 tokens and the model has 15 positions' --set model_provider.hf_config=short.json
}

@test "a config.json of the other provider's family: refused by name, both ways, by every way in" {
    local name type case
    while read -r name type other case; do
        sentence="model_provider.name: \"$name\" does not read model_type \"$type\" of $golden/$case/config.json; \"$other\" does"
        model=(--set "model_provider={\"name\": \"$name\", \"hf_config\": \"$golden/$case/config.json\"}"
            --set "trainer.model_stage_factory.source_checkpoint=$golden/$case")
        refused "$sentence" "${model[@]}"
        refused "$sentence" --plan "${model[@]}"
        refused "$sentence" --plan --suggest 2 "${model[@]}"
        run -2 --separate-stderr d9d-infer "${model[@]}" i.json
        assert_equal "$stderr" "d9d-infer: invalid configuration: $sentence"
        [ ! -e run ]
        [ ! -e out.jsonl ]
    done <<'LIST'
qwen3_dense qwen3_moe qwen3_moe moe
qwen3_moe qwen3 qwen3_dense dense_tied
LIST
}

@test "places that are in each other" {
    traced='trainer.profiling={"traces_dir": "%s"}'
    for at in checkpoints checkpoints/x .//checkpoints/./x "$PWD/run/checkpoints"; do
        # shellcheck disable=SC2059 # of ours
        refused 'where names that begin with "step-" are checkpoints' --set "$(printf "$traced" "$at")"
    done
    for at in export export/x; do
        # shellcheck disable=SC2059
        refused "trainer.profiling.traces_dir: run/$at leads into run/export, where the finished model alone is to be" --set "$(printf "$traced" "$at")"
        refused "trainer.checkpointing.save_dir: run/$at leads into run/export" --set trainer.checkpointing.save_dir=run/$at
    done
    refused 'trainer.checkpointing.save_dir: run/checkpoints leads into run' --set export_to=run
    refused 'export_to: run/adapter leads into run/adapter, where adapters alone are to be' --set export_to=run/adapter
    refused 'trainer.checkpointing.save_dir: run/checkpoints leads into run' --plan --set export_to=run
    refused 'export_to: run/flight leads into run/flight, where the flight recorder is' --set export_to=run/flight
    for at in metrics.jsonl samples.jsonl; do
        refused "export_to: run/$at leads into run/$at, where records are" --set export_to=run/$at
    done
    refused 'export_to: run/config.json leads into run/config.json, where the configuration is' --set export_to=run/config.json
    refused 'export_to: run/manifest.json leads into run/manifest.json, where the run is described' --set export_to=run/manifest.json
    refused 'export_to: run/tensorboard/x leads into run/tensorboard, where event files are' --set export_to=run/tensorboard/x
    refused 'export_to: run/checkpoints/step-00000020 leads into run/checkpoints, where names that begin with "step-" are' \
        --set export_to=run/checkpoints/step-00000020
    refused 'export_to: saved/.lock leads into saved, where the lock of the checkpoints is' \
        --set trainer.checkpointing.save_dir=saved --set export_to=saved/.lock
    run -0 d9d-train -q --set trainer.run.steps=1 --set trainer.run.dir=. --set trainer.checkpointing.save_dir=. \
        --set export_to=exported c.json
}

@test "a run does not write over a dataset or a model" {
    cp -rL data bytes && cp -r bytes before
    refused "bytes/manifest.json: is not a run's, and a run would write its own over it" --set trainer.run.dir=bytes
    diff -r before bytes
    cp -r "$golden/moe" model
    refused "model/config.json: is not a run's, and a run would write its own over it" --set trainer.run.dir=model
    diff -r "$golden/moe" model
    mkdir run && cp c.json run/config.json # one's own configuration becomes the resolved one
    run -0 d9d-train -q --device cpu --set trainer.run.steps=1 run/config.json
    rm -r run
}

@test "files of a user's that have names of a run's are refused, and left" {
    mkdir -p mine/flight
    for f in metrics.jsonl samples.jsonl flight/rank-0.bin; do
        printf '{"text": "precious"}\n{"text": "two"}\n' >mine/$f
        cp mine/$f before
        refused "mine/$f: is not a run's, and a run would write its own over it" --set trainer.run.dir=mine
        refused "mine/$f: is not a run's, and a run would write its own over it" --set trainer.run.dir=mine --set trainer.checkpointing.resume=true
        cmp mine/$f before
        rm mine/$f
        [ -z "$(find mine -type f)" ]
    done
    # What a crash left of one's own is no other's.
    for text in '' '{"st' '\0\0\0\n{"step": 1, "first": 0, "samples": [0]}\n{"step'; do
        printf '%b' "$text" >mine/samples.jsonl
        d9d-train -q --set trainer.run.dir=mine --set trainer.run.steps=1 c.json
        rm -r mine
        mkdir mine
    done
}

@test "logs of a user's that begin as records of a run do are refused, and left" {
    mkdir mine
    local text
    for text in '{"step": 1, "text": "precious"}\n' '{"step": 1, "loss": 2.5, "lr": 0.1}\n' '{"step": 1, "loss": 2.5}' \
        '{"text": "precious"}\n{' '{"restart": 1, "by": "hand"}\n' '{"save": 1, "note": 2}\n' '{"step": 1, "first": "a"}\n'; do
        for f in metrics.jsonl samples.jsonl; do
            printf '%b' "$text" >mine/$f
            cp mine/$f before
            refused "mine/$f: is not a run's, and a run would write its own over it" --set trainer.run.dir=mine
            cmp mine/$f before
            rm mine/$f
            [ -z "$(ls -A mine)" ]
        done
    done
    # An empty metrics.jsonl is no run's, so that what lies beside it is looked at.
    : >mine/metrics.jsonl
    echo '{"mine": 1}' >mine/config.json
    refused "mine/config.json: is not a run's" --set trainer.run.dir=mine
    rm -r mine
}

@test "pipes, sockets and links that have names of a run's are refused at once" {
    mkdir -p mine/flight dir
    : >empty
    echo '{"text": "precious"}' >precious
    for f in metrics.jsonl samples.jsonl flight/rank-0.bin manifest.json config.json; do
        mkfifo mine/$f
        refused "mine/$f: is a pipe, must be a file" --set trainer.run.dir=mine
        rm mine/$f
        mkdir mine/$f
        refused "mine/$f: is a directory, must be a file" --set trainer.run.dir=mine
        rmdir mine/$f
        for to in empty precious absent dir; do
            ln -s "$PWD/$to" mine/$f
            refused "mine/$f: is a link, must be a file" --set trainer.run.dir=mine
            rm mine/$f
        done
    done
    [ -z "$(find mine -type f)" ]
    [ ! -e absent ]
    [ ! -s empty ]
    [ "$(cat precious)" = '{"text": "precious"}' ]
    # What a run has made and a user has moved away is as much a link.
    d9d-train -q --set trainer.run.dir=old --set trainer.run.steps=1 c.json
    mv old/samples.jsonl away
    ln -s ../away old/samples.jsonl
    cp away before
    refused 'old/samples.jsonl: is a link, must be a file' --set trainer.run.dir=old --set trainer.run.steps=2
    cmp away before
}

@test "a damaged line of metrics.jsonl is left out, and said once" {
    d9d-train -q --set trainer.run.steps=4 c.json
    sed -i '2s/.*/\x00\x00\x00{"step": 2,/' run/metrics.jsonl
    for command in show summary "compare run" spikes "plot -o p.svg" "export --to csv -o e.csv"; do
        # shellcheck disable=SC2086
        run -0 --separate-stderr d9d-metrics $command run
        [ "$(grep -c 'run/metrics.jsonl: line 2: it is not a JSON object; 1 damaged line is left out' <<<"$stderr")" -ge 1 ] || { echo "$command: $stderr"; false; }
    done
    [ "$(wc -l <e.csv)" = 4 ] # with a heading
    rm -r run/export
    run -0 --separate-stderr d9d-train --set trainer.run.steps=6 --set trainer.checkpointing.resume=true c.json
    [[ "$stderr" == *'run/metrics.jsonl: line 2 is damaged, 1 in all; they stay, and readers leave them out'* ]]
    rm -r run p.svg e.csv
}

# damaged OPTION...: a run "old" of two steps, whose second checkpoint has a changed byte.
damaged() {
    d9d-train -q --set trainer.run.dir=old --set trainer.run.steps=2 --set trainer.checkpointing.period_steps=1 "$@" c.json
    printf x | dd of=old/checkpoints/step-00000002/ranks-00000/model-r00000.safetensors bs=1 seek=20000 conv=notrunc status=none
}

@test "directories of a user's beside checkpoints: none is replaced, swept or taken for an old one" {
    d9d-train -q --set trainer.run.steps=3 --set trainer.checkpointing.period_steps=1 c.json
    cd run/checkpoints
    for copy in step-00000003.tmp-mine step-00000003.tmp-1-mine step-00000003.tmp-1-0; do cp -r step-00000003 $copy; done
    mkdir step-00000005 && echo thesis >step-00000005/thesis.tex
    rm -r ../export
    cd ../..
    says 2 'run/checkpoints/step-00000005: is no checkpoint of a run, and has the name of one; move it away' \
        d9d-train -q --set trainer.run.steps=6 --set trainer.checkpointing.period_steps=1 c.json
    [ "$(cat run/checkpoints/step-00000005/thesis.tex)" = thesis ]
    mv run/checkpoints/step-00000005 thesis
    d9d-train -q --set trainer.run.steps=6 --set trainer.checkpointing.period_steps=1 c.json
    [ -e run/checkpoints/step-00000006/manifest.json ]
    [ -e run/checkpoints/step-00000003.tmp-mine/manifest.json ]
    [ -e run/checkpoints/step-00000003.tmp-1-mine/manifest.json ]
    [ ! -e run/checkpoints/step-00000003.tmp-1-0 ]
    rm -r run
}

@test "places that hold something else" {
    mkdir full
    echo mine >full/file
    refused 'full: the finished model is to go there, and it is not empty: move what is there away, or set export_to' --set export_to=full
    [ "$(cat full/file)" = mine ]
    d9d-train -q --set trainer.run.dir=old --set trainer.run.steps=2 c.json
    refused 'old: holds a run already; set trainer.checkpointing.resume or another trainer.run.dir' \
        --set trainer.run.dir=old --set trainer.checkpointing.resume=false
    refused 'old/checkpoints: holds checkpoints already; set trainer.checkpointing.resume or another trainer.checkpointing.save_dir' \
        --set trainer.run.dir=new --set trainer.checkpointing.save_dir=old/checkpoints --set trainer.checkpointing.resume=false
    # A run that goes on must be the same run.
    refused 'old/checkpoints/step-00000002: was trained with another data.split, data.order or data.seed' \
        --set trainer.run.dir=old --set data.order=shuffled --set export_to=new
    refused 'old/checkpoints/step-00000002: has trainer.determinism.base_seed 0, and the configuration 5' \
        --set trainer.run.dir=old --set trainer.determinism.base_seed=5 --set export_to=new
    # What the checkpoint has no part in is said before it is read.
    run -2 --separate-stderr d9d-train --device gpu --set trainer.run.dir=old c.json
    [[ "$stderr" == 'd9d-train: invalid configuration: device "gpu": expected auto, cpu, cuda or cuda:N' ]]
    head -n 40 "$golden/moe/train.jsonl" | d9d-shard -q --format tokens --out half -
    refused 'old/checkpoints/step-00000002: was trained on another dataset than half' \
        --set trainer.run.dir=old --set data.dataset=half --set export_to=new
    refused 'old/checkpoints/step-00000002/manifest.json: tensor model.embed_tokens.token_embedding.regular.weight is float32, this run needs bfloat16' \
        --set trainer.run.dir=old --set export_to=new --set model_provider.dtype=bfloat16
    refused 'old/checkpoints/step-00000002/manifest.json: its optimizer state is exp_avg, exp_avg_sq, as of adamw, adam, stochastic_adamw, and the optimizer sgd of this run keeps none; a run goes on with the optimizer that it began with' \
        --set trainer.run.dir=old --set export_to=new --set 'optimizer={"name": "sgd", "lr": 1}'
    refused 'old/checkpoints/step-00000002/manifest.json: tensor model.embed_tokens.token_embedding.regular.weight has shape [157, 32], this run needs [211, 40]' \
        --set trainer.run.dir=old --set export_to=new --set model_provider.name=qwen3_dense \
        --set model_provider.hf_config="$golden/dense_untied/config.json"
    [ "$(records old)" = 2 ]
    touch file
    refused 'file: is no directory' --set trainer.run.dir=file/x
    refused 'file: is no directory' --set export_to=file/x
}

@test "... before the checkpoint is read, of which all bytes are hashed" {
    damaged --set export_to=unused
    refused 'old/checkpoints/step-00000002/manifest.json: tensor model.embed_tokens.token_embedding.regular.weight is float32, this run needs bfloat16' \
        --set trainer.run.dir=old --set model_provider.dtype=bfloat16
    rm -r old/checkpoints/step-00000001
    run -1 d9d-train -q --set trainer.run.dir=old c.json
    assert_output --partial 'none of 1 checkpoints can be used'
}

@test "... and of an older one, where the newest is damaged" {
    damaged
    rm -r old/export
    run -0 d9d-train --set trainer.run.dir=old --set trainer.run.steps=2 c.json
    [ "$(grep -c 'checkpoint passed over' <<<"$output")" -eq 1 ]
    grep -q '"restart": 1, "step": 1,' old/metrics.jsonl
    [ -e old/export/config.json ]
}

@test "rows that the host has no memory for, however short they are" {
    local n=$((1 << 30))
    [ "$(awk '/^MemTotal/ { print $2 }' /proc/meminfo)" -lt $((120 * n / 1024)) ] || skip "it has"
    refused "trainer.batching.microbatch_size $n: so many rows take " --set data.epochs=null --set trainer.run.steps=1 \
        --set trainer.batching.microbatch_size=$n --set trainer.batching.global_batch_size=$n
}

@test "nothing wrong costs a model's memory" {
    [ -z "${D9D_SAN:-}" ] || skip "sanitizers take address space of their own"
    local dims='{"layer": {"hidden_size": 131072, "intermediate_size": 262144, "num_attention_heads": 1024,
        "num_key_value_heads": 8, "head_dim": 128}, "num_hidden_layers": 1000, "max_position_ids": 4096,
        "split_vocab_size": {"regular": 157}, "split_vocab_order": ["regular"]}'
    huge=(--set "model_provider={\"name\": \"qwen3_dense\", \"model\": $dims}")
    ulimit -v 4000000
    refused 'moe' "${huge[@]}"
    huge+=(--set trainer.model_stage_factory.source_checkpoint=null)
    refused 'trainer.run.steps is 99, and data has 20 steps' "${huge[@]}" --set trainer.run.steps=99
    refused 'optimizer: stochastic_adamw rounds to bfloat16, and model.embed_tokens.token_embedding.regular.weight is float32; set model_provider.dtype to "bfloat16" or use adamw' \
        "${huge[@]}" --set optimizer.name=stochastic_adamw
    mkdir full
    touch full/x
    refused 'full: the finished model is to go there' "${huge[@]}" --set export_to=full
    refused 'heads' "${huge[@]}" --set model_provider.model.layer.num_key_value_heads=7
    # The good one fails for want of memory, and says of what.
    run -1 --separate-stderr d9d-train "${huge[@]}" --set trainer.run.dir=other c.json
    [[ "${stderr_lines[-1]}" == *'out of '*'memory'* ]]
}

@test "d9d-infer refuses as d9d-train does" {
    says 2 "trainer.model_stage_factory.source_checkpoint: name the model's weights" \
        d9d-infer --set trainer.model_stage_factory.source_checkpoint=null i.json
    says 2 'i.json: task.output: ' d9d-infer --set 'task={"name": "logprobs"}' i.json
    says 2 'i.json: task.name: unknown word "logprob"; did you mean "logprobs"?' d9d-infer --set task.name=logprob i.json
    says 2 'i.json: optimizer: unknown key' d9d-infer --set 'optimizer={}' i.json
    says 2 'nowhere' d9d-infer --set data.dataset=nowhere i.json
    says 2 'is 2 ranks, and this job has 1' d9d-infer --set mesh.tensor_parallel=2 i.json
    touch there
    says 2 'there: exists already; remove it or name another output' d9d-infer --set task.output=there i.json
    for task in perplexity logprobs generate embedding; do
        says 2 'none/out: cannot be made: No such file or directory' \
            d9d-infer --set "task={\"name\": \"$task\", \"output\": \"none/out\"}" i.json
        [[ "$stderr" != *"map:"* ]] # no weights were read
    done
    says 2 'there: exists already; remove it or name another output' d9d-infer --set 'task={"name": "perplexity", "output": "there"}' i.json
    says 2 'nowhere/out' d9d-infer --set task.output=nowhere/out i.json
    [ -z "$(ls -d ./*.part-* 2>/dev/null)" ]
}
