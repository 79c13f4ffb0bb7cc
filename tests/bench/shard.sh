#!/bin/sh
# From a JSONL file to a finished dataset, compared with a Python pipeline on the same file,
# tokenizer and number of threads: json.loads, the batch call of HuggingFace tokenizers, numpy's
# tofile.  The tokens must be equal, byte for byte.  Ours also splits, hashes, indexes and syncs.
# Without a Python that has tokenizers and numpy (D9D_PYTHON, else python3) only our side is
# measured.
#
#     D9D_BIN=build/bin tests/bench/shard.sh [MB [JOBS]]
#
# The text is this machine's C headers and documentation, some 60 lines a document, as often as
# it takes; D9D_TOKENIZER is a tokenizer.json (that of examples/ by default), D9D_INPUT another
# JSONL file.
export LC_ALL=C # for numbers of awk and printf
set -eu
here=$(cd "$(dirname "$0")" && pwd)
bin=${D9D_BIN:-$here/../../build/bin}
python=${D9D_PYTHON:-python3}
tokenizer=${D9D_TOKENIZER:-$here/../../examples/tokenizer/tokenizer.json}
mb=${1:-64} jobs=${2:-$(nproc)}
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT

"$python" -c 'import tokenizers, numpy' 2>/dev/null || python=

# JSON lines of the text on standard input, 60 of its lines each.
to_jsonl() {
    LC_ALL=C sed 's/\\/\\\\/g; s/"/\\"/g; s/\t/\\t/g; s/[\x01-\x1f\x7f]/ /g' | LC_ALL=C awk '
        { text = text $0 "\\n" }
        NR % 60 == 0 { printf "{\"id\": %d, \"text\": \"%s\"}\n", NR, text; text = "" }'
}

if [ -n "${D9D_INPUT:-}" ]; then
    ln -s "$(realpath "$D9D_INPUT")" "$tmp/in.jsonl"
else
    find /usr/include /usr/share/doc /usr/share/perl -type f -size -200k \
        \( -name '*.h' -o -name '*.txt' -o -name 'copyright' -o -name '*.p[lm]' \) -print0 2>/dev/null |
        LC_ALL=C sort -z | xargs -0 cat | iconv -c -f utf-8 -t utf-8 | to_jsonl |
        head -c "${mb}000000" >"$tmp/some.jsonl"
    sed -i '$d' "$tmp/some.jsonl" # perhaps cut
    while [ "$(wc -c <"$tmp/some.jsonl")" -lt $((mb * 900000)) ]; do
        cp "$tmp/some.jsonl" "$tmp/twice"
        cat "$tmp/twice" >>"$tmp/some.jsonl"
    done
    mv "$tmp/some.jsonl" "$tmp/in.jsonl"
fi
bytes=$(stat -L -c %s "$tmp/in.jsonl")
cat "$tmp/in.jsonl" >/dev/null # into memory

now() { date +%s.%N; }
report() { # NAME SECONDS
    awk -v n="$1" -v s="$2" -v b="$bytes" 'BEGIN { printf "%-28s %8.2f s %8.1f MB/s\n", n, s, b / s / 1e6 }'
}

echo "$((bytes / 1000000)) MB of JSON lines, $jobs threads, $(basename "$(dirname "$(realpath "$tokenizer")")")/$(basename "$tokenizer")"
ours=''
theirs=''
for _ in 1 2 3; do
    a=$(now)
    "$bin/d9d-shard" -q --force -t "$tokenizer" -j "$jobs" -o "$tmp/ours" --shard-size 100GB --unit-size 100GB "$tmp/in.jsonl"
    b=$(now)
    ours=$(echo "$a $b ${ours:-1e9}" | awk '{ d = $2 - $1; print d < $3 ? d : $3 }')
    [ -n "$python" ] || continue
    theirs=$(RAYON_NUM_THREADS=$jobs "$python" "$here/peer_shard.py" "$tmp/in.jsonl" "$tokenizer" "$tmp/theirs.bin" "${theirs:-1e9}")
done
report "d9d-shard" "$ours"
[ -n "$python" ] || exit 0
report "Python pipeline" "$theirs"
cmp "$tmp/ours/tokens-00000.bin" "$tmp/theirs.bin"
echo "$ours $theirs" | awk '{ printf "ratio %.1f (best of 3 each; asked for: 12)\n", $2 / $1 }'
