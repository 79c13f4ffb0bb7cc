#!/bin/bash
# The text of the project speaks of the project: no paths of somebody's machine, no marks of
# unfinished work, no sections of documents that are not in it, no file that is large without need.
. "$(dirname "$0")/meta.bash"

limit=1048576 # bytes of one file

files() { # those that git has or would take; outside a repository all but what .gitignore names
    if [ -e .git ]; then
        git -c safe.directory='*' ls-files -co --exclude-standard
    else
        find . -type f -printf '%P\n' | grep -vE '^(build(-[^/]*)?|\.whl|runs|demo)/|^config\.mk$'
    fi
}

# search PATTERN: in the text files whose names it reads.
search() { xargs -r -d '\n' grep -nHIE "$@" /dev/null | cut -c1-200; }

check() {
    local all text
    cd "$1" || return 1
    all=$(files | grep -vx LICENSE | while read -r f; do [ ! -f "$f" ] || printf '%s\n' "$f"; done)
    text=$(grep -vE '\.json$|^tests/golden/|^tests/fuzz/.*/' <<<"$all" | xargs -r -d '\n' grep -lI '')
    xargs -r -d '\n' stat -c '%s %n' <<<"$all" |
        awk -v limit=$limit '$1 > limit { print $2 ": " $1 " bytes, " limit " at most" }'
    [ -n "$text" ] || return 0
    search '(^|[^A-Za-z0-9_.$}/~-])/(home|root|Users|work|tmp/w)/' <<<"$text" | sed 's/$/  <- a path of one machine/'
    search '(^|[^A-Za-z])(TO[D]O|FIX[M]E|XX[X])([^A-Za-z]|$)' <<<"$text" | sed 's/$/  <- unfinished work/'
    search '(^|[^A-Za-z])sp[e]c [0-9]' <<<"$text" | sed 's/$/  <- a section of what is not in the tree/'
    search '[[:blank:]]$' <<<"$text" | sed 's/$/<- blanks at the end/'
    # grep counts an unfinished last line, wc does not
    comm -13 <(xargs -d '\n' wc -l <<<"$text" | awk '$2 != "total" { print $2 ": " $1 }' | sort) \
        <(xargs -d '\n' grep -c '' /dev/null <<<"$text" | sed 1d | sed -E 's/:([0-9]+)$/: \1/' | sort) |
        sed -E 's/: [0-9]+$/: no newline at the end/'
}

plant_home() { echo "see /""home/me/x" | put "$1/README.md"; }
plant_unfinished() { echo "/* TO""DO: later */" | put "$1/libcore/base/a.c"; }
plant_section() { echo "/* sp""ec 16.2 */" | put "$1/libcore/base/a.h"; }
plant_large() { head -c $((limit + 1)) /dev/zero | put "$1/docs/a.bin"; }
plant_blank() { printf 'x \n' | put "$1/a.c"; }
plant_no_newline() { printf 'x' | put "$1/a.c"; }
allow_built() {
    echo "built" | put "$1/README.md"
    head -c $((limit + 1)) /dev/zero | put "$1/build/lib/a.bin"
    echo "CC := /usr/bin/gcc -I/""home/me/include" | put "$1/config.mk"
}
allow_text() { echo "a run goes to runs/NAME; \$HOME is yours; see docs/home/x" | put "$1/README.md"; }
meta_run
