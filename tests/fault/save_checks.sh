#!/bin/bash
# save_checks.sh - the tests of interrupted saves notice runs that go wrong: each is given a
# runner with a planted fault and must fail.
set -u
cd "$(dirname "$0")/../.." || exit 1
# shellcheck source=tests/fault/saves.bash
. tests/fault/saves.bash

# plant NAME TEST STRIDE SENTENCE: the faulty runner is on standard input; "$good" is the sound one.
plant() {
    local bad=$work/bad output
    { printf '#!/bin/bash\ngood=%q\n' "$runner"; cat; } >"$bad"
    chmod +x "$bad"
    output=$(SAVE_RUNNER=$bad SAVE_STRIDE=$3 "tests/fault/$2")
    [[ $output == *"not ok"* ]] || complain "$2 passes"
    [[ $output == *"$4"* ]] || complain "$2 does not say \"$4\" but \"$output\""
    verdict "$2 notices a run that $1"
}

plant "computes something else" save_kill.sh 60 "differs from that of the whole run" <<'EOT'
case $1-$2 in
*/one-5)
    "$good" "$@" || exit
    printf x | dd of="$1/checkpoints/step-00000005/ranks-00000/model-r00000.safetensors" bs=1 seek=480 \
        conv=notrunc status=none ;;
*) exec "$good" "$@" ;;
esac
EOT
plant "goes back too far" save_kill.sh 60 "goes on from step 1" <<'EOT'
case $1-$2 in */one-5) rm -rf "$1"/checkpoints/step-0000000[23] ;; esac
exec "$good" "$@"
EOT
plant "leaves things behind" save_kill.sh 60 "left over" <<'EOT'
case $1-$2 in
*/one-5) "$good" "$@" && mkdir "$1/checkpoints/step-00000006.tmp-1-0" ;;
*) exec "$good" "$@" ;;
esac
EOT
plant "saves nothing" save_kill.sh 1 "only 0 calls in the trace of a save" <<'EOT'
case $1 in */count) exit 0 ;; esac
exec "$good" "$@"
EOT
plant "does not say what is full" save_full.sh 9 'says ""' <<'EOT'
exec "$good" "$@" 2>/dev/null
EOT
plant "goes on in spite of it" save_full.sh 9 "exit status 0" <<'EOT'
case $1-$2 in */one-3) exec true ;; esac
exec "$good" "$@"
EOT
plant "loses what was there" save_full.sh 9 "the checkpoints are not as they were" <<'EOT'
case $1-$2 in */one-3) rm -rf "$1/checkpoints/step-00000001" ;; esac
exec "$good" "$@"
EOT
plant "computes something else behind" save_async.sh 15 "model-r00000.safetensors differs" <<'EOT'
case $1-$2 in
*/one-6)
    "$good" "$@" || exit
    printf x | dd of="$1/checkpoints/step-00000006/ranks-00000/model-r00000.safetensors" bs=1 seek=480 \
        conv=notrunc status=none ;;
*) exec "$good" "$@" ;;
esac
EOT
plant "writes nothing behind" save_async.sh 1 "only 0 calls of threads" <<'EOT'
exec "$good" "$1" "$2"
EOT

echo "1..$tests"
exit "$failed"
