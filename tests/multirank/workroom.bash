# shellcheck shell=bash disable=SC2154 # variables of bats
# workroom.bash - one working directory for all tests of a file, with plugins and ranks; load it.
load ../multirank/launch
load ../tools/helper
root=$BATS_TEST_DIRNAME/../..

# workroom, first in setup_file: makes the directory $work and enters it.  enter, first in setup:
# enters it again.
workroom() {
    no_launcher
    work=$(workplace)
    export work
    enter
}
enter() {
    cd "$work" || return 1
    PATH=$work/d9d/bin:$PATH # if it is installed
}
setup() { enter; }
teardown_file() { rm -rf "$work"; }

# installed: installs this build in $work/d9d.
installed() { make -s --no-print-directory -C "$root" install PREFIX="$work/d9d" DESTDIR= >&2; }

# struck TOOL: runs TOOL with its pid in pid.RANK, which all_gone reads.  strike SIGNAL signals a
# random rank, `rank`, and waits until all have ended: the timeout, and the time to detect and end.
struck() {
    mkdir -p "$work/bin"
    # shellcheck disable=SC2016
    printf '#!/bin/bash\necho $$ >pid.$OMPI_COMM_WORLD_RANK\nexec %q "$@"\n' "$D9D_BIN/$1" >"$work/bin/$1"
    chmod +x "$work/bin/$1"
    PATH=$work/bin:$PATH
}
all_gone() {
    local f
    for f in pid.*; do is_gone "$(cat "$f")" || return 1; done
}
strike() {
    local ranks=(pid.*)
    rank=$((RANDOM % ${#ranks[@]}))
    kill "-$1" "$(cat pid.$rank)"
    patience=60 wait_for all_gone
}
# named FILE STATE: FILE says that rank `rank` is STATE, and names its call.
named() {
    grep -E "(rank|is) $rank \([^)]*\),? which is $2( since [0-9.]+ s)?; its last call: [a-z_+]+: [a-z_]+ [0-9]+ of " "$1" || { echo "rank $rank:"; cat err "$1"; return 1; }
}

# plugin NAME SOURCE [FLAG...]: builds libNAME.so against the installed tree, as users do.
plugin() {
    local name=$1 source=$2 flags libs
    shift 2
    [ -d "$work/d9d" ] || installed
    flags=$(PKG_CONFIG_PATH=$work/d9d/lib/pkgconfig pkg-config --cflags d9d)
    libs=$(PKG_CONFIG_PATH=$work/d9d/lib/pkgconfig pkg-config --libs d9d)
    # shellcheck disable=SC2086 # several options
    ${CC:-cc} -std=c11 -Wall -Wextra -Werror -O2 -g ${D9D_SAN:+-fsanitize=$D9D_SAN} -shared -fPIC \
        -o "lib$name.so" "$@" "$source" $flags $libs
}

# numbers FIELD FILE|RUN: the values of a field, one per line.
numbers() {
    local file=$2
    [ ! -d "$2" ] || file=$2/metrics.jsonl
    sed -nE "s|.*\"$1\": ([-+0-9.e]+).*|\1|p" "$file"
}
# close_to TOLERANCE FILE FILE: compares numbers, one per line, by relative difference.
close_to() {
    paste -d' ' "$2" "$3" | awk -v e="$1" '
        NF != 2 || !(($1 - $2) ^ 2 <= (e * $2) ^ 2) { print; bad = 1 } END { exit bad || NR == 0 }'
}

# meshed COMMAND MESH [ARGUMENT...]: COMMAND RANKS ARGUMENT... --set mesh.KEY=VALUE..., for a mesh of words KEY=VALUE.
meshed() {
    local command=$1 words word size=1 options=()
    read -ra words <<<"$2"
    shift 2
    for word in "${words[@]}"; do
        options+=(--set "mesh.$word")
        [[ $word == expert* ]] || size=$((size * ${word#*=}))
    done
    "$command" "$size" "$@" "${options[@]}"
}

# small_deepseek DIR LAYERS EXPERTS VOCABULARY: config.json of a DeepSeek-V3 whose first layer has no experts.
small_deepseek() {
    mkdir -p "$1"
    cat >"$1/config.json" <<JSON
{"architectures": ["DeepseekV3ForCausalLM"], "model_type": "deepseek_v3", "vocab_size": $4, "hidden_size": 32,
 "num_hidden_layers": $2, "num_attention_heads": 2, "num_key_value_heads": 2, "q_lora_rank": 16, "kv_lora_rank": 16,
 "qk_nope_head_dim": 16, "qk_rope_head_dim": 16, "v_head_dim": 16, "intermediate_size": 64,
 "moe_intermediate_size": 32, "n_routed_experts": $3, "num_experts_per_tok": 2, "n_group": 2, "topk_group": 1,
 "n_shared_experts": 1, "first_k_dense_replace": 1, "routed_scaling_factor": 1.0, "norm_topk_prob": true,
 "hidden_act": "silu", "max_position_embeddings": 512, "rms_norm_eps": 1e-6, "rope_theta": 10000,
 "initializer_range": 0.2, "scoring_func": "sigmoid", "topk_method": "noaux_tc", "tie_word_embeddings": false}
JSON
}
