#!/bin/bash
# host_memory.sh - refuses one request for host memory after another: a conversion, a check, a
# dataset and its readers either report out of memory and make nothing, or give the same result.
#
# Requests are counted in a run without faults.  One in several is refused; each with D9D_LONG.
set -u
here=$(cd "$(dirname "$0")" && pwd)
PATH=${D9D_BIN:+$D9D_BIN:}$PATH
golden=$here/../golden
export OMP_NUM_THREADS=1
points=${D9D_MEMORY_POINTS:-40}
[ -z "${D9D_LONG:-}" ] || points=1000000
if [ -n "${D9D_SAN:-}" ]; then
    echo "ok 1 # skip the sanitizers have an allocator of their own"
    echo 1..1
    exit
fi
work=$(mktemp -d "${TMPDIR:-/dev/shm}/d9d-poor-XXXXXX" 2>/dev/null || mktemp -d /tmp/d9d-poor-XXXXXX) || exit 1
trap 'rm -rf "$work"' EXIT
cd "$work" || exit 1
${CC:-cc} -O1 -D_GNU_SOURCE -shared -fPIC -o poor.so "$here/refuse_memory_preload.c" -ldl || exit 1
cp -r "$golden/moe" src && chmod -R u+w src && rm -f src/*golden* src/batch* src/final* src/train* src/generate.jsonl
mkdir src/1_Pooling && echo '{}' | tee src/tokenizer.json >src/1_Pooling/config.json
d9d-shard -q --format tokens -o data "$golden/moe/train.jsonl" || exit 1
d9d-map -q -j1 src made || exit 1

# poor N COMMAND...: refuses request N.  Sets `asked` and `refused`, the numbers of requests made and
# refused, if the program exits.
poor() {
    local n=$1 status
    shift
    rm -f count
    D9D_POOR_AT=$n D9D_POOR_COUNT=count LD_PRELOAD=$PWD/poor.so "$@" >out 2>err
    status=$?
    read -r asked refused < <(cat count 2>/dev/null || echo 0 0)
    return $status
}

tests=0 failed=0
# sweep NAME COMMAND...: tries each request; COMMAND writes the directory dst, or nothing.
sweep() {
    local name=$1 n total tried=0 status bad=""
    shift
    rm -rf dst dst.partial
    poor 0 "$@" || bad="without faults: $(cat err)"
    total=$asked && mv out whole.out
    [ "$total" -ge 50 ] && [ "$refused" = 0 ] || bad=${bad:-"only $asked requests, $refused refused"}
    rm -rf whole && { [ ! -e dst ] || mv dst whole; }
    for ((n = 1; n <= total && ${#bad} == 0; n += (total + points - 1) / points)); do
        rm -rf dst dst.partial
        poor "$n" "$@"
        status=$?
        tried=$((tried + 1))
        if [ $status -le 2 ] && [ "$refused" != 1 ]; then
            bad="request $n of $total was not refused: $asked requests, $refused refused"
        elif [ $status -eq 0 ]; then
            cmp -s out whole.out || bad="request $n of $total: another output"
            [ ! -e whole ] || diff -r whole dst >/dev/null || bad="request $n of $total: another result"
        elif [ $status -gt 2 ] || ! [ -s err ] || [ -e dst ]; then
            bad="request $n of $total: exit $status, $(tail -n 1 err)"
        fi
    done
    tests=$((tests + 1))
    if [ -z "$bad" ]; then
        echo "ok $tests - $name: $tried of $total requests refused"
    else
        echo "not ok $tests - $name: $bad"
        failed=1
    fi
}

sweep "a conversion" d9d-map -q -j1 src dst
sweep "a conversion to another type" d9d-map -q -j1 --dtype bfloat16 src dst
sweep "a check" d9d-map verify -q -j1 made
sweep "a plan" d9d-map plan src
sweep "a comparison" d9d-map diff -q -j1 --json made made
sweep "a dataset" d9d-shard -q -j1 --format tokens -o dst "$golden/moe/train.jsonl"
sweep "a dataset's check" d9d-shard verify -q data
sweep "a dataset's numbers" d9d-shard inspect --json data
echo "1..$tests"
exit $failed
