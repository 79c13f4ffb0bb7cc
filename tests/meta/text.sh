#!/bin/bash
# The text of the project speaks of the project: no paths of somebody's machine, no marks of
# unfinished work, no file that is large without need.
. "$(dirname "$0")/meta.bash"

limit=1048576 # bytes of one file

files() { # those that git has or would take; all of them outside a repository
    if [ -e .git ]; then
        git -c safe.directory='*' ls-files -co --exclude-standard
    else
        find . -type f -printf '%P\n'
    fi
}

# grep over the files on standard input, three lines a file at most; why is added to each.
find_lines() { # PATTERN WHY
    tr '\n' '\0' | xargs -0 -r grep -HnIE -m 3 -- "$1" | sed "s|\$|  <- $2|"
}

check() {
    local all prose
    cd "$1" || return 1
    all=$(files | grep -vx LICENSE | while read -r f; do [ ! -f "$f" ] || echo "$f"; done)
    tr '\n' '\0' <<<"$all" | xargs -0 stat -c '%s %n' |
        awk -v most=$limit '$1 > most { print $2 ": " $1 " bytes, " most " at most" }'
    prose=$(grep -vE '\.json$|^tests/golden/|^tests/fuzz/.*/' <<<"$all")
    find_lines '(^|[^A-Za-z0-9_.$}/~-])/(home|root|Users|work|tmp/w)/' 'a path of one machine' <<<"$prose"
    find_lines '(^|[^A-Za-z])(TO[D]O|FIX[M]E|XX[X])([^A-Za-z]|$)' 'unfinished work' <<<"$prose"
    find_lines '[[:blank:]]$' 'blanks at the end' <<<"$prose"
    tr '\n' '\0' <<<"$prose" | xargs -0 -r grep -lI . | while read -r f; do
        [ -z "$(tail -c 1 "$f" | tr -d '\n')" ] || echo "$f: no newline at the end"
    done
}

plant_home() { echo "see /""home/me/x" | put "$1/README.md"; }
plant_unfinished() { echo "/* TO""DO: later */" | put "$1/libcore/base/a.c"; }
plant_large() { head -c $((limit + 1)) /dev/zero | put "$1/docs/a.bin"; }
plant_blank() { printf 'x \n' | put "$1/a.c"; }
plant_no_newline() { printf 'x' | put "$1/a.c"; }
allow_text() { echo "a run goes to runs/NAME; \$HOME is yours; see docs/home/x" | put "$1/README.md"; }
meta_run
