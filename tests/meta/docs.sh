#!/bin/bash
# The documents: no sentence of more than 35 words, links and files that are there, each page of docs/
# linked from another one.
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

# links PAGE...: "PAGE FILE" of every file that a link names, from the top.
links() {
    grep -oHE '\]\([^)#]+' "$@" /dev/null | grep -v '://' | sed 's/:](/ /' | while read -r page to; do
        case $page in */*) to=${page%/*}/$to ;; esac
        while [[ $to =~ (^|/)[^/.][^/]*/\.\./ ]]; do to=${to/"${BASH_REMATCH[0]}"/"${BASH_REMATCH[1]}"}; done
        echo "$page ${to%/}"
    done
}

# named PAGE...: "PAGE FILE" of every path in code.
named() {
    grep -oHE '`(libcore|kernels|tests|tools|examples|docs|slurm)/[A-Za-z0-9_./-]+`' "$@" /dev/null | sed 's/:`/ /; s/`$//'
}

check() {
    local pages page to
    cd "$1" || return 1
    mapfile -t pages < <(ls README.md CONTRIBUTING.md docs/*.md docs/*/*.md 2>/dev/null)
    [ ${#pages[@]} -gt 0 ] || return 0
    sentences "${pages[@]}"
    { links "${pages[@]}" && named "${pages[@]}"; } | sort -u | while read -r page to; do
        [ -e "$to" ] || echo "$page: $to is not there"
    done
    for page in docs/*/*.md; do echo "$page"; done |
        grep -vxF -f <(links "${pages[@]}" | awk '$1 != $2 { print $2 }') | grep -v '\*' | sed 's/$/: no page links to it/'
    return 0
}

plant_long() { printf 'It %s.\n' "$(printf 'goes on %.0s' {1..20})" | put "$1/README.md"; }
plant_long_over_lines() { printf '%s\n' "It $(printf 'goes on %.0s' {1..10})" "and $(printf 'on %.0s' {1..20})." | put "$1/docs/a.md"; }
plant_link() { echo 'See [this](docs/none.md).' | put "$1/README.md"; }
plant_file() { echo 'See `libcore/base/none.c`.' | put "$1/docs/a.md"; }
plant_orphan() { echo 'Alone.' | put "$1/docs/howto/alone.md"; }
allow_table() { printf '| %s |\n' "$(printf 'goes on %.0s' {1..40})" | put "$1/README.md"; }
allow_two() { printf 'It %s. It %s.\n' "$(printf 'goes on %.0s' {1..12})" "$(printf 'goes on %.0s' {1..12})" | put "$1/README.md"; }
allow_code() { printf '```\n%s\n```\n' "$(printf 'goes on %.0s' {1..40})" | put "$1/README.md"; }
meta_run
