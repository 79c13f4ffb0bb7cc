#!/usr/bin/env bats
# shellcheck disable=SC2154 # variables of bats and of the helper
# d9d-map with every head of Qwen3, in every layout; golden/heads is what transformers writes.

setup() {
    load helper
    load map_helper
    mkdir "$BATS_TEST_TMPDIR/work" && cd "$BATS_TEST_TMPDIR/work" || return 1
    heads=$golden/heads
}

# names DIR: the tensors' names.
names() { d9d-map plan --json "$1" | grep -o '"name": "[^"]*"' | sort -u; }

# edit FILE SED-SCRIPT
edit() { sed -i "$2" "$1"; }

# there_and_back DIR: DIR, by the d9d layout, is DIR again: config.json to the byte.
there_and_back() {
    d9d-map -q --to d9d "$1" there
    d9d-map -q --to hf there back
    if ! d9d-map diff -q "$1" back >diff.out || ! cmp "$1/config.json" back/config.json; then
        echo "$1 is not itself again"
        cat diff.out
        return 1
    fi
    rm -r there back
}

@test "every head that transformers writes comes back byte for byte" {
    for c in "$heads"/*; do there_and_back "$c"; done
}

@test "every family, head, layout and tie comes back byte for byte" {
    n=0
    for family in dense_base moe_base; do
        for class in ForCausalLM ForSequenceClassification Model; do
            for tied in true false; do
                for layout in per-expert fused; do
                    sed "s/\"Qwen3\(Moe\)\?Model\"/\"Qwen3\1$class\"/; s/\(\"tie_word_embeddings\": \)[a-z]*/\1$tied/" \
                        "$heads/$family/config.json" >c.json
                    d9d-map init -q --model c.json --seed 3 --expert-layout "$layout" --shard-size 6kB m
                    there_and_back m
                    # Through the other layout of experts too.
                    if [ "$family $layout" = "moe_base fused" ]; then
                        d9d-map -q --to hf --expert-layout per-expert m each
                        d9d-map -q --to hf --expert-layout fused each again
                        d9d-map diff -q m again
                        rm -r each again
                    fi
                    rm -r m
                    n=$((n + 1))
                done
            done
        done
    done
    [ $n = 24 ]
}

@test "names and shapes are those of each head" {
    run -0 --separate-stderr d9d-map plan --all "$heads/dense_labels"
    [[ "$output" == *'< score.weight BF16 [5, 12]'*'> cls_head.score.weight BF16 [5, 12]'* ]]
    [[ "$output" != *lm_head* ]]
    run -0 --separate-stderr d9d-map plan --all "$heads/moe_base"
    [[ "$output" == *'< embed_tokens.weight '*'> model.embed_tokens.token_embedding.regular.weight '* ]]
    [[ "$output" == *'< layers.1.mlp.experts.2.up_proj.weight '*'> model.layers.1.mlp.grouped_experts.up_proj.weight '* ]]
    d9d-map -q "$heads/moe_base" d
    grep -q '"head": "embedding"' d/config.json
}

@test "config.json takes the generation of the experts' layout, and only then changes" {
    d9d-map -q --to hf --expert-layout per-expert "$golden/moe_fused" each
    grep -q '"num_experts": 8' each/config.json
    grep -q '"rope_theta": 1000000.0' each/config.json
    grep -q '"torch_dtype": "float32"' each/config.json
    run ! grep -qE 'num_local_experts|rope_parameters|"dtype"' each/config.json
    d9d-map -q --to hf --expert-layout fused each fused
    diff <(tr -d ' \n' <"$golden/moe_fused/config.json") <(tr -d ' \n' <fused/config.json)
    d9d-map -q --to hf --expert-layout fused "$golden/moe" new
    grep -q '"num_local_experts": 8' new/config.json
    run ! grep -qE '"num_experts"|^  "rope_theta"|torch_dtype|rope_scaling' new/config.json
    d9d-map diff -q "$golden/moe_fused" new
}

@test "a base model that calls itself a language model, as Qwen3-Embedding does" {
    cp -r "$heads/dense_base" e && chmod -R u+w e
    edit e/config.json 's/"Qwen3Model"/"Qwen3ForCausalLM"/; s/"tie_word_embeddings": false/"tie_word_embeddings": true/'
    there_and_back e
    # Its names alone tell, and those with "model." keep it where the class is a base model's.
    edit e/config.json '/"architectures"/,/\]/d'
    there_and_back e
    cp -r "$heads/dense_causal_tied" p && chmod -R u+w p
    edit p/config.json 's/"Qwen3ForCausalLM"/"Qwen3Model"/'
    there_and_back p
    d9d-map -q p d
    grep -q '"prefixed": true' d/config.json
}

@test "without a class the names tell the head" {
    for c in dense_labels moe_causal moe_base; do
        cp -r "$heads/$c" m && chmod -R u+w m
        edit m/config.json '/"architectures"/,/\]/d'
        there_and_back m
        rm -r m
    done
}

@test "a trainer's own class is known by its end, another is refused" {
    cp -r "$heads/dense_labels" m && chmod -R u+w m
    edit m/config.json 's/"Qwen3ForSeq/"FSDPQwen3ForSeq/'
    there_and_back m
    edit m/config.json 's/"FSDP.*"/"Qwen3ForTokenClassification"/'
    run -2 --separate-stderr d9d-map -q m d
    [ "$stderr" = 'd9d-map: not supported: m/config.json: architectures: ["Qwen3ForTokenClassification"] is not supported' ]
    edit m/config.json 's/"Qwen3ForTokenClassification"/"Qwen3ForCausalLM"/'
    run -2 --separate-stderr d9d-map -q m d
    [[ "$stderr" == *"tensor lm_head.weight is missing"* && "$stderr" == *"tensor score.weight is not used (m/model.safetensors)"* ]]
}

@test "config.json keeps its bytes on the way there and back, whatever its form" {
    cp -r "$heads/dense_labels" m && chmod -R u+w m
    tr -d '\n' <m/config.json >one
    sed 's/"LABEL_1"/"L\\u00e9gal"/; s/1e-06/0.1E-5/; s/}$/ } /' one >m/config.json
    there_and_back m
    # And where another member was added meanwhile, its meaning.
    d9d-map -q m d
    edit d/config.json 's/^{/{"unsloth_version": 1, /'
    d9d-map -q --to d9d d again
    cmp d/config.json again/config.json
    d9d-map -q d h
    sed 's/^{/{"unsloth_version": 1, /' m/config.json | cmp - h/config.json
}

@test "labels are counted as transformers counts them" {
    cp -r "$heads/dense_labels" m && chmod -R u+w m
    tr -d '\n' <m/config.json >one && sed -E 's/ *"(id2label|label2id)": \{[^}]*\},?//g' one >m/config.json
    run -2 --separate-stderr d9d-map -q m d
    [[ "$stderr" == *"tensor score.weight is BF16 [5, 12], qwen3 needs BF16 [2, 12]"* ]]
    edit m/config.json 's/^{/{"num_labels": 5, /'
    there_and_back m
    edit m/config.json 's/^{/{"id2label": {"0": "no", "1": "yes"}, /'
    run -2 --separate-stderr d9d-map -q m d
    [ "$stderr" = "d9d-map: invalid configuration: m/config.json: num_labels is 5 and id2label has 2 labels" ]
}

@test "the head that some tied checkpoints have besides is kept from file to file" {
    d9d-map -q --to hf "$golden/dense_tied" one
    cat >copy.json <<'JSON'
{"schema": "d9d.mapper.v1", "rest": "keep",
 "stages": [[{"op": "duplicate", "from": "model.embed_tokens.weight", "to": ["model.embed_tokens.weight", "lm_head.weight"]}]]}
JSON
    d9d-map -q --mapper copy.json one t
    d9d-map plan --all t | grep -q lm_head.weight
    there_and_back t
}

@test "a projection of embeddings has no place in HuggingFace's format" {
    sed 's/"hidden_size"/"d9d": {"head": "embedding", "embedding_dim": 9}, "hidden_size"/' \
        "$heads/dense_base/config.json" >c.json
    d9d-map init -q --to d9d --model c.json d
    d9d-map plan --all --to d9d d | grep -q '> embedding_head.projection.weight BF16 \[9, 12\]'
    run -2 --separate-stderr d9d-map -q d h
    [ "$stderr" = "d9d-map: not supported: qwen3: a HuggingFace checkpoint cannot have a projection of embeddings" ]
}

@test "d9d-train and d9d-infer refuse a head that is not the task's, before anything is made" {
    printf '{"input_ids": [1, 2, 3]}\n' | d9d-shard -q --format tokens --out data -
    for c in dense_labels moe_base; do
        provider="{\"name\": \"qwen3_${c%_*}\", \"hf_config\": \"$heads/$c/config.json\"}"
        source="{\"model_stage_factory\": {\"source_checkpoint\": \"$heads/$c\"}}"
        echo "{\"data\": {\"dataset\": \"data\"}, \"model_provider\": $provider, \"trainer\": $source}" >i.json
        run -2 --separate-stderr d9d-infer --device cpu i.json
        [[ "$stderr" == *"with the head \""*"\", and the task needs one with \"causal_lm\"" ]]
        edit i.json 's/"trainer": {/"optimizer": {"name": "adamw", "lr": 1}, "trainer": {"run": {"name": "x"}, "batching": {"global_batch_size": 1}, /'
        run -2 --separate-stderr d9d-train --device cpu i.json
        [[ "$stderr" == *"with the head \""*"\", and the task needs one with \"causal_lm\"" ]]
    done
    [ "$(echo ./*)" = "./data ./i.json" ]
}
