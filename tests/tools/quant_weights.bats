#!/usr/bin/env bats
# shellcheck disable=SC2154,SC2030,SC2031 # variables of bats and of the helper
# trainer.model_stage_factory.quantization: adapters learn on a base in 4 and 8 bits, d9d-infer
# computes with it, plans count its bytes, and what cannot be is said.  head_quantization: the same of
# the head, and of a tied model's embedding.

load train_bench

# Sequences in which three of four tokens follow from the one before, by FACTOR.
sequences() { # N FACTOR
    awk -v n="$1" -v f="$2" 'BEGIN { x = 1; for (i = 0; i < n; i++) { a = 0; printf "{\"input_ids\": ["
        for (j = 0; j < 33; j++) { x = (x * 16807) % 2147483647; a = x % 4 ? (f * a + 3) % 61 : x % 64; printf "%s%d", j ? ", " : "", a }
        print "]}" } }'
}

model='{"name": "qwen3_dense", "model": {"num_hidden_layers": 2,
   "layer": {"hidden_size": 128, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 32,
     "rms_norm_eps": 1e-6, "intermediate_size": 192}, "rope_base": 10000, "max_position_ids": 64,
   "initializer_range": 0.02, "split_vocab_size": {"regular": 64}, "split_vocab_order": ["regular"]}}'
tied() { printf '%s' "${model/'"split_vocab_size"'/'"tie_word_embeddings": true, "split_vocab_size"'}"; }
lora='{"kind": "lora", "module_name_pattern": ".*_proj", "params": {"r": 4, "alpha": 8}}'

small() { # DATA STEPS [FACTORY]
    cat <<JSON
{"data": {"dataset": "$1"}, "model_provider": $model,
 "trainer": {"run": {"name": "small", "dir": "run", "steps": $2},
   "batching": {"global_batch_size": 4, "microbatch_size": 4}, "gradient_clipping": {"max_norm": 1.0}${3:+, \"model_stage_factory\": $3}},
 "optimizer": {"name": "adamw", "lr": 3e-3}}
JSON
}
factory() { printf '{"source_checkpoint": "base", "checkpoint_only_trainable_parameters": true, "quantization": "%s"}' "$1"; }
data='"data": {"dataset": "text"}, '
infer() { # QUANTIZATION TASK [OPTION...]
    printf "{$data"'"model_provider": %s, "trainer": {"batching": {"microbatch_size": 4}, "model_stage_factory": {"source_checkpoint": "base", "quantization": "%s"}}, "task": %s}' \
        "$model" "$1" "$2" >infer.json
    d9d-infer -q --json "${@:3}" infer.json
}

setup_file() {
    workshop
    sequences 400 7 | d9d-shard -q --format tokens --out text -
    sequences 200 9 | d9d-shard -q --format tokens --out other -
    small text 60 >base.json
    d9d-train -q base.json
    mv run/export base
    rm -rf run
    model=$(tied) small text 60 >base.json
    d9d-train -q base.json
    mv run/export tied
    rm -rf run
}
setup() {
    bench
    ln -s "$shared/text" text
    ln -s "$shared/other" other
    ln -s "$shared/base" base
    ln -s "$shared/tied" tied
}
teardown() { clear_bench; }

loss_of() { sed -nE 's/.*"loss": ([0-9.]+),?.*/\1/p' <<<"$1"; }

@test "perplexity of a base in 8 and in 4 bits is near that of its elements" {
    for of in none fp8 nf4; do
        run -0 --separate-stderr infer $of '{"name": "perplexity"}'
        loss_of "$output"
    done | awk '{ v[NR] = $1 } END { exit !(NR == 3 && v[2] != v[1] && v[3] != v[1] &&
        (v[2] - v[1]) ^ 2 < (0.01 * v[1]) ^ 2 && (v[3] - v[1]) ^ 2 < (0.05 * v[1]) ^ 2) }'
}

@test "generation: a sequence has the same tokens alone and beside others" {
    for i in 1 2 3 4 5; do echo "{\"input_ids\": [$i, 10, $((3 * i))]}"; done >prompts.jsonl
    for of in fp8 nf4; do
        for rows in 1 5; do
            data='' infer $of "{\"name\": \"generate\", \"output\": \"$of$rows.jsonl\", \"prompts\": \"prompts.jsonl\", \"max_new_tokens\": 12, \"stop_at_eos\": false}" \
                --set trainer.batching.microbatch_size=$rows
        done
        cmp ${of}1.jsonl ${of}5.jsonl
        [ "$(wc -l <${of}1.jsonl)" = 5 ]
    done
}

head=trainer.model_stage_factory.head_quantization

# Losses, the first of them that of the elements.
near_first() { awk -v by="$1" '{ v[NR] = $1 } END { for (i = 2; i <= NR; i++) if (v[i] == v[1] || (v[i] - v[1]) ^ 2 > (by * v[1]) ^ 2) exit 1; exit NR < 2 }'; }

@test "a head in 8 and in 4 bits: losses near those of its elements, on quantised layers too" {
    for on in base tied; do
        [ $on = base ] || model=$(tied)
        for layers in none nf4; do
            for of in none fp8 nf4; do
                infer $layers '{"name": "perplexity"}' --set $head=$of --set trainer.model_stage_factory.source_checkpoint=$on >out
                loss_of "$(cat out)"
            done | near_first 0.01 || { echo "$on, layers in $layers"; false; }
        done
    done
}

@test "a head in 8 and in 4 bits: greedy answers, alone and beside others, are those of its elements" {
    for i in $(seq 40); do echo "{\"input_ids\": [$((i % 61)), 10, $((3 * i % 61))]}"; done >prompts.jsonl
    for on in base tied; do
        [ $on = base ] || model=$(tied)
        for of in none fp8 nf4; do
            for rows in 1 7 40; do
                data='' infer none "{\"name\": \"generate\", \"output\": \"$on-$of$rows.jsonl\", \"prompts\": \"prompts.jsonl\", \"max_new_tokens\": 12, \"stop_at_eos\": false}" \
                    --set trainer.batching.microbatch_size=$rows --set $head=$of --set trainer.model_stage_factory.source_checkpoint=$on >sum
            done
            cmp $on-${of}1.jsonl $on-${of}7.jsonl
            cmp $on-${of}1.jsonl $on-${of}40.jsonl
            [ $of != none ] || continue
            # A sequence that has once another token goes its own way.
            for f in none $of; do grep -o '"tokens": \[[^]]*' "$on-${f}1.jsonl" | grep -o '[0-9]\+'; done |
                awk -v n=480 '{ v[NR] = $1 } END { for (i = 1; i <= n; i++) same += v[i] == v[n + i]; exit NR != 2 * n || same < 0.8 * n }'
        done
    done
}

@test "a head in 4 bits needs less memory" {
    fits() { # BYTES OPTION...
        infer none '{"name": "logprobs", "output": "lp.jsonl"}' --device "cpu@$1" "${@:2}" >/dev/null 2>err
        local rc=$?
        rm -f lp.jsonl
        return $rc
    }
    least() {
        local at=100000 step
        for step in 1048576 131072 16384 2048 256; do
            while ! fits $at "$@"; do at=$((at + step)); done
            at=$((at - step))
        done
        echo $((at + 256))
    }
    # 64 rows of 96 bytes in the place of 512.
    [ $(($(least) - $(least --set $head=nf4))) = $((64 * (512 - 96))) ]
}

@test "a head that cannot be quantised is refused in one sentence" {
    key=trainer.model_stage_factory.head_quantization
    small other 8 "$(factory nf4)" >tune.json
    says 2 "$key \"fp8\": training reads the head as it is; d9d-infer takes this key" d9d-train --set "peft=$lora" --set $head=fp8 tune.json
    says 2 "$key \"fp8\": training reads the head as it is; d9d-infer takes this key" d9d-train --plan --set "peft=$lora" --set $head=fp8 tune.json
    [ ! -e run ]
    says 2 "$key \"nf4\": the model of this task has no head of its vocabulary" \
        infer none '{"name": "hidden_states", "output": "h"}' --set $head=nf4
    says 2 "$key \"nf4\": lm_head.lm_head.regular.weight has an adapter, which reads the head as it is; without the section peft it is merged before" \
        infer none '{"name": "perplexity"}' --set $head=nf4 --set "peft=${lora/.*_proj/lm_head.*}" --set trainer.model_stage_factory.source_adapter=run/adapter
    sed 's/"hidden_size": 128/"hidden_size": 40/' infer.json >odd.json
    says 2 "$key \"nf4\": rows of lm_head.lm_head.regular.weight have 40 elements, and multiples of 64 are possible" \
        d9d-infer --set $head=nf4 --set trainer.model_stage_factory.source_checkpoint="$golden/dense_untied" \
        --set task='{"name": "perplexity"}' odd.json
}

@test "adapters learn on a base in 4 and 8 bits, and leave a directory of adapters alone" {
    for of in nf4 fp8; do
        small other 40 "$(factory $of)" >tune.json
        rm -rf run
        run -0 --separate-stderr d9d-train --set "peft=$lora" tune.json
        [[ "$stderr" == *"and layers' matrices in $of"* ]]
        grep -o '"loss": [0-9.]*' run/metrics.jsonl | awk '{ v[NR] = $2 } END { exit !(NR == 40 && v[40] < 0.8 * v[1]) }'
        [ ! -e run/export ]
        [ -s run/adapter/adapter_model.safetensors ]
        run -0 --separate-stderr infer $of '{"name": "perplexity"}' --set data.dataset=other \
            --set trainer.model_stage_factory.source_adapter=run/adapter
        loss_of "$output" >with
        run -0 --separate-stderr infer $of '{"name": "perplexity"}' --set data.dataset=other
        loss_of "$output" | awk -v with="$(cat with)" '{ exit !(with < 0.9 * $1) }'
        d9d-map -q --adapter run/adapter --to hf base merged && rm -rf merged
    done
}

@test "a run that is interrupted has the losses of one that is not" {
    small other 8 "$(factory nf4)" >tune.json
    d9d-train -q --set "peft=$lora" --set trainer.run.dir=whole tune.json
    d9d-train -q --set "peft=$lora" --set trainer.run.steps=4 tune.json
    rm -rf run/adapter
    d9d-train -q --set "peft=$lora" tune.json
    for of in run whole; do grep -o '"loss": [0-9.]*' $of/metrics.jsonl >$of.losses; done
    cmp run.losses whole.losses
    cmp {run,whole}/adapter/adapter_model.safetensors
}

@test "a plan counts the bytes that are stored" {
    small other 8 >plan.json
    weights() { d9d-train --plan --json --set "peft=$lora" "$@" plan.json | sed -nE 's/.*"weights": ([0-9]+).*/\1/p'; }
    for of in none fp8 nf4; do weights --set "trainer.model_stage_factory.quantization=$of"; done |
        awk '{ v[NR] = $1 } END { exit !(NR == 3 && v[3] < v[2] && v[2] < v[1]) }'
}

@test "what cannot be is refused in one sentence" {
    refused() { # SENTENCE [OPTION...]
        local sentence=$1
        shift
        says 2 "$sentence" d9d-train "$@"
        [ ! -e run ]
    }
    key=trainer.model_stage_factory
    small other 8 "$(factory nf4)" >tune.json
    refused "$key.quantization \"nf4\": model.embed_tokens.token_embedding.regular.weight is trained, and with a quantised base adapters alone are: peft.kind \"lora\"" tune.json
    refused "$key.quantization \"nf4\": there are no weights to quantise; name them with source_checkpoint" \
        --set "peft=$lora" --set $key.source_checkpoint=null tune.json
    refused "$key.quantization \"nf4\": a checkpoint has the adapters alone: checkpoint_only_trainable_parameters true" \
        --set "peft=$lora" --set $key.checkpoint_only_trainable_parameters=false tune.json
    refused "export_to: the layers' matrices are in nf4, so that the run writes its adapters alone; d9d-map merges them into the weights" \
        --set "peft=$lora" --set export_to=there tune.json
    refused "$key.quantization \"nf4\" and trainer.fp8: matrices that are stored so are multiplied in the model's dtype; leave one out" \
        --set "peft=$lora" --set 'trainer.fp8={}' tune.json
    sed 's/qwen3_dense/qwen3_moe/; s/"intermediate_size"/"num_experts": 4, "experts_top_k": 2, &/' tune.json >experts.json
    refused "has the matrices of 4 experts, which are not quantised yet; dense models are" --set "peft=${lora/.*_proj/.*[qv]_proj}" experts.json
    refused "$key.quantization \"nf4\": rows of model.layers.0.self_attn.q_proj.weight have 40 elements, and multiples of 64 are possible" \
        --set "peft=$lora" --set $key.quantization=nf4 --set $key.source_checkpoint="$golden/dense_untied" --set $key.checkpoint_only_trainable_parameters=true \
        --set model_provider="{\"name\": \"qwen3_dense\", \"hf_config\": \"$golden/dense_untied/config.json\"}" tune.json
}

@test "(IA)^3 learns on a quantised base, and magnitudes are refused" {
    small other 4 "$(factory nf4)" >c.json
    says 2 'q_proj.weight has an adapter of the kind dora, which reads the matrix as it is' \
        d9d-train -q --set "peft=${lora/\"lora\"/\"dora\"}" c.json
    [ ! -e run ]
    d9d-train -q --set 'peft={"kind": "ia3", "module_name_pattern": ".*(k|v|down)_proj", "feedforward_name_pattern": "down_proj"}' c.json
    grep -q '"peft_type": "IA3"' run/adapter/adapter_config.json
}

@test "adapters on a quantised base are computed with as they were trained, or merged before it is quantised" {
    small other 8 "$(factory nf4)" >c.json
    d9d-train -q --set "peft=$lora" c.json
    sed 's/"steps": 8/"steps": 1/; s/"dir": "run"/"dir": "still"/' c.json >still.json
    d9d-train -q --set "peft=$lora" --set trainer.model_stage_factory.source_adapter=run/adapter \
        --set trainer.batching.global_batch_size=200 --set optimizer.lr=1e-30 still.json
    want=$(sed -nE '1s/.*"loss": ([^,]+),.*/\1/p' still/metrics.jsonl)
    beside=$(infer nf4 '{"name": "perplexity"}' --set data.dataset=other --set "peft=$lora" \
        --set trainer.model_stage_factory.source_adapter=run/adapter | sed -nE 's/.*"loss": ([^,]+),/\1/p')
    merged=$(infer nf4 '{"name": "perplexity"}' --set data.dataset=other \
        --set trainer.model_stage_factory.source_adapter=run/adapter | sed -nE 's/.*"loss": ([^,]+),/\1/p')
    awk -v w="$want" -v b="$beside" -v m="$merged" 'BEGIN { exit !((b - w) ^ 2 < 4e-12 && (m - w) ^ 2 > 1e-10) }' ||
        { echo "$want, $beside, $merged"; false; }
}
