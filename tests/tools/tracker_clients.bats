#!/usr/bin/env bats
# shellcheck disable=SC2154,SC2030,SC2031 # variables of bats and of the helper
# Trackers wandb, mlflow and aim, and own values: with stand-ins for the clients; with the clients themselves where
# D9D_TRACKER_PYTHON names a Python that has wandb, mlflow, aim and tensorboard.

load train_bench

root=$BATS_TEST_DIRNAME/../..
steps=trainer.run.steps
tracker=trainer.logging.tracker

# watch: the plugin examples/plugins/watch.c, built against the tree under test.
watch() {
    local build
    build=$(cd "$(dirname "$(command -v d9d-train)")/.." && pwd)
    # shellcheck disable=SC2046 # words
    ${CC:-cc} -std=c11 -D_GNU_SOURCE ${D9D_SAN:+-fsanitize=$D9D_SAN} -shared -fPIC -o libwatch.so \
        -I"$root/libcore/include" -I"$root/kernels/include" $(pkg-config --cflags jansson) \
        "$root/examples/plugins/watch.c" -L"$build/lib" -ld9d
}
watched=(--set 'plugin="./libwatch.so"' --set 'trainer.run.hparams={"a": {"b": 3}}')

@test "own values of a plugin are recorded after their step, and d9d-metrics shows them" {
    watch
    d9d-train -q "${watched[@]}" --set $steps=3 --set trainer.logging.period_steps=2 c.json
    run -0 sed -nE 's/^\{"(step|values|histogram|text|picture)": ("[a-z\/]+"|[0-9]+),.*/\1 \2/p' run/metrics.jsonl
    assert_equal "$output" 'values 1
step 2
values 2
step 3
values 3
histogram "watch/lengths"
text "watch/note"
picture "watch/squares"'
    [ "$(head -c 4 run/pictures/watch/squares/step-00000003.png | tail -c 3)" = PNG ]
    run -0 d9d-metrics values run
    assert_equal "$(sed -E 's/ +/ /g; s/-0.[0-9]+$/W/' <<<"$output")" 'watch/share scalar step 3 1
watch/weight scalar step 3 W
watch/lengths histogram step 3 3 bins, sum of counts 7
watch/note text step 3 what was seen
watch/squares picture step 3 pictures/watch/squares/step-00000003.png'
    run -0 d9d-metrics show --keys watch/share run
    [[ "$output" == *"1 "*"0.333333"*"2 "*"0.666667"*"3 "*1* ]]
    run -0 d9d-metrics --json values run
    [[ "$output" == *'"content": "what was seen"'* ]]
    d9d-metrics report -o page.html run
    grep -q 'what was seen' page.html
    grep -q 'watch/share' page.html
}

@test "own values go on where a run goes on" {
    watch
    d9d-train -q "${watched[@]}" --set $steps=2 c.json
    rm -r run/export
    d9d-train -q "${watched[@]}" --set $steps=4 c.json
    run -0 sed -nE 's/^\{"values": ([0-9]+),.*/\1/p' run/metrics.jsonl
    assert_equal "$output" $'1\n2\n3\n4'
}

@test "log writes the numbers of each record into the log" {
    run -0 d9d-train --set $steps=2 --set "$tracker={\"provider\": \"log\"}" c.json
    [[ "$output" == *"step 1: loss="*" grad_norm="*"step 2: loss="* ]]
}

@test "a client that cannot be imported is one sentence before anything is spent" {
    python=$(command -v python3) || skip "no python3"
    for client in '"wandb", "project": "p"' '"mlflow", "experiment": "e"' '"aim", "repo": "r"'; do
        name=$(cut -d'"' -f2 <<<"$client")
        mkdir -p absent && echo 'raise ImportError("there is none")' >"absent/$name.py"
        PYTHONPATH=absent run -2 d9d-train --set "$tracker={\"provider\": $client}" c.json
        assert_output --partial "tracker $name: "
        assert_output --partial "cannot import $name (there is none); pip install $name"
        [ ! -e run ]
    done
    run -2 d9d-train --set "$tracker={\"provider\": \"aim\", \"repo\": \"r\", \"python\": \"./none\"}" c.json
    assert_output --partial "tracker aim: ./none: cannot be started: No such file or directory"
    run -2 d9d-train --set "$tracker={\"provider\": \"wandb\"}" c.json
    assert_output --partial "project: required key is missing"
}

@test "each client gets the run, its values and its end" {
    python=$(command -v python3) || skip "no python3"
    watch
    mkdir stand_in
    cat >stand_in/told.py <<'PY'
"""A module of anything: what is called is a line of the file `told`."""
import json
def line(*words):
    with open("told", "a") as f:
        print(*(w if isinstance(w, str) else json.dumps(w, sort_keys=True, default=str) for w in words), file=f)
PY
    cat >stand_in/wandb.py <<'PY'
from told import line
class Settings:
    def __init__(self, **k): pass
class Histogram:
    MAX_LENGTH = 2
    def __init__(self, np_histogram): self.v = np_histogram
    def __str__(self): return f"histogram {self.v[0]} {self.v[1]}"
class Html:
    def __init__(self, v): self.v = v
    def __str__(self): return self.v
class Image(Html): pass
class Run:
    def log(self, values, step): line("log", str(step), {k: v for k, v in values.items() if k[:6] == "watch/" or k in ("loss", "late/step")})
    def finish(self, exit_code): line("finish", str(exit_code))
def init(**k):
    line("init", {n: k[n] for n in ("project", "entity", "group", "tags", "mode", "name", "resume")}, k["config"]["hparams"])
    return Run()
PY
    PYTHONPATH=$PWD/stand_in d9d-train -q "${watched[@]}" --set $steps=2 \
        --set "$tracker={\"provider\": \"wandb\", \"project\": \"p\", \"mode\": \"offline\", \"tags\": [\"red\"]}" c.json
    sed -i -E 's/"loss": [0-9.]+/"loss": L/; s/"watch\/weight": -?[0-9.]+/"watch\/weight": W/' told
    assert_equal "$(grep -v ' {}$' told)" 'init {"entity": null, "group": null, "mode": "offline", "name": "small", "project": "p", "resume": "allow", "tags": ["red"]} {"a": {"b": 3}}
log 1 {"loss": L}
log 1 {"watch/share": 0.5, "watch/weight": W}
log 2 {"loss": L}
log 2 {"watch/share": 1.0, "watch/weight": W}
log 2 {"watch/lengths": "histogram [3.0, 4.0] [0.0, 1.0, 2.0]"}
log 2 {"watch/note": "<pre>what was seen</pre>"}
log 2 {"watch/squares": "run/pictures/watch/squares/step-00000002.png"}
finish 0'
}

@test "wandb, mlflow, aim and tensorboard read what was written, over a restart" {
    python=${D9D_TRACKER_PYTHON:-}
    [ -n "$python" ] || skip "D9D_TRACKER_PYTHON names no Python with the clients"
    watch
    export WANDB_SILENT=true
    common="\"python\": \"$python\", \"tags\": [\"red\"]"
    all="[{\"provider\": \"tensorboard\"}, {\"provider\": \"wandb\", \"project\": \"p\", \"mode\": \"offline\", $common},
          {\"provider\": \"mlflow\", \"experiment\": \"tries\", \"tracking_uri\": \"sqlite:///$PWD/ml.db\", $common},
          {\"provider\": \"aim\", \"repo\": \"$PWD/aim\", $common}]"
    d9d-train -q "${watched[@]}" --set $steps=2 --set "$tracker=$all" c.json
    rm -r run/export
    d9d-train -q "${watched[@]}" --set $steps=4 --set "$tracker=$all" c.json
    id=$(sed -nE 's/.*"id": "([0-9a-f]{32})".*/\1/p' run/manifest.json)
    run -0 "$python" "$BATS_TEST_DIRNAME/read_trackers.py" run "$id" "sqlite:///$PWD/ml.db" "$PWD/aim" 4
}
