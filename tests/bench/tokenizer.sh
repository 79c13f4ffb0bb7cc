#!/bin/sh
# The tokenizer, compared with HF tokenizers, quicktok and gigatoken: one thread each, the same documents, the
# same vocabulary.  Ids must be equal; then the best rates of a few alternating rounds are compared,
# in MB (10^6 bytes) of text per second of CPU time.
#
#     D9D_PYTHON=venv/bin/python tests/bench/tokenizer.sh [TOKENIZER.json] [MEGABYTES]
#
# TOKENIZER.json is Qwen3's (D9D_QWEN3_TOKENIZER, or beside the checkout); 20 MB are measured.
#
# The peers run only if D9D_PYTHON names a Python that has them: tokenizers 0.23 (the faster of
# encode and of encode_batch by 256, without parallelism) and quicktok-v1 0.4 from PyPI (the faster
# of encode_with_special and of encode_batch on one thread; its own copy of Qwen3's vocabulary).
# gigatoken 0.9 or so is measured warm and one by one, whichever is faster.  quicktok has its own
# Unicode tables: the number of its differing documents, as gigatoken's, is printed and does not count
# as a failure.
#
# corpus.py mixes the text from what the machine has: English prose, code, other languages, random
# Unicode.  Last come adversarial texts of a million bytes.
export LC_ALL=C # for numbers of awk and printf
set -eu
here=$(cd "$(dirname "$0")" && pwd)
build=${D9D_BIN:-$here/../../build/bin}/..
tokenizer=${1:-${D9D_QWEN3_TOKENIZER:-$here/../../../shared/data/qwen3-tokenizer/tokenizer.json}}
megabytes=${2:-20}
python=${D9D_PYTHON:-}
rounds=3
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT

if [ ! -e "$tokenizer" ]; then
    echo "skipped: $tokenizer is not there; name Qwen3's tokenizer.json"
    exit 0
fi
ours() { "$build/tests/bench/bench_tokenizer" "$tokenizer" "$@"; }
# rate WORD FILE: the best of this pass, "encode" the first one and "warm" another.
rate() { sed -n "s/.*$1 \\([0-9.]*\\).*/\\1/p" "$2" | sort -n | tail -n 1; }
# Documents whose ids differ: each line of a listing is one document.
differing() {
    python3 - "$1" "$2" <<'PY'
import sys
from array import array


def documents(path):
    ids, at, out = array("I"), 0, []
    with open(path, "rb") as f:
        ids.frombytes(f.read())
    while at < len(ids):
        out.append(ids[at + 1:at + 1 + ids[at]])
        at += 1 + ids[at]
    return out


a, b = documents(sys.argv[1]), documents(sys.argv[2])
print(abs(len(a) - len(b)) + sum(x != y for x, y in zip(a, b)))
PY
}

PYTHONIOENCODING=utf-8 python3 "$here/corpus.py" "$megabytes" >"$tmp/corpus.jsonl"
peers=
for peer in hf:tokenizers quicktok:quicktok gigatoken:gigatoken; do
    if [ -n "$python" ] && "$python" -c "import ${peer#*:}" 2>/dev/null; then
        peers="$peers ${peer%:*}"
    fi
done
round=0
while [ $((round += 1)) -le $rounds ]; do
    ours "$tmp/corpus.jsonl" "$tmp/d9d.ids" >>"$tmp/d9d"
    for peer in $peers; do
        "$python" "$here/peer_tokenizer.py" "$peer" "$tokenizer" "$tmp/corpus.jsonl" "$tmp/$peer.ids" \
            >>"$tmp/$peer"
    done
done
cat "$tmp/d9d"
printf '%-12s %10s %10s %10s %10s   %s\n' library 'first MB/s' 'd9d is' 'warm MB/s' 'd9d is' \
    'documents with other ids'
mixed=$(rate encode "$tmp/d9d")
warm=$(rate warm "$tmp/d9d")
printf '%-12s %10.1f %10s %10.1f\n' d9d "$mixed" '' "$warm"
for peer in $peers; do
    first=$(rate encode "$tmp/$peer")
    best=$(rate warm "$tmp/$peer")
    printf '%-12s %10.1f %9.2fx %10.1f %9.2fx   %s\n' "$peer" "$first" \
        "$(awk "BEGIN {print $mixed / $first}")" "$best" "$(awk "BEGIN {print $warm / $best}")" \
        "$(differing "$tmp/d9d.ids" "$tmp/$peer.ids")"
done
echo
printf '%-24s %10s %14s\n' 'made to be slow' MB/s 'time a byte'
ours | awk -v mixed="$mixed" '/MB\/s/ {
    printf "%-24s %10.1f %13.2fx\n", substr($0, 1, 24), $(NF - 1), mixed / $(NF - 1)
}'
if [ -e "$tmp/hf.ids" ] && ! cmp -s "$tmp/d9d.ids" "$tmp/hf.ids"; then
    echo "ids differ from HF tokenizers" >&2
    exit 1
fi
