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

check() {
    cd "$1" || return 1
    files | grep -vx LICENSE | while read -r f; do
        [ -f "$f" ] || continue
        [ "$(stat -c %s "$f")" -le $limit ] || echo "$f: $(stat -c %s "$f") bytes, $limit at most"
        case $f in *.json | tests/golden/* | tests/fuzz/*/*) continue ;; esac
        grep -nIE '(^|[^A-Za-z0-9_.$}/~-])/(home|root|Users|work|tmp/w)/' "$f" | sed "s|^|$f:|; s|\$|  <- a path of one machine|"
        grep -nIE '(^|[^A-Za-z])(TO[D]O|FIX[M]E|XX[X])([^A-Za-z]|$)' "$f" | sed "s|^|$f:|; s|\$|  <- unfinished work|"
        grep -nI '[[:blank:]]$' "$f" | head -n 3 | sed "s|^|$f:|; s|\$|<- blanks at the end|"
        [ ! -s "$f" ] || [ -z "$(tail -c 1 "$f" | tr -d '\n')" ] || ! grep -qI . "$f" || echo "$f: no newline at the end"
    done
}

plant_home() { echo "see /""home/me/x" | put "$1/README.md"; }
plant_unfinished() { echo "/* TO""DO: later */" | put "$1/libcore/base/a.c"; }
plant_large() { head -c $((limit + 1)) /dev/zero | put "$1/docs/a.bin"; }
plant_blank() { printf 'x \n' | put "$1/a.c"; }
plant_no_newline() { printf 'x' | put "$1/a.c"; }
allow_text() { echo "a run goes to runs/NAME; \$HOME is yours; see docs/home/x" | put "$1/README.md"; }
meta_run
