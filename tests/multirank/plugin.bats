#!/usr/bin/env bats
# shellcheck disable=SC2154 # variables of bats
# Plugins built against an installed tree: found, rejected, trained with, alone and on several
# ranks.

golden=$BATS_TEST_DIRNAME/../golden/llama

load workroom

setup_file() {
    workroom
    plugin plain_llama "$root/examples/plugins/plain_llama.c"
    d9d-shard -q --format tokens --out data "$golden/tokens.jsonl"
    config '"steps": 6' >train.json
    sed -e '/optimizer/d' -e 's/^ "trainer.*/ "trainer": {"batching": {"microbatch_size": 2},/' \
        -e 's/^  "model_stage.*}}},$/  "model_stage_factory": {"source_checkpoint": "'"${golden//\//\\/}"'"}},/' train.json >infer.json
    echo ' "task": {"name": "logprobs", "output": "out.jsonl"}}' >>infer.json
}
# config RUN-MEMBERS: a configuration that trains the golden Llama.
config() {
    cat <<JSON
{"plugin": "libplain_llama.so", "data": {"dataset": "data", "epochs": 3},
 "model_provider": {"name": "plain_llama", "hf_config": "$golden/config.json"},
 "trainer": {"run": {"name": "llama", $1}, "batching": {"global_batch_size": 4},
  "model_stage_factory": {"source_checkpoint": "$golden"}, "gradient_clipping": {"max_norm": 1.0}},
 "optimizer": {"name": "adamw", "lr": 1e-3}}
JSON
}

# names FILE: the tensor names of a safetensors file.
names() { head -c 20000 "$1" | tr ',' '\n' | grep -aoE '"[a-z_.0-9]+":\{"dtype"' | sort; }
@test "an installed tree has what a plugin needs, readable by every user" {
    (umask 077 && make -s --no-print-directory -C "$root" install DESTDIR="$work/stage" PREFIX=/opt/d9d)
    assert_equal "$(find stage/opt/d9d ! -type l \( ! -perm -o=r -o -type d ! -perm -o=x \))" ""
    [ -x stage/opt/d9d/bin/d9d-train ]
    [ -f stage/opt/d9d/lib/libd9d.so ]
    [ -f stage/opt/d9d/include/d9d/tasks/plugin.h ]
    [ -f stage/opt/d9d/share/man/man7/d9d-plugin.7 ]
    [ -f stage/opt/d9d/share/doc/d9d/docs/howto/write-a-plugin.md ]
    [ -f stage/opt/d9d/share/doc/d9d/examples/plugins/plain_llama.c ]
    grep -qx 'prefix=/opt/d9d' stage/opt/d9d/lib/pkgconfig/d9d.pc
    make -s --no-print-directory -C "$root" uninstall DESTDIR="$work/stage" PREFIX=/opt/d9d
    [ "$(find stage -type f | wc -l)" -eq 0 ]
}

@test "an installation is bound to its absolute path" {
    for to in PREFIX=here PREFIX= "PREFIX=$work/a b" "DESTDIR=$work/a b"; do
        for what in install uninstall; do
            run -2 make -s --no-print-directory -C "$root" $what "$to"
            assert_output --partial "an absolute path without blanks is needed"
        done
    done
}

@test "the plugin's Llama equals transformers" {
    run -0 d9d-infer -q --device cpu infer.json
    probs() { grep -oE "[-][0-9.]+(e-[0-9]+)?" "$1"; }
    close_to 1e-5 <(probs out.jsonl | head -n 87) <(probs "$golden/logprobs.jsonl")
}

@test "the plugin's layers give hidden states" {
    run -0 d9d-infer -q --device cpu --set 'task={"name": "hidden_states", "output": "layers.npy", "layers": [0, 2]}' infer.json
    head -c 128 layers.npy | grep -aqE "'shape': [(][0-9]+, 2, 32[)]"
    run -2 d9d-infer -q --device cpu --set 'task={"name": "hidden_states", "output": "none.npy", "layers": [3]}' infer.json
}

@test "the plugin's Llama trains, exports under HuggingFace's names and resumes" {
    run -0 d9d-train -q --device cpu --set trainer.run.dir=alone train.json
    [ "$(names alone/export/model.safetensors)" = "$(names "$golden/model.safetensors")" ]
    grep -q '"model_type": "llama"' alone/export/config.json
    run -0 d9d-train -q --device cpu --set trainer.run.dir=part --set trainer.run.steps=3 train.json
    rm -r part/export
    run -0 d9d-train -q --device cpu --set trainer.run.dir=part train.json
    cmp {alone,part}/export/model.safetensors
}

@test "activation checkpointing gives the same bits" {
    [ -d alone ] || d9d-train -q --device cpu --set trainer.run.dir=alone train.json
    for mode in full selective; do
        run -0 d9d-train -q --device cpu --set trainer.run.dir=again-$mode \
            --set model_provider.checkpointing=$mode train.json
        cmp {alone,again-$mode}/export/model.safetensors
    done
}

@test "checkpointing half-layers saves memory, checkpointing layers more" {
    peak() {
        d9d-train --plan --gpu cpu --json --set model_provider.checkpointing="$1" train.json |
            sed -n 's/^ *"peak": \([0-9]*\),$/\1/p'
    }
    [ "$(peak full)" -lt "$(peak selective)" ]
    [ "$(peak selective)" -lt "$(peak off)" ]
}

@test "the plugin's Llama on several ranks equals one" {
    with_mpi
    [ -d alone ] || d9d-train -q --device cpu --set trainer.run.dir=alone train.json
    for mesh in "2 1" "1 2" "2 2" "1 4"; do
        read -r replicate shard <<<"$mesh"
        mpi -n $((replicate * shard)) d9d-train -q --device cpu --set mesh.data_parallel_replicate="$replicate" \
            --set mesh.data_parallel_shard="$shard" --set trainer.run.dir="ranks-$replicate-$shard" train.json
        close_to 1e-5 <(numbers loss "ranks-$replicate-$shard") <(numbers loss alone)
        close_to 1e-5 <(numbers grad_norm "ranks-$replicate-$shard") <(numbers grad_norm alone)
        cmp "ranks-$replicate-$shard/export/config.json" alone/export/config.json
    done
}

@test "a different build of a plugin on one rank is rejected" {
    with_mpi
    mkdir -p rebuilt && cp -r data train.json rebuilt/
    plugin plain_llama "$root/examples/plugins/plain_llama.c"
    (cd rebuilt && plugin plain_llama "$root/examples/plugins/plain_llama.c" -O1)
    job=(d9d-train -q --device cpu --set mesh.data_parallel_shard=2 --set "trainer.run.dir=$work/never" train.json)
    run -2 mpi -n 1 "${job[@]}" : -n 1 -wdir "$work/rebuilt" "${job[@]}"
    assert_line --regexp '^d9d-train: invalid configuration: rank 1 \(.*\): \./libplain_llama\.so: is another one here than on rank 0'
    [ ! -e never ]
}

@test "the plugin's Llama over pipeline stages equals one rank" {
    with_mpi
    [ -d alone ] || d9d-train -q --device cpu --set trainer.run.dir=alone train.json
    mpi -n 4 d9d-train -q --device cpu --set mesh.pipeline_parallel=2 --set mesh.data_parallel_shard=2 \
        --set trainer.run.dir=stages train.json
    close_to 1e-5 <(numbers loss stages) <(numbers loss alone)
    close_to 1e-5 <(numbers grad_norm stages) <(numbers grad_norm alone)
    [ "$(names stages/export/model.safetensors)" = "$(names alone/export/model.safetensors)" ]
    run -2 mpi -n 3 d9d-train -q --device cpu --set mesh.pipeline_parallel=3 --set trainer.run.dir=none train.json
    assert_output --partial "pipeline: stage 2 of 3 gets no layer"
    [ ! -e none ]
}

@test "a tied Llama equals one whose head is a copy of the embedding, over stages too" {
    sed 's/"tie_word_embeddings": false/"tie_word_embeddings": true/' "$golden/config.json" >tied_config.json
    tied=(--set model_provider.hf_config=tied_config.json --set trainer.model_stage_factory.source_checkpoint=null)
    run -0 d9d-train -q --device cpu "${tied[@]}" --set trainer.run.dir=tied train.json
    run -1 grep -a lm_head tied/export/model.safetensors
    cat >untie.json <<'JSON'
{"schema": "d9d.mapper.v1", "stages": [[
  {"op": "duplicate", "from": "model.embed_tokens.weight", "to": ["model.embed_tokens.weight", "lm_head.weight"]}]], "rest": "keep"}
JSON
    run -0 d9d-map -q --mapper untie.json tied/export untied
    run -0 d9d-infer -q --device cpu --set task.output=tied.jsonl --set model_provider.hf_config=tied_config.json \
        --set trainer.model_stage_factory.source_checkpoint=tied/export infer.json
    run -0 d9d-infer -q --device cpu --set task.output=untied.jsonl \
        --set trainer.model_stage_factory.source_checkpoint=untied infer.json
    cmp {tied,untied}.jsonl
    has_mpi || return 0
    mpi -n 4 d9d-train -q --device cpu "${tied[@]}" --set mesh.pipeline_parallel=2 --set mesh.data_parallel_shard=2 \
        --set trainer.run.dir=tied_stages train.json
    close_to 1e-5 <(numbers loss tied_stages) <(numbers loss tied)
    close_to 1e-5 <(numbers grad_norm tied_stages) <(numbers grad_norm tied)
    [ "$(names tied_stages/export/model.safetensors)" = "$(names tied/export/model.safetensors)" ]
    # a family without the field rejects it
    sed -e '/bool tie_word_embeddings;/d; /\.tied/d; s/for longer rows"), *\\/for longer rows")/' \
        -e '/KEY_BOOL(dims, tie_word/d' "$root/examples/plugins/plain_llama.c" >untold.c
    plugin untold untold.c
    run -2 d9d-train -q --device cpu "${tied[@]}" --set plugin=libuntold.so --set trainer.run.dir=none train.json
    assert_output --partial 'tied_config.json: tie_word_embeddings: true is not supported'
}

@test "features that a plugin lacks are rejected before the model is loaded" {
    run -2 d9d-train --device cpu --set mesh.tensor_parallel=2 train.json
    has_mpi || return 0
    run -2 mpi -n 2 d9d-train --device cpu --set mesh.tensor_parallel=2 --set trainer.run.dir=none train.json
    assert_output --partial "mesh.tensor_parallel is 2, and plain_llama has no plan for it"
    [ ! -e none ]
}

@test "a plugin's keys are in the parser, the defaults and the schema" {
    run -0 d9d-train --print-config train.json
    assert_output --partial '"plugin": "libplain_llama.so"'
    assert_output --partial '"dtype": "float32"'
    run -0 d9d-train --print-schema train.json
    assert_output --partial '"const": "plain_llama"'
    run -0 d9d-train --print-schema
    refute_output --partial '"const": "plain_llama"'
    run -2 d9d-train --set model_provider.name=plain_lama train.json
    assert_output --partial 'unknown word "plain_lama"; did you mean "plain_llama"?'
    run -2 d9d-train --set model_provider.hidden=3 train.json
    assert_output --partial 'model_provider.hidden: unknown key'
    run -2 d9d-train --set 'plugin=[]' train.json
    assert_output --partial 'unknown word "plain_llama"; expected auto, qwen3_dense, qwen3_moe'
}

@test "a plugin is found beside the configuration, by path, and by the dynamic loader" {
    mkdir -p elsewhere lib
    cp train.json elsewhere/
    cp libplain_llama.so lib/libother.so
    run -2 d9d-train --print-config elsewhere/train.json
    assert_output --partial "libplain_llama.so: cannot open shared object file"
    run -0 d9d-train --print-config --set plugin=../libplain_llama.so elsewhere/train.json
    run -0 d9d-train --print-config --set plugin="$work/libplain_llama.so" elsewhere/train.json
    LD_LIBRARY_PATH=$work/lib:$LD_LIBRARY_PATH run -0 d9d-train --print-config --set plugin=libother.so elsewhere/train.json
}

# bad NAME <<<SOURCE: builds a faulty plugin.
bad() { cat >"$1.c" && plugin "$1" "$1.c" && run -2 d9d-train --print-config --set "plugin=lib$1.so" train.json; }

@test "a library that is no plugin, or for another version, is rejected with a message" {
    run -2 d9d-train --print-config --set plugin=libnone.so train.json
    assert_output --partial "plugin: libnone.so: cannot open shared object file"
    echo text >libtext.so
    run -2 d9d-train --print-config --set plugin=libtext.so train.json
    assert_output --partial "libtext.so: "
    mkfifo libpipe.so && mkdir libdir.so && ln -s /dev/null libdevice.so
    for kind in pipe dir:directory device; do
        run -2 timeout 60 d9d-train --print-config --set "plugin=./lib${kind%:*}.so" train.json
        assert_output --partial "lib${kind%:*}.so: is a ${kind#*:}, must be a file"
    done
    run -2 d9d-train --print-config --set plugin=7 train.json
    assert_output --partial "plugin: expected the name of a shared library"
    run -2 d9d-train --print-config --set 'plugin=["libplain_llama.so", "./libplain_llama.so"]' train.json
    assert_output --partial 'libplain_llama.so: the model provider "plain_llama" is there already'
    bad symbol <<<'int x;'
    assert_output --partial "libsymbol.so: has no d9d_plugin_table, which D9D_PLUGIN() defines"
    bad undefined <<<'int missing_here(void); int d9d_plugin_table(void); int d9d_plugin_table(void) { return missing_here(); }'
    assert_output --partial "undefined symbol: missing_here"
    bad abi <<<'#include <d9d/tasks/plugin.h>
const D9D_API d9d_plugin d9d_plugin_table = {.size = sizeof(d9d_plugin), .abi = D9D_PLUGIN_ABI + 1};'
    assert_output --partial "libabi.so: was built for plugins of version 6, this d9d loads 5"
    bad embeds <<<'#include <d9d/tasks/plugin.h>
static const size_t embeds[] = {sizeof(d9d_tensor), sizeof(d9d_param) - 8, 0};
const D9D_API d9d_plugin d9d_plugin_table = {.size = sizeof(d9d_plugin), .abi = D9D_PLUGIN_ABI, .embeds = embeds};'
    assert_output --partial "libembeds.so: was built where d9d_param has "
    bad empty <<<'#include <d9d/tasks/plugin.h>
static const d9d_key keys[] = {D9D_MODEL_SECTION_KEYS, D9D_KEY_END};
static const d9d_table table = D9D_TABLE(d9d_model_section, "mine", keys, "mine");
static const d9d_model_provider provider = {.size = sizeof(provider), .table = &table};
static const d9d_model_provider *const models[] = {&provider, NULL};
D9D_PLUGIN(.models = models);'
    assert_output --partial 'libempty.so: the model provider "mine" has no create'
    head -c 4000 libplain_llama.so >libcut.so
    run -2 d9d-train --print-config --set plugin=libcut.so train.json
    assert_output --partial "libcut.so: ends at byte 4000, its sections at "
    { head -c 18 libplain_llama.so && printf '\377\177' && tail -c +21 libplain_llama.so; } >libother.so
    run -2 d9d-train --print-config --set plugin=libother.so train.json
    assert_output --partial "libother.so: is for another machine (ELF 32767, this is "
}

# row SIZE NAME KEYS: builds an optimizer table with this size, name and keys, which must be rejected.
row() {
    bad row <<SOURCE
#include <d9d/tasks/plugin.h>
typedef struct section { double lr; } section;
typedef struct larger { double lr, more; } larger;
static const d9d_key keys[] = {D9D_KEY_REAL(section, lr, "0.1", 0, 1, "rate"), $3 D9D_KEY_END};
static const d9d_table table = D9D_TABLE(section, "$2", keys, "mine");
static d9d_status update(const void *c, const d9d_optimizer_update *u) { (void)c, (void)u; return D9D_OK; }
static const d9d_optimizer_kind kind = {$1, &table, .states = {NULL}, .update = update};
static const d9d_optimizer_kind *const kinds[] = {&kind, NULL};
D9D_PLUGIN(.optimizers = kinds);
SOURCE
}

@test "an invalid table is rejected with the plugin's name" {
    row 0 mine ''
    assert_output --partial 'librow.so: a table of the kind "optimizer" says that it has 0 bytes'
    row 8 mine ''
    assert_output --partial 'has 8 bytes; its size comes first'
    row '(size_t)1 << 40' mine ''
    assert_output --partial 'it was built for a newer one'
    row 'sizeof(kind)' adamw ''
    assert_output --partial 'librow.so: the optimizer "adamw" is there already'
    row 'sizeof(kind)' '' ''
    assert_output --partial 'is no word of letters'
    row 'sizeof(kind)' 'a\nb' ''
    assert_output --partial 'is no word of letters'
    row 'sizeof(kind)' mine 'D9D_KEY_REAL(larger, more, "1", 0, 1, "beyond"),'
    assert_output --partial 'librow.so: key table mine: more ends at byte 16 of a struct that has 8'
    row 'sizeof(kind)' mine 'D9D_KEY_ENUM(section, lr, "1", NULL, "words"),'
    assert_output --partial 'librow.so: key table mine: lr has no words'
    row 'sizeof(kind)' mine 'D9D_KEY_REAL(section, lr, "fast", 0, 1, "a word without quotes"),'
    assert_output --partial 'librow.so: key table mine: the default of lr is fast, which is not JSON; a text has quotes of its own'
    bad keyless <<<'#include <d9d/tasks/plugin.h>
static const d9d_table table = {.name = "mine"};
static const d9d_train_task task = {.size = sizeof(task), .table = &table};
static const d9d_train_task *const tasks[] = {&task, NULL};
D9D_PLUGIN(.train_tasks = tasks);'
    assert_output --partial 'libkeyless.so: key table mine: it has no keys'
}

@test "a failing callback of a plugin ends the job with a message that names it" {
    [ -e libfaulty.so ] || plugin faulty "$BATS_TEST_DIRNAME/faulty_plugin.c"
    # fault, section, exit code, message
    while IFS='|' read -r fault section code sentence; do
        more=()
        [ "$fault" != logits ] || more=(--set 'metrics=[{"name": "faulty"}]')
        D9D_FAULT=$fault run "-$code" d9d-train -q --device cpu --set trainer.run.dir=faulty --set trainer.run.steps=2 \
            --set 'plugin=["libplain_llama.so", "libfaulty.so"]' --set "$section" "${more[@]}" train.json
        assert_output --partial "$sentence"
        rm -rf faulty
    done <<'ROWS'
update|optimizer={"name": "faulty"}|1|faulty: its update() failed and does not say why
number|optimizer={"name": "faulty"}|1|faulty: its update() returned 77, which is no d9d_status
states|optimizer={"name": "faulty"}|1|optimizer faulty: n_states() gave 9, it has 1 names
dtype|optimizer={"name": "faulty"}|1|the type 99, not float32, bfloat16 or int8
create|lr_scheduler={"name": "faulty"}|1|faulty: its create() failed and does not say why
rate|lr_scheduler={"name": "faulty"}|1|lr_scheduler: the learning rate of step 1 is nan
facts|data={"dataset": "d", "source": {"name": "faulty"}}|1|faulty: its info() failed and does not say why
sample|data={"dataset": "d", "source": {"name": "faulty"}}|1|faulty: its sample() failed and does not say why
open|task={"name": "faulty"}|1|faulty: its open() failed and does not say why
forward|task={"name": "faulty"}|1|faulty: its forward() failed and does not say why
no loss|task={"name": "faulty"}|1|faulty: forward() set no loss
loss|task={"name": "faulty"}|1|faulty: forward() set a loss of int32, not of float32
targets|task={"name": "faulty"}|1|faulty: targets() gave -7 for 1 row
state|task={"name": "faulty"}|1|faulty: state() gave no array, and says 3
logits|task={"name": "faulty"}|1|metrics: predictions of int32 in 1 dimensions
form|metrics=[{"name": "faulty"}]|1|faulty: its form() failed and does not say why
state_size|metrics=[{"name": "faulty"}]|2|form() of faulty gave a state of -1 elements
handle|data.epochs=3|1|train.step.pre: its handle() failed and does not say why
ROWS
    run -0 d9d-train -q --device cpu --set trainer.run.dir=faulty --set 'plugin=["libplain_llama.so", "libfaulty.so"]' \
        --set 'task={"name": "faulty"}' train.json
}

@test "an unknown event and a subscription without a function are rejected" {
    for row in '"train.stepp.pre", handle|event train.stepp.pre: there is none of this name; did you mean "train.step.pre"?' \
        '"train.ready", NULL|event train.ready: its subscription has no function'; do
        cat >deaf.c <<SOURCE
#include <d9d/tasks/plugin.h>
static d9d_status handle(void *self, const d9d_job_event *e) { (void)self, (void)e; return D9D_OK; }
static const d9d_job_event_handler events[] = {{"mine.own", handle}, {${row%%|*}}, {NULL, NULL}};
D9D_PLUGIN(.events = events);
SOURCE
        plugin deaf deaf.c
        run -2 d9d-train -q --device cpu --set 'plugin=["libplain_llama.so", "libdeaf.so"]' --set trainer.run.dir=none train.json
        assert_output --partial "${row#*|}"
        [ ! -e none ]
    done
}

# texts N: samples of three classes, given by the second token.
texts() {
    awk -v n="$1" 'BEGIN { x = 7; for (i = 0; i < n; i++) {
        printf "{\"input_ids\": ["; len = 4 + i % 5; class = i % 3
        for (j = 0; j < len; j++) { x = x * 16807 % 2147483647; printf "%s%d", j ? ", " : "", j == 1 ? class : x % 90 }
        printf "], \"labels\": ["
        for (j = 0; j < len; j++) printf "%s%d", j ? ", " : "", j == len - 1 ? class : -100
        print "]}" } }'
}
classification() {
    [ -e libclassify.so ] || plugin classify "$root/examples/plugins/classify.c"
    [ -e libbrier.so ] || plugin brier "$root/examples/plugins/brier.c"
    [ -d texts ] || texts 48 | d9d-shard -q --format tokens --out texts -
    sed -e 's/"libplain_llama.so"/["libplain_llama.so", "libclassify.so", "libbrier.so"]/' -e 's/"data", "epochs": 3/"texts", "epochs": 4/' \
        -e 's/"steps": 6/"steps": 24/' -e 's/"global_batch_size": 4/"global_batch_size": 8/' -e 's/"lr": 1e-3}}/"lr": 5e-3},/' train.json >classify.json
    cat >>classify.json <<'JSON'
 "task": {"name": "classify", "num_labels": 3},
 "metrics": [{"name": "accuracy", "problem": "multiclass", "num_classes": 3}, {"name": "brier"}]}
JSON
}

@test "a plugin's task trains, and a plugin's metric sees its results" {
    classification
    run -0 d9d-train -q --device cpu --set trainer.run.dir=classes classify.json
    awk -F'"loss": ' '/"loss"/ { split($2, v, ","); if (!n++) first = v[1]; last = v[1] } END { exit !(last < first / 2) }' classes/metrics.jsonl
    [ "$(numbers accuracy classes | wc -l)" -eq 24 ]
    awk '{ if (!($1 >= 0 && $1 <= 2)) exit 1 } END { exit !(NR == 24 && $1 < 0.3) }' <(numbers brier classes)
    awk 'END { exit !($1 > 0.8) }' <(numbers accuracy classes)
    [ "$(names classes/export/model.safetensors)" = "$({ names "$golden/model.safetensors"; echo '"score.weight":{"dtype"'; } | sort)" ]
    run -2 d9d-train -q --device cpu --set trainer.run.dir=none --set 'task={"name": "causal_lm"}' classify.json
    assert_output --partial "classes: accuracy: a prediction of"
}

@test "a plugin's task and metrics on several ranks equal one" {
    with_mpi
    classification
    [ -d classes ] || d9d-train -q --device cpu --set trainer.run.dir=classes classify.json
    for mesh in "2 1" "2 2"; do
        read -r replicate shard <<<"$mesh"
        mpi -n $((replicate * shard)) d9d-train -q --device cpu --set mesh.data_parallel_replicate="$replicate" \
            --set mesh.data_parallel_shard="$shard" --set trainer.run.dir="classes-$replicate-$shard" classify.json
        for field in loss grad_norm brier accuracy; do
            close_to 2e-4 <(numbers $field "classes-$replicate-$shard") <(numbers $field classes)
        done
    done
}

@test "a plugin's inference task writes one line per sample in order, on any mesh" {
    plugin worst "$BATS_TEST_DIRNAME/worst_target_plugin.c"
    [ -e out.jsonl ] || d9d-infer -q --device cpu infer.json
    options=(--set 'plugin=["libplain_llama.so", "libworst.so"]' --set 'task={"name": "worst", "output": "worst.txt"}')
    run -0 d9d-infer -q --device cpu "${options[@]}" infer.json
    [ "$(wc -l <worst.txt)" -eq 24 ]
    worst=$(sed -nE 's/.*"logprobs": \[([^]]*)\].*/\1/p' out.jsonl | tr -d , |
        awk '{ least = 0; for (i = 1; i <= NF; i++) if ($i < least) least = $i; printf "%.6f\n", least }')
    [ "$(cut -d' ' -f2 worst.txt)" = "$worst" ]
    has_mpi || return 0
    mv worst.txt alone.txt
    mpi -n 2 d9d-infer -q --device cpu --set mesh.data_parallel_shard=2 "${options[@]}" infer.json
    cmp worst.txt alone.txt
}

@test "a plugin's task has its head on the last pipeline stage" {
    with_mpi
    classification
    dense | sed -e 's/\["libevents.so", "liblifo.so"\]/"libclassify.so"/' -e 's/"dataset": "data"/"dataset": "texts"/' \
        -e 's/^  "pipelining.*/  "gradient_clipping": {"max_norm": 1.0}},/' -e 's/"steps": 2/"steps": 6/' \
        -e 's/"lr": 1e-3}}/"lr": 1e-3}, "task": {"name": "classify", "num_labels": 3}}/' >piped.json
    d9d-train -q --device cpu --set trainer.run.dir=piped1 piped.json
    mpi -n 2 d9d-train -q --device cpu --set mesh.pipeline_parallel=2 --set trainer.run.dir=piped2 piped.json
    close_to 1e-5 <(numbers loss piped2) <(numbers loss piped1)
    close_to 1e-5 <(numbers grad_norm piped2) <(numbers grad_norm piped1)
    [ "$(names piped2/export/model.safetensors)" = "$(names piped1/export/model.safetensors)" ]
}

# The events of a training of N steps on rank R, in the documented order.
training() {
    local n=$1 k
    printf 'train.configuration.%s\n' 'start bootstrap' 'data_loader loader' 'model_stages models' \
        'optimizer optimizer' 'lr_scheduler lr'
    printf 'train.ready%s\nmine.ready user\ntrain.ready%s again\n' "$2" "$2"
    for ((k = 0; k < n; k++)); do
        printf "train.%s $k/$n\n" step.pre forward_backward.{pre,post} optimizer_step.{pre,post} step.post
    done
    echo train.finished
}
inference() {
    local n=$1 k
    printf 'inference.configuration.%s\n' 'start bootstrap' 'data_loader loader' 'model_stages models'
    echo inference.ready
    for ((k = 0; k < n; k++)); do
        printf "inference.%s $k/$n\n" step.pre forward.{pre,post} step.post
    done
    echo inference.finished
}

@test "events arrive in the documented order with the documented fields" {
    plugin events "$BATS_TEST_DIRNAME/record_events_plugin.c"
    run -0 d9d-train -q --device cpu --set 'plugin=["libplain_llama.so", "libevents.so"]' \
        --set trainer.run.dir=told --set trainer.run.steps=3 train.json
    diff events.0 <(training 3 ' tracker')
    rm events.0
    run -0 d9d-infer -q --device cpu --set 'plugin=["libplain_llama.so", "libevents.so"]' \
        --set task='{"name": "perplexity"}' infer.json
    diff events.0 <(inference 12)
    rm events.0
}

@test "an evaluation sends its begin and end events between two steps" {
    [ -e libevents.so ] || plugin events "$BATS_TEST_DIRNAME/record_events_plugin.c"
    rm -f events.?
    run -0 d9d-train -q --device cpu --set 'plugin=["libplain_llama.so", "libevents.so"]' \
        --set 'evaluation={"name": "more", "data": {"dataset": "data"}, "period_steps": 2, "at_start": true}' \
        --set trainer.run.dir=told_more --set trainer.run.steps=3 train.json
    evaluated() { printf "train.evaluation.%s $1/3 more\n" pre post; }
    diff events.0 <(training 3 ' tracker' | awk -v zero="$(evaluated 0)" -v two="$(evaluated 2)" -v three="$(evaluated 3)" '
        /train.step.pre 0/ { print zero } { print } /train.step.post 1/ { print two } /train.step.post 2/ { print three }')
    rm events.0
}

@test "events arrive on every rank" {
    with_mpi
    [ -e libevents.so ] || plugin events "$BATS_TEST_DIRNAME/record_events_plugin.c"
    mpi -n 4 d9d-train -q --device cpu --set 'plugin=["libplain_llama.so", "libevents.so"]' \
        --set mesh.data_parallel_shard=4 --set trainer.run.dir=told4 --set trainer.run.steps=2 train.json
    diff events.0 <(training 2 ' tracker')
    for r in 1 2 3; do diff "events.$r" <(training 2 ''); done
    rm events.?
}

@test "weights that a handler changes after the update are used by the next step on every rank" {
    with_mpi
    plugin shrink "$BATS_TEST_DIRNAME/shrink_weights_plugin.c"
    shrunk=(d9d-train -q --device cpu --set 'plugin=["libplain_llama.so", "libshrink.so"]')
    "${shrunk[@]}" --set trainer.run.dir=shrunk1 train.json
    mpi -n 2 "${shrunk[@]}" --set mesh.data_parallel_shard=2 --set trainer.run.dir=shrunk2 train.json
    losses() { sed -nE 's/.*"loss": ([0-9.e-]+).*/\1/p' "$1/metrics.jsonl"; }
    close_to 1e-5 <(losses shrunk1) <(losses shrunk2)
}

@test "an asynchronous checkpoint has the weights from before a handler changed them" {
    command -v strace >/dev/null || skip "no strace"
    [ -e libshrink.so ] || plugin shrink "$BATS_TEST_DIRNAME/shrink_weights_plugin.c"
    # The second step has no targets; the thread that copies for the first save starts late.
    printf '{"input_ids": [1, 2, 3], "labels": [%s]}\n' '2, 3, 4' '-100, -100, -100' '4, 3, 2' |
        d9d-shard -q --format tokens --out holes -
    for behind in true false; do
        ASAN_OPTIONS=detect_leaks=0 strace -f -qq -o /dev/null -e inject=rseq:delay_enter=500000 d9d-train -q --device cpu \
            --set 'plugin=["libplain_llama.so", "libshrink.so"]' --set 'data={"dataset": "holes"}' \
            --set trainer.batching.global_batch_size=1 --set trainer.batching.microbatch_size=1 \
            --set trainer.run.steps=3 --set trainer.run.dir=held-$behind --set trainer.checkpointing.num_to_keep=null \
            --set trainer.checkpointing.period_steps=1 --set trainer.checkpointing.asynchronous=$behind train.json
    done
    cmp held-{true,false}/checkpoints/step-00000001/ranks-00000/model-r00000.safetensors
}

# dense: a configuration that works with pipelines, with the event plugin libhear.so.
dense() {
    cat <<JSON
{"plugin": ["libevents.so", "liblifo.so"], "data": {"dataset": "data"},
 "model_provider": {"name": "qwen3_dense", "model": {"num_hidden_layers": 2,
   "layer": {"hidden_size": 16, "intermediate_size": 24, "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 8},
   "max_position_ids": 64, "split_vocab_size": {"all": 97}, "split_vocab_order": ["all"]}},
 "trainer": {"run": {"name": "dense", "steps": 2}, "batching": {"global_batch_size": 4},
  "pipelining": {"schedule": {"schedule": "lifo"}}},
 "optimizer": {"name": "adamw", "lr": 1e-3}}
JSON
}

@test "events arrive on every rank of a pipeline with a plugin's schedule" {
    with_mpi
    [ -e libevents.so ] || plugin events "$BATS_TEST_DIRNAME/record_events_plugin.c"
    plugin lifo "$root/examples/plugins/lifo.c"
    dense >dense.json
    rm -f events.?
    run -0 d9d-train -q --device cpu --set trainer.run.dir=one dense.json
    diff events.0 <(training 2 ' tracker')
    rm events.0
    mpi -n 2 d9d-train -q --device cpu --set mesh.pipeline_parallel=2 --set trainer.run.dir=two dense.json
    diff events.0 <(training 2 ' tracker')
    diff events.1 <(training 2 '')
    rm events.?
    close_to 1e-5 <(numbers loss two) <(numbers loss one)
    run -2 mpi -n 2 d9d-train -q --device cpu --set mesh.pipeline_parallel=2 --set trainer.run.dir=three \
        --set 'trainer.pipelining.schedule={"schedule": "lifo", "limit": 3}' dense.json
    assert_output --partial "lifo: 4 micro-batches, at most 3"
    [ ! -e three ]
    rm -f events.?
}

@test "a wrong schedule program is rejected with its first fault, in --plan and in a run" {
    plugin liar "$BATS_TEST_DIRNAME/bad_schedule_plugin.c"
    dense | sed -e 's/\["libevents.so", "liblifo.so"\]/"libliar.so"/' -e 's/"schedule": "lifo"/"schedule": "liar", "lie": "LIE"/' >liar.json
    while IFS=: read -r lie message; do
        sed "s/LIE/$lie/" liar.json >lies.json
        run -2 timeout 600 d9d-train --plan --gpu cpu --set mesh.pipeline_parallel=2 lies.json
        assert_output --partial "$message"
    done <<'END'
empty:schedule liar: pipeline: rank 0: 0F0 is missing
missing:rank 0: 0B3 is missing
order:rank 0: 0B0 comes before its forward
rank:action 0 of stage 0 and micro-batch 0 on rank 2 is outside the program of 2 stages, 4 micro-batches and 2 ranks
negative rank:on rank -1 is outside
stage:of stage 1048576 and
micro:micro-batch -1 on
micros:micro-batch 1073741824 on
verb:action 42 of
twice:rank 0: 0F0 is there twice
other:rank 0: 1F0 is of another rank's stage
half:rank 0: 0B0 must not be there
send:rank 0: 0SEND_F0 is there twice
joined:rank 0: 0B3 is joined with no other action
endless:rank 0 has 33 actions, and its stages have fewer
none:pipeline: 2 ranks of 0 stages
negative:pipeline: 2 ranks of 0 stages
many:pipeline: 2 ranks of 16385 stages
END
    has_mpi || return 0
    run -2 mpi -n 2 d9d-train -q --device cpu --set mesh.pipeline_parallel=2 --set trainer.run.dir=lies lies.json
    [ ! -e lies ]
    run -0 d9d-train --plan --gpu cpu --set mesh.pipeline_parallel=2 --set trainer.pipelining.schedule.lie=nothing lies.json
}

@test "a failing handler ends the job, and no further events are sent" {
    [ -e libevents.so ] || plugin events "$BATS_TEST_DIRNAME/record_events_plugin.c"
    D9D_FAIL_AT=train.forward_backward.pre run -1 d9d-train -q --device cpu \
        --set 'plugin=["libplain_llama.so", "libevents.so"]' --set trainer.run.dir=failed train.json
    assert_output --partial "a handler of train.forward_backward.pre has seen enough"
    [ "$(tail -n 1 events.0)" = "train.forward_backward.pre 0/6" ]
    rm events.0
    D9D_FAIL_AT=train.ready run -1 d9d-train -q --device cpu \
        --set 'plugin=["libplain_llama.so", "libevents.so"]' --set trainer.run.dir=failed2 train.json
    [ "$(tail -n 1 events.0)" = "train.ready tracker" ]
    rm events.0
}

# sums: trains on generated additions that are in no file, and evaluates on others.
sums() {
    [ -e libsums.so ] || plugin sums "$root/examples/plugins/sums.c"
    cat >sums.json <<'JSON'
{"plugin": "libsums.so",
 "data": {"dataset": "sums", "source": {"name": "sums", "samples": 4000, "digits": 2}, "order": "shuffled"},
 "evaluation": {"data": {"dataset": "others", "source": {"name": "sums", "samples": 40, "digits": 2, "seed": 1}}},
 "model_provider": {"name": "qwen3_dense", "model": {"num_hidden_layers": 2,
   "layer": {"hidden_size": 32, "intermediate_size": 64, "num_attention_heads": 2, "num_key_value_heads": 2, "head_dim": 16},
   "max_position_ids": 16, "split_vocab_size": {"all": 12}, "split_vocab_order": ["all"]}},
 "trainer": {"run": {"name": "sums", "steps": 60}, "batching": {"global_batch_size": 32, "microbatch_size": 8},
  "checkpointing": {"period_steps": 20}},
 "optimizer": {"name": "adamw", "lr": 1e-2}}
JSON
}

@test "a plugin's dataset is trained on and resumed" {
    sums
    run -0 d9d-train -q --device cpu --set trainer.run.dir=sums sums.json
    awk '{ if (NR == 1) first = $1; last = $1 } END { exit !(NR == 60 && last < 0.8 * first) }' <(numbers loss sums)
    [ "$(numbers valid/tokens sums)" -eq 100 ]
    cp -r sums sums2 && rm -rf sums2/export sums2/checkpoints/step-00000060
    run -0 d9d-train -q --device cpu --set trainer.run.dir=sums2 sums.json
    cmp {sums,sums2}/export/model.safetensors
    rm -rf sums2/export sums2/checkpoints/step-00000060
    run -2 d9d-train -q --device cpu --set trainer.run.dir=sums2 --set data.source.seed=1 sums.json
    assert_output --partial "was trained on another dataset than sums"
}

@test "a plugin's dataset on several ranks equals one, blended and bucketed" {
    with_mpi
    sums
    blend='[{"dataset": "sums", "source": {"name": "sums", "samples": 4000, "digits": 3}, "order": "bucketed", "weight": 3},
      {"dataset": "noise", "source": {"name": "random", "samples": 900, "length": 9, "vocab": 12}, "order": "bucketed"}]'
    for data in '{"dataset": "sums", "source": {"name": "sums", "samples": 4000}}' "$blend"; do
        rm -rf alone two
        run -0 d9d-train -q --device cpu --set trainer.run.dir=alone --set trainer.run.steps=10 --set data="$data" sums.json
        mpi -n 2 d9d-train -q --device cpu --set trainer.run.dir=two --set trainer.run.steps=10 --set data="$data" \
            --set mesh.data_parallel_shard=2 sums.json
        close_to 1e-4 <(numbers loss two) <(numbers loss alone)
        diff <(numbers tokens two) <(numbers tokens alone)
        diff {alone,two}/samples.jsonl
    done
}

@test "wrong keys and answers of a plugin's dataset are rejected" {
    sums
    run -2 d9d-train -q --device cpu --set trainer.run.dir=none --set data.source.name=sum sums.json
    assert_output --partial 'unknown word "sum"; did you mean "sums"?'
    run -2 d9d-train -q --device cpu --set trainer.run.dir=none --set data.source.digits=10 sums.json
    assert_output --partial "data.source.digits"
    run -2 d9d-train -q --device cpu --set trainer.run.dir=none --set trainer.run.steps=126 sums.json
    assert_output --partial "sums has 125 steps of 32 samples"
    run -0 d9d-train --plan --set trainer.run.dir=none sums.json
    run -2 d9d-train -q --device cpu --set trainer.run.dir=none \
        --set data='{"dataset": "noise", "source": {"name": "random", "samples": 9999, "length": 9, "vocab": 13}}' sums.json
    assert_output --partial "noise: its ids are below 13 and the model's vocabulary has 12"
    sed 's/TOKENS = 12/TOKENS = 11/' "$root/examples/plugins/sums.c" >few.c
    plugin few few.c
    run -1 d9d-train -q --device cpu --set trainer.run.dir=none --set plugin=libfew.so sums.json
    assert_output --partial "the vocabulary has 11"
    sed 's/out->longest = .*/out->longest = 0;/' "$root/examples/plugins/sums.c" >short.c
    plugin short short.c
    run -2 d9d-train -q --device cpu --set trainer.run.dir=none2 --set plugin=libshort.so sums.json
    assert_output --partial "sums: the dataset sums says 4000 samples of at most 0 positions"
    [ ! -e none2 ]
}

# The structs that plugins fill and the library reads by their size.
tables="d9d_table d9d_key d9d_plugin d9d_model_ops d9d_model_provider d9d_job_event d9d_train_task d9d_metric_kind d9d_pipe_schedule_kind d9d_infer_task_kind d9d_optimizer_kind d9d_lr_schedule_kind d9d_sink_kind d9d_dataset_kind d9d_decoder_kind d9d_family"

# appended DIR TEXT: appends a member to every table struct in the headers below DIR.
appended() {
    local t file
    for t in $tables; do
        file=$(grep -rlE "^(typedef )?struct $t \{" "$1" | head -n 1)
        awk -v t="$t" -v text="$2" '
            $0 ~ "^(typedef )?struct " t " \\{" { on = 1 }
            on && /^}/ { print "    " text; on = 0; n++ }
            { print }
            END { exit n != 1 }' "$file" >"$file.new"
        mv "$file.new" "$file"
    done
}

@test "a plugin built for longer tables loads if its new members are unused" {
    cp -R d9d/include longer
    appended longer 'void *appended;'
    plugin longer "$root/examples/plugins/plain_llama.c" -Ilonger
    run -0 d9d-infer -q --device cpu --set plugin=liblonger.so --set task.output=longer.jsonl infer.json
    cmp longer.jsonl out.jsonl
    plugin long_family "$root/examples/plugins/seed_oss.c" -Ilonger
    run -0 d9d-map -q --plugin liblong_family.so "$golden/../plugins/seed_oss" family
    sed -E 's/\.hf_names =/.appended = (void *)keys, &/' "$root/examples/plugins/plain_llama.c" >newer.c
    plugin newer newer.c -Ilonger
    run -2 d9d-infer -q --device cpu --set plugin=libnewer.so infer.json
    assert_output --partial "it was built for a newer one"
}

@test "a plugin's method of fine-tuning trains, alone and on ranks, and leaves an adapter of peft" {
    plugin lora_fa "$root/examples/plugins/lora_fa.c"
    fa=(--set plugin=liblora_fa.so --set 'model_provider={"name": "auto"}' --set optimizer.lr=1e-2 --set 'peft={"kind": "stack", "methods": [
        {"kind": "lora_fa", "module_name_pattern": ".*(q|v)_proj", "params": {"r": 4, "alpha": 8}}]}')
    d9d-train -q --device cpu "${fa[@]}" --set trainer.run.dir=fa train.json
    grep -q '"peft_type": "LORA"' fa/adapter/adapter_config.json
    run -1 grep -E '"name": "[^"]*lora_A[^"]*exp_avg' fa/checkpoints/*/manifest.json
    grep -qE '"name": "[^"]*lora_B[^"]*exp_avg' fa/checkpoints/*/manifest.json
    d9d-map -q --adapter fa/adapter --to hf "$golden" fa-merged
    d9d-map diff fa-merged fa/export
    mpi -n 2 d9d-train -q --device cpu "${fa[@]}" --set trainer.run.dir=fa2 --set mesh.data_parallel_shard=2 train.json
    close_to 1e-5 <(numbers loss fa) <(numbers loss fa2)
    run -2 d9d-train -q --device cpu "${fa[@]}" --set 'peft={"kind": "lora_fb"}' train.json
    assert_output --partial 'lora_fa'
}

@test "a plugin still loads after a member is appended to every table" {
    [ "${D9D_LONG:-}" = 1 ] || skip "D9D_LONG=1 builds the library anew"
    mkdir next
    cp -R "$root"/{Makefile,libcore,kernels,tools,schemas} next
    cp "$root/config.mk" next 2>/dev/null || true
    appended next/libcore/include 'void *appended;'
    env -u MAKEFLAGS make -s -C next -j"$(nproc)" NO_INSTALL=1 NVCC= CFLAGS='-O1 -Wno-missing-field-initializers' build/bin/d9d-infer >&2
    run -0 next/build/bin/d9d-infer -q --device cpu --set task.output=next.jsonl infer.json
    cmp next.jsonl out.jsonl
}
