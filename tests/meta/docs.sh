#!/bin/bash
# The documents: no sentence of more than 35 words; links, their headings and files that are there; each
# page of docs/ linked from another one.
. "$(dirname "$0")/meta.bash"

limit=35 # words

# sentences PAGE...: "PAGE:LINE: WORDS words: SENTENCE" of those that are too long.  Headings, tables
# and code are no sentences; code in a line, a link's target and a formula count as a word each.
sentences() {
    awk -v limit=$limit '
        function count(s, n, w) { n = split(s, w, /[^A-Za-z0-9_.%\47,\/+-]+/); while (n && w[n] !~ /[A-Za-z0-9]/) n--; return n }
        function flush(   i, n, s) {
            gsub(/`[^`]*`/, "CODE", text); gsub(/\]\([^)]*\)/, "]", text)
            gsub(/[.!?][)"*]* /, "&\n", text)
            n = split(text, s, "\n")
            for (i = 1; i <= n; i++)
                if (count(s[i]) > limit) printf "%s:%d: %d words: %.60s\n", page, from, count(s[i]), s[i]
            text = ""
        }
        FNR == 1 { flush(); fenced = 0; page = FILENAME }
        /^ *```/ { flush(); fenced = !fenced; next }
        fenced || /^    / || /^\|/ || /^#/ || /^ *$/ { flush(); next }
        /^ *([-*]|[0-9]+\.) / { flush() }
        { if (text == "") from = FNR; text = text $0 " " }
        END { flush() }' "$@"
}

# from_top: of lines "PAGE LINK", what the link names from the top.
from_top() {
    grep -v '://' | sed 's/:](/ /' | while read -r page to; do
        case $to,$page in '#'*) to=$page$to ;; *,*/*) to=${page%/*}/$to ;; esac
        while [[ $to =~ (^|/)[^/.][^/]*/\.\./ ]]; do to=${to/"${BASH_REMATCH[0]}"/"${BASH_REMATCH[1]}"}; done
        echo "$page ${to%/}"
    done
}

# links PAGE...: "PAGE FILE" of every file that a link names; anchored PAGE...: "PAGE FILE#ANCHOR" of every heading.
links() { grep -oHE '\]\([^)#]+' "$@" /dev/null | from_top; }
anchored() { grep -oHE '\]\([^)#]*#[^)]+' "$@" /dev/null | from_top; }

# headings PAGE...: "PAGE#ANCHOR" of every heading, as GitHub makes it; of equal ones the later are -1, -2.
headings() {
    awk '
        FNR == 1 { fenced = 0 }
        /^ *```/ { fenced = !fenced }
        !fenced && sub(/^#+ +/, "") {
            a = tolower($0); gsub(/\]\([^)]*\)/, "", a); gsub(/[^a-z0-9 _-]/, "", a); gsub(/ /, "-", a)
            a = FILENAME "#" a; print seen[a] ? a "-" seen[a] : a; seen[a]++
        }' "$@"
}

# named PAGE...: "PAGE FILE" of every path in code.
named() {
    grep -oHE '`(libcore|kernels|tests|tools|examples|docs|slurm|packaging)/[A-Za-z0-9_./-]+`' "$@" /dev/null | sed 's/:`/ /; s/`$//'
}

check() {
    local pages page to there
    cd "$1" || return 1
    mapfile -t pages < <(ls README.md CONTRIBUTING.md SUPPORT.md packaging/README.md docs/*.md docs/*/*.md 2>/dev/null)
    [ ${#pages[@]} -gt 0 ] || return 0
    there=$(headings "${pages[@]}")
    sentences "${pages[@]}"
    { links "${pages[@]}" && named "${pages[@]}"; } | sort -u | while read -r page to; do
        [ -e "$to" ] || echo "$page: $to is not there"
    done
    anchored "${pages[@]}" | sort -u | while read -r page to; do
        grep -qxF -- "$to" <<<"$there" || echo "$page: $to is not there"
    done
    for page in docs/*/*.md; do echo "$page"; done |
        grep -vxF -f <(links "${pages[@]}" | awk '$1 != $2 { print $2 }') | grep -v '\*' | sed 's/$/: no page links to it/'
    return 0
}

plant_long() { printf 'It %s.\n' "$(printf 'goes on %.0s' {1..20})" | put "$1/README.md"; }
plant_long_over_lines() { printf '%s\n' "It $(printf 'goes on %.0s' {1..10})" "and $(printf 'on %.0s' {1..20})." | put "$1/docs/a.md"; }
plant_link() { echo 'See [this](docs/none.md).' | put "$1/README.md"; }
plant_file() { echo 'See `libcore/base/none.c`.' | put "$1/docs/a.md"; }
plant_heading() { printf '# A b\n[c](#a-c)\n' | put "$1/README.md"; }
plant_heading_elsewhere() { echo 'See [this](docs/a.md#b).' | put "$1/README.md"; echo '# A' | put "$1/docs/a.md"; }
plant_orphan() { echo 'Alone.' | put "$1/docs/howto/alone.md"; }
allow_table() { printf '| %s |\n' "$(printf 'goes on %.0s' {1..40})" | put "$1/README.md"; }
allow_two() { printf 'It %s. It %s.\n' "$(printf 'goes on %.0s' {1..12})" "$(printf 'goes on %.0s' {1..12})" | put "$1/README.md"; }
allow_headings() {
    printf '# A b: C_d.e\n[a](#a-b-c_de) [b](docs/a.md#two-1)\n' | put "$1/README.md"
    printf '# Two\n## Two\n[up](../README.md#a-b-c_de)\n' | put "$1/docs/a.md"
}
allow_code() { printf '```\n%s\n```\n' "$(printf 'goes on %.0s' {1..40})" | put "$1/README.md"; }
meta_run
