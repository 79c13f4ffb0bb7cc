#!/usr/bin/env bats
# shellcheck disable=SC2154,SC2030,SC2031 # variables of bats and of the helper
# Trackers: where d9d-train writes its records besides metrics.jsonl.

load train_bench

steps=trainer.run.steps
tracker=trainer.logging.tracker
# to_file FILE: a tracker that keeps what it receives.
to_file() { printf '{"provider": "command", "command": ["sh", "-c", "cat >>%s"]}' "$1"; }

@test "a program is told of the run, of every step, and of the end" {
    d9d-train -q --set "$tracker=$(to_file received)" --set $steps=5 c.json
    [ "$(grep -c loss received)" = 5 ]
    id=$(sed -nE 's/.*"id": "([0-9a-f]{32})".*/\1/p' run/manifest.json)
    [ -n "$id" ]
    sed -n 1p received | grep -q "^{\"run\": \"$id\", \"name\": \"small\", \"description\": .*\"dir\": \"run\", \"restarts\": 0, \"step\": 0, \"hparams\": "
    cmp <(sed 1d received) run/metrics.jsonl
}

@test "a run keeps its id when it goes on, and the next start is told where" {
    d9d-train -q --set "$tracker=$(to_file received)" --set $steps=3 c.json
    rm -r run/export
    d9d-train -q --set "$tracker=$(to_file received)" --set $steps=5 c.json
    run -0 grep '"run"' received
    [ "${#lines[@]}" = 2 ]
    [[ "${lines[1]}" == *'"restarts": 1, "step": 3,'* ]]
    [ "${lines[0]:0:42}" = "${lines[1]:0:42}" ]
    [ "$(sed -nE 's/^\{"step": ([0-9]+), "loss.*/\1/p' received | tr '\n' ' ')" = "1 2 3 4 5 " ]
}

@test "what is wrong with a program is a warning, and the run goes on without it" {
    run -0 d9d-train --set "$tracker=[{\"provider\": \"command\", \"command\": [\"./absent\"]}, {\"provider\": \"command\", \"command\": [\"sh\", \"-c\", \"exit 3\"]}]" c.json
    [[ "$output" == *"tracker command: ./absent: cannot be started: No such file or directory; the run goes on without it"* ]]
    [[ "$output" == *"tracker command: sh: ended with status 3"* ]]
    [ "$(records run)" = 20 ]
}

@test "nothing waits for a program that does not read, and at the end not for long" {
    run -0 d9d-train --set "$tracker={\"provider\": \"command\", \"command\": [\"sh\", \"-c\", \"echo \$\$ >pid; exec sleep 9999\"], \"patience\": 1}" c.json
    [[ "$output" == *"tracker command: sh: has not left after 1 s and is ended"* ]]
    run ! kill -0 "$(cat pid)"
}

@test "a program that ignores SIGTERM is ended all the same" {
    run -0 d9d-train --set $steps=2 --set "$tracker={\"provider\": \"command\", \"command\": [\"sh\", \"-c\", \"trap '' TERM; echo \$\$ >pid; while :; do sleep 0.1; done\"], \"patience\": 1}" c.json
    [[ "$output" == *"is ended"*"ended by signal 9"* || "$output" == *"is ended"* ]]
    run ! kill -0 "$(cat pid)"
}

@test "one that stays after a kill is left" {
    [ -z "${D9D_SAN:-}" ] || skip "two libraries that want to be the first"
    ${CC:-cc} -D_GNU_SOURCE -shared -fPIC -o kept.so "$BATS_TEST_DIRNAME/../multirank/unkillable_preload.c"
    LD_PRELOAD=$PWD/kept.so run -0 timeout -s KILL 120 d9d-train --set $steps=2 --set "$tracker={\"provider\": \"command\", \"command\": [\"sh\", \"-c\", \"exec >/dev/null 2>&1 3>&-; trap '' TERM; echo \$\$ >pid; while :; do sleep 0.1; done\"], \"patience\": 1}" c.json
    [[ "$output" == *"is ended"* ]]
    kill -9 "$(cat pid)"
}

@test "event files: one for each start, beginning where it goes on" {
    d9d-train -q --set "$tracker={\"provider\": \"tensorboard\"}" --set $steps=3 c.json
    rm -r run/export
    d9d-train -q --set "$tracker={\"provider\": \"tensorboard\"}" --set $steps=5 c.json
    run -0 ls run/tensorboard
    [ "$output" = "events.out.tfevents.0.d9d
events.out.tfevents.1.d9d" ]
    python=$(command -v python3) || skip "no python3 to read event files"
    "$python" - run/tensorboard/* <<'PY'
import struct, sys

def varint(b, i):
    v = s = 0
    while True:
        v |= (b[i] & 127) << s
        s += 7
        i += 1
        if b[i - 1] < 128:
            return v, i

def fields(b):
    i, out = 0, []
    while i < len(b):
        key, i = varint(b, i)
        if key & 7 == 0:
            v, i = varint(b, i)
        elif key & 7 == 1:
            v, i = struct.unpack("<d", b[i:i + 8])[0], i + 8
        elif key & 7 == 5:
            v, i = struct.unpack("<f", b[i:i + 4])[0], i + 4
        else:
            n, i = varint(b, i)
            v, i = b[i:i + n], i + n
        out.append((key >> 3, v))
    return out

def events(path):
    b, i = open(path, "rb").read(), 0
    while i < len(b):
        n = struct.unpack("<Q", b[i:i + 8])[0]
        yield fields(b[i + 12:i + 12 + n])
        i += 16 + n

for path, first, last in ((sys.argv[1], 1, 3), (sys.argv[2], 4, 5)):
    version, start, *steps = events(path)
    assert dict(version)[3] == b"brain.Event:2", version
    assert dict(start)[2] == first and dict(start)[7] == b"\x08\x01", start
    steps = [e for e in steps if b"\n\x04loss\x15" in dict(e)[5]]
    assert [dict(e)[2] for e in steps] == list(range(first, last + 1)), steps
    for e in steps:
        values = dict((dict(fields(v))[1], dict(fields(v))[2]) for k, v in fields(dict(e)[5]))
        assert 4 < values[b"loss"] < 7 and values[b"samples"] == 4 * dict(e)[2], values
PY
}

@test "an event file that cannot be written is a warning" {
    echo >file
    run -0 d9d-train --set $steps=2 --set "$tracker={\"provider\": \"tensorboard\", \"dir\": \"file/x\"}" c.json
    [[ "$output" == *"tracker tensorboard: file"*"the run goes on without it"* ]]
    [ "$(records run)" = 2 ]
}

@test "of two trackers of one event file the second is left out, and the first is whole" {
    two="[{\"provider\": \"tensorboard\"}, {\"provider\": \"tensorboard\", \"dir\": \"run/tensorboard\"}]"
    run -0 d9d-train --set $steps=4 --set "$tracker=$two" c.json
    [[ "$output" == *"tracker tensorboard: run/tensorboard/events.out.tfevents.0.d9d: another process is writing it; wait for its end, or name another; the run goes on without it"* ]]
    d9d-train -q --set $steps=4 --set trainer.run.dir=one --set "$tracker={\"provider\": \"tensorboard\"}" c.json
    [ "$(stat -c %s run/tensorboard/*)" = "$(stat -c %s one/tensorboard/*)" ]
}

@test "a place for the model that was taken meanwhile is said, and the model written once it is free" {
    # The run stands still until the place is taken.
    take='kill -STOP $PPID; mkdir run/export; touch run/export/x; kill -CONT $PPID; cat >received'
    taker="{\"provider\": \"command\", \"command\": [\"sh\", \"-c\", \"$take\"]}"
    run -2 d9d-train -q --set $steps=20 --set "$tracker=$taker" c.json
    assert_output --partial "run/export: is no longer empty, so the model was not exported; move its content away"
    run -2 d9d-train -q --set $steps=20 c.json
    assert_output --partial "run/export: the finished model is to go there, and it is not empty"
    rm run/export/x
    run -0 d9d-train --set $steps=20 c.json
    [ -e run/export/model.safetensors ]
}

@test "an unknown tracker is a mistake" {
    run -2 d9d-train --set "$tracker={\"provider\": \"tensorbord\"}" c.json
    [[ "$output" == *'did you mean "tensorboard"'* ]]
}
