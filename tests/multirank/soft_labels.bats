#!/usr/bin/env bats
# shellcheck disable=SC2154 # variables of bats
# Next-token prediction of distributions: what the loss is, and that each mesh computes it.

load ../slurm/helper

load topology

meshes="2 1 1 1 1 1,1 2 1 1 1 1,1 1 2 1 1 1,1 1 1 1 2 1,1 1 1 1 1 1 2,1 2 2 1 1 1 2,1 1 2 1 2 1,1 1 1 1 2 1 2"

# Documents with the probabilities of a teacher, of its three likeliest tokens and of all 157, the
# next token as such, and a uniform distribution.
documents() {
    awk 'function draw() { return (state = state * 16807 % 2147483647) / 2147483647 }
        BEGIN { state = 11000033; V = 157; u = sprintf("%.9f", 1 / V); flat = u; for (v = 1; v < V; v++) flat = flat ", " u
        for (i = 0; i < 96; i++) {
            n = 2 + int(11 * draw()); ids = top = pr = hot = one = dense = even = w = ""
            for (k = 0; k < n; k++) {
                c = k ? ", " : ""; id = int(156 * draw()); a = int(156 * draw()); b = (a + 1 + int(100 * draw())) % V; d = (b + 7) % V
                if (d == a) d = (d + 1) % V
                delete q; q[a] = int(1000 * draw()) / 2000; q[b] = int(1000 * draw()) / 3000; q[d] = 0.1
                row = ""; for (v = 0; v < V; v++) row = row (v ? ", " : "") sprintf("%.4f", q[v])
                ids = ids c id; hot = hot c "[" id "]"; one = one c "[1]"; w = w c sprintf("%.3f", 2 * draw())
                top = top c sprintf("[%d, %d, %d, -1]", a, b, d); pr = pr c sprintf("[%.4f, %.4f, 0.1000, 0.3]", q[a], q[b])
                dense = dense c "[" row "]"; even = even c "[" flat "]"
            }
            printf "{\"input_ids\": [%s], \"top\": [%s], \"probs\": [%s], \"hot\": [%s], \"one\": [%s], \"weight\": [%s], \"dense\": [%s], \"even\": [%s]}\n",
                ids, top, pr, hot, one, w, dense, even } }'
}

setup_file() {
    workroom
    cat >fields.json <<'JSON'
{"fields": [{"name": "top", "per": "target", "dtype": "I32", "shape": [4]}, {"name": "probs", "per": "target", "shape": [4]},
  {"name": "hot", "per": "target", "dtype": "I32", "shape": [1]}, {"name": "one", "per": "target", "shape": [1]},
  {"name": "weight", "per": "target"}, {"name": "dense", "per": "target", "shape": [157]}, {"name": "even", "per": "target", "shape": [157]}]}
JSON
    documents >documents.jsonl
    d9d-shard -q --format tokens --fields fields.json --out data documents.jsonl
    steps=6 configure dense 48 '"intermediate_size": 48' >dense.json
    alone top "$top"
    alone mixed "$mixed"
}

# task KEYS: the option
task() { echo "task={\"name\": \"causal_lm\"${1:+, $1}}"; }
top=$(task '"soft_labels": "probs", "soft_ids": "top"')
mixed=$(task '"soft_labels": "probs", "soft_ids": "top", "soft_weight": 0.7, "label_smoothing": 0.2, "loss_weights": "weight"')
dense=$(task '"soft_labels": "dense", "soft_weight": 0.6, "label_smoothing": 0.1')

alone() { rm -rf "$1"; d9d-train -q --device "${D9D_TEST_DEVICE:-cpu}" --set trainer.run.dir="$1" --set trainer.batching.microbatch_size=2 --set "$2" "${@:3}" dense.json; }
values() { jq -r "select(.loss) | .loss, .grad_norm" "$1/metrics.jsonl"; }

@test "the next token with probability 1 is next-token prediction" {
    alone plain "$(task)"
    alone hot "$(task '"soft_labels": "one", "soft_ids": "hot"')"
    close_to 1e-6 <(values hot) <(values plain)
}

@test "a teacher's likeliest tokens and the whole vocabulary are the same labels" {
    alone whole "$(task '"soft_labels": "dense"')"
    close_to 1e-6 <(values whole) <(values top)
}

@test "label smoothing is a uniform distribution's share, and losses are linear in the weight" {
    alone smooth "$(task '"label_smoothing": 0.3')"
    alone even "$(task '"soft_labels": "even", "soft_weight": 0.3')"
    close_to 1e-5 <(values smooth) <(values even)
    alone plain "$(task)"
    alone half "$(task '"soft_labels": "probs", "soft_ids": "top", "soft_weight": 0.25')"
    first() { values "$1" | head -n 1; }
    close_to 1e-6 <(first half) <(paste <(first plain) <(first top) | awk '{ printf "%.9f\n", 0.75 * $1 + 0.25 * $2 }')
}

@test "every mesh trains on soft labels, smoothing and weights as one rank" {
    local degrees
    alone whole "$dense"
    while read -r degrees; do
        for case in top mixed whole; do
            local -n option=${case/whole/dense}
            rm -rf run
            train dense "$degrees" run --set trainer.batching.microbatch_size=2 --set "$option" && steps=6 same run "$case" ||
                { echo "mesh $degrees, $case"; return 1; }
        done
    done < <(tr , '\n' <<<"$meshes")
}

@test "recomputed layers and a plan have the same" {
    alone again "$mixed" --set model_provider.checkpointing=true
    cmp {again,mixed}/export/model.safetensors
    alone long "$mixed" --set trainer.run.steps=12
    run -0 d9d-train --plan --gpu cpu --json --set trainer.batching.microbatch_size=2 --set "$mixed" dense.json
    assert_equal "$(sed -n 's/^ *"peak": \([0-9]*\),$/\1/p' <<<"$output")" "$(numbers mem_bytes long | sort -n | tail -n 1)"
}

@test "labels that do not go together are refused" {
    refused() { # KEYS WORDS
        run -2 alone no "$(task "$1")"
        assert_output --partial "$2"
        [ ! -e no ]
    }
    refused '"soft_ids": "top"' 'task.soft_labels: name the field with the probabilities of top'
    refused '"soft_ids": "top", "soft_labels": "one"' 'the field "top" of data has 4 ids of a target, and "one" 1 probabilities'
    refused '"soft_labels": "probs"' 'the field "probs" of data has 4 numbers in a row, must have 157'
    refused '"soft_labels": "prods", "soft_ids": "top"' 'wants the field "prods" of data'
    refused '"soft_labels": "top", "soft_ids": "probs"' 'which is not used as I32'
    sed 's/"hot": \[\[[0-9]*\]/"hot": [[157]/; s/, \[[0-9]*\]\], "one"/, [157]], "one"/' documents.jsonl >out.jsonl
    d9d-shard -q --format tokens --fields fields.json --out out out.jsonl
    run -2 alone gone "$(task '"soft_labels": "one", "soft_ids": "hot"')" --set data.dataset=out
    assert_output --regexp 'out: sample [0-9]+ has 157 in the field "hot", and task.soft_ids must be below 157'
    [ ! -e gone ]
    # Of tokens that are no targets any id is fine.
    sed 's/"hot": \[\[[0-9]*\]/"hot": [[157]/' documents.jsonl >first.jsonl
    d9d-shard -q --format tokens --fields fields.json --out first first.jsonl
    alone first-run "$(task '"soft_labels": "one", "soft_ids": "hot"')" --set data.dataset=first
}
