# shellcheck shell=bash disable=SC2154 # variables of models.bash and of those that load it
# beside_peers.bash - training steps of models beside the fastest that transformers has for each, for
# shapes and families.
#
# Of a MODEL they set config, title, vocabulary, rows, length and kind (full, packed, padded), and the
# file $tmp/rows-MODEL: the lengths of a row's documents in each line.
#
# D9D_PYTHON: of the peers, else python3.  D9D_TRAIN="a/d9d-train b/d9d-train": time several builds.
# D9D_TRACES: a directory for traces of our last step.  D9D_STEPS: of each.  D9D_WAYS="layers model": only
# these ways of the peers; "none": none.
export LC_ALL=C # for numbers of awk and printf
python=${D9D_PYTHON:-python3}
steps=${D9D_STEPS:-20}
read -ra builds <<<"${D9D_TRAIN:-d9d-train}"
tmp=$(mktemp -d)
children=()
finish() {
    kill "${children[@]}" 2>/dev/null || true
    rm -rf "$tmp"
}
trap finish EXIT
declare -A kind=() title=() pid=() gate=()

# tokens MODEL STEPS: the documents of all rows, each with one token more than positions.
tokens() {
    local i
    for ((i = 0; i < $2; i++)); do cat "$tmp/rows-$1"; done | awk -v ids="${vocabulary[$1]}" '
    BEGIN { x = 1 }
    {
        for (d = 1; d <= NF; d++) {
            printf "{\"input_ids\": ["
            for (j = 0; j <= $d; j++) {
                x = (x * 16807) % 2147483647
                printf "%s%d", j ? ", " : "", x % ids
            }
            print "]}"
        }
    }'
}

# ours MODEL: milliseconds of each build.
ours() {
    local pack=() trace=() build i=0
    [ "${kind[$1]}" != packed ] || pack=(--pack "${length[$1]}" --pack-mode concat)
    tokens "$1" "$steps" | d9d-shard --quiet --format tokens "${pack[@]}" --out "$tmp/data-$1" -
    [ -z "${D9D_TRACES:-}" ] || trace=(--set trainer.profiling.enabled=true --set "trainer.profiling.period_steps=$steps"
        --set "trainer.profiling.traces_dir=$D9D_TRACES/$1")
    for build in "${builds[@]}"; do
        i=$((i + 1))
        cp "$tmp/$1.config.json" "$tmp/run-$1-$i.config.json"
        PATH=$(dirname "$(command -v "$build")"):$PATH timed_run "$1" "$tmp/run-$1-$i" "$tmp/data-$1" "$steps" "${trace[@]}" >"$tmp/timed"
        read -r ms gib _ <"$tmp/timed"
        printf '%s %s\n' "$ms" "$gib"
    done >"$tmp/ours-$1"
}

prepare() {
    printf '%s\n' "${config[$1]}" >"$tmp/$1.config.json"
    mkfifo "$tmp/go-$1"
    "$python" "$here/shapes_peer.py" "$tmp/$1.config.json" "$tmp/rows-$1" "${kind[$1]}" "$steps" "$tmp/ready-$1" \
        <"$tmp/go-$1" >"$tmp/peer-$1" 2>"$tmp/log-$1" &
    pid[$1]=$!
    children+=($!)
    exec {go}>"$tmp/go-$1"
    gate[$1]=$go
}

show() {
    local best
    echo "$1: ${title[$1]}"
    sort -k 2 -n "$tmp/peer-$1" | awk '{ printf "    %-16s %8.2f ms %7.1f GiB\n", $1, $2, $3 }'
    best=$(awk '$2 > 0 && (!b || $2 < b) { b = $2 } END { print b + 0 }' "$tmp/peer-$1")
    awk -v b="$best" -v k="$1" -v t="$(awk '{ for (i = 1; i <= NF; i++) s += $i } END { print s }' "$tmp/rows-$1")" '
        { printf "    d9d %-12s %8.2f ms %7.1f GiB %9.0f tokens/s beside %9.0f: %5.2f times\n", (NR > 1 ? NR : ""), $1, $2,
            t / $1 * 1e3, (b ? t / b * 1e3 : 0), b / $1; last = b / $1 }
        END { if (b) print last, k >>"'"$tmp/ratios"'" }' "$tmp/ours-$1"
    [ "$best" != 0 ] || { echo "    no peer works:"; grep -E '^[A-Za-z-]+: ' "$tmp/log-$1" | cut -c 1-200; }
}

# some MODEL...: their peers compile side by side; then each is timed.
some() {
    local k
    for k; do prepare "$k"; done
    for k; do
        while [ ! -e "$tmp/ready-$k" ] && kill -0 "${pid[$k]}" 2>/dev/null; do sleep 0.2; done
    done
    for k; do
        ours "$k"
        go=${gate[$k]}
        (echo >&"$go") || true # a peer that died is a SIGPIPE
        exec {go}>&-
        wait "${pid[$k]}" || true
        show "$k"
    done
}

# beside_peers AT_ONCE MODEL...: all of them, of which so many peers compile at a time; then the worst.
beside_peers() {
    local at_once=$1 i
    shift
    for ((i = 1; i <= $#; i += at_once)); do some "${@:i:at_once}"; done
    touch "$tmp/ratios"
    sort -n "$tmp/ratios" | awk '
        { v[NR] = $1; name[NR] = $2 }
        END { printf "%d with a peer: worst %.2f (%s), median %.2f, best %.2f\n", NR, v[1], name[1], v[int((NR + 1) / 2)], v[NR] }'
}
