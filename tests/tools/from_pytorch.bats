#!/usr/bin/env bats
# docs/howto/from-pytorch.md and from-pytorch-examples.md: the reference framework's examples, said here.

load helper

@test "the page's commands run, and the model that it pretrains learns" {
    cd "$BATS_TEST_TMPDIR"
    root=$(cd "$BATS_TEST_DIRNAME/../.." && pwd)
    ln -s "$root/examples" .
    unset "${!SLURM_@}" "${!OMPI_COMM@}" "${!PMIX_@}"
    export OMP_WAIT_POLICY=passive OMP_NUM_THREADS=1
    make -s --no-print-directory -C "$root" install PREFIX="$PWD/d9d" DESTDIR= >&2
    export PKG_CONFIG_PATH=$PWD/d9d/lib/pkgconfig
    awk '/^```/ { yes = $0 == "```sh"; next } yes' "$root"/docs/howto/from-pytorch{,-examples}.md >page.sh
    [ "$(wc -l <page.sh)" -ge 38 ]
    run -0 bash -eu -o pipefail page.sh
    assert_output --partial "model_provider.model.model: is model_provider.model here"
    assert_output --partial "model in model_export"
    assert_output --partial "model in lora_export"
    perplexities=$(sed -nE 's/.*"perplexity": ([0-9.]+).*/\1/p' <<<"$output")
    perplexity=$(head -n 1 <<<"$perplexities") perplexities=$(tail -n +2 <<<"$perplexities")
    awk -v p="$perplexity" 'BEGIN { exit !(p > 1 && p < 30) }'
    [ -e logs/events.out.tfevents.0.d9d ]
    [ -e saves ]
    [ -e merged/model.safetensors ]
    # metrics.sh
    for value in 'binary_auroc 0.5' 'accuracy        0.5' 'accuracy         1' 'precision/0      1' 'precision/1      1' 'precision/2      0'; do
        grep -qE "^${value% *} +${value##* }$" <<<"$output" || { echo "$value" && return 1; }
    done
    # tracker.sh: the run's id, and a line of each record
    grep -qxE "run $(sed -nE 's/.*"id": "([0-9a-f]{32})".*/\1/p' runs/tracked/manifest.json)" losses.txt
    diff <(sed 1d losses.txt) <(sed -nE 's/^\{"step": ([0-9]+), "loss": ([^,]+).*/\1 \2/p' runs/tracked/metrics.jsonl)
    grep -q '"tokens/accuracy": .*"max": ' runs/tracked/metrics.jsonl
    # the quickstart: a pass over the points, two checkpoints, and an error that is nearly the noise's
    assert_output --partial "runs/quickstart: 256 of 256 steps"
    [ "$(echo quickstart_saves/*)" = "quickstart_saves/step-00000200 quickstart_saves/step-00000256" ]
    sed -nE 's/.*"loss": ([^,]+), "grad.*/\1/p' runs/quickstart/metrics.jsonl | awk 'NR == 1 { first = $1 } END { exit !(first > 5 && $1 < 0.05) }'
    run -0 d9d-train quickstart.json
    assert_output --partial "all 256 steps are done already"
    # the guide: the export is as it was downloaded, and better; checkpoints of adapters are small
    for f in config.json tokenizer.json model.safetensors; do [ -e runs/finetune/export/$f ] && [ -e runs/finetune-lora/export/$f ]; done
    [ "$(du -s runs/finetune-lora/checkpoints | cut -f1)" -lt "$(($(du -s runs/finetune/checkpoints | cut -f1) / 4))" ]
    awk 'NR == 1 { base = $1 } $1 > base { exit 1 } END { exit NR != 3 }' <<<"$perplexities"
    run d9d-map diff model_export special_export
    assert_output --partial "token_embedding.special.weight: values"
    assert_output --regexp "[1-9][0-9]* tensors equal, 1 "
}

# code FILE: lines without blank ones and comments
code() {
    awk -v f="$1" 'f ~ /\.c$/ && inside { inside = !/\*\//; next }
        f ~ /\.c$/ && /^[ \t]*\/\*/ { inside = !/\*\//; next }
        f ~ /\.sh$/ && /^#/ { next }
        NF { n++ } END { print n + 0 }' "$1"
}

@test "the table of examples has each file's lines, and names tests that are there" {
    root=$(cd "$BATS_TEST_DIRNAME/../.." && pwd)
    rows=0
    while IFS='|' read -r _ there lines here ours _ tested _; do
        [[ $tested =~ \`(.*)\` ]] || continue
        [ -e "$root/${BASH_REMATCH[1]}" ] || { echo "$there: no ${BASH_REMATCH[1]}" && return 1; }
        [[ $lines =~ [0-9] ]]
        rows=$((rows + 1))
        [[ $here =~ \(\.\./\.\./(examples/[^\)]*)\) ]] || continue
        [ "$(code "$root/${BASH_REMATCH[1]}")" = "${ours// /}" ] || { echo "${BASH_REMATCH[1]}: $(code "$root/${BASH_REMATCH[1]}") lines, not $ours" && return 1; }
    done <"$root/docs/howto/from-pytorch-examples.md"
    [ $rows -ge 69 ]
}

@test "q, k and v of each layer become one tensor" {
    cd "$BATS_TEST_TMPDIR"
    python=$(command -v python3) || skip "no python3 to write a checkpoint"
    mkdir bert && "$python" - <<'PY'
import json, struct
names = ["bert.encoder.layer.%d.attention.self.%s.weight" % (n, w) for n in range(2) for w in ("query", "key", "value")]
header, data = {}, b""
for i, name in enumerate(names + ["bert.pooler.dense.weight"]):
    x = struct.pack("<4f", *[i + k / 8 for k in range(4)])
    header[name] = {"dtype": "F32", "shape": [2, 2], "data_offsets": [len(data), len(data) + 16]}
    data += x
h = json.dumps(header).encode()
open("bert/model.safetensors", "wb").write(struct.pack("<Q", len(h)) + h + data)
PY
    run -0 d9d-map -q --mapper "$BATS_TEST_DIRNAME/../../examples/mappers/stack_qkv.json" bert stacked
    "$python" - <<'PY'
import json, struct
b = open("stacked/model.safetensors", "rb").read()
n = struct.unpack("<Q", b[:8])[0]
h = {k: v for k, v in json.loads(b[8:8 + n]).items() if k != "__metadata__"}
assert sorted(h) == ["bert.pooler.dense.weight", "layer.0.qkv", "layer.1.qkv"], sorted(h)
t = h["layer.1.qkv"]
assert t["shape"] == [3, 2, 2], t
got = struct.unpack("<12f", b[8 + n + t["data_offsets"][0]:8 + n + t["data_offsets"][1]])
assert got == tuple(i + k / 8 for i in (3, 4, 5) for k in range(4)), got
PY
}
