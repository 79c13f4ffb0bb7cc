#!/bin/bash
# Every tool has a manual page; --help and the page list the same options; the page names
# the exit codes and is clean.  A page names every variable of ours that the code reads, and every
# part that a configuration may choose.
. "$(dirname "$0")/meta.bash"

# The options of a list such as "  -n, --steps N   stop after N steps": those before the text.
options() {
    sed 's/.\x08//g' | sed -nE 's/^[[:space:]]+(-.*)/\1/p' | sed -E 's/[[:space:]]{2,}.*//' |
        grep -oE '(^|[ ,|[])--?[A-Za-z][A-Za-z0-9-]*' | tr -d ' ,|[' | sort -u
}

check() {
    local build=$1/build source name page a b
    [ "$1" = "$meta_root" ] && build=$meta_build
    cd "$1" || return 1
    a=$(mktemp) b=$(mktemp)
    for source in tools/d9d-*.c; do
        [ -e "$source" ] || continue
        name=$(basename "$source" .c) page=tools/man/$(basename "$source" .c).1
        [ -f "$page" ] || { echo "$name: has no $page"; continue; }
        "$build/bin/$name" --help </dev/null >"$a.help" || echo "$name --help: exit status $?"
        options <"$a.help" >"$a"
        [ -s "$a" ] || echo "$name --help: lists no option"
        man_text "$page" | options >"$b"
        comm -23 "$a" "$b" | sed "s|^|$page: says nothing of |"
        comm -13 "$a" "$b" | sed "s|^|$name --help: says nothing of |"
        for word in NAME SYNOPSIS DESCRIPTION 'EXIT STATUS'; do
            man_text "$page" | grep -q "^$word" || echo "$page: has no section $word"
        done
        if command -v mandoc >/dev/null; then mandoc -T lint -W warning "$page"; fi
    done
    [ ! -d tools/man ] || grep -Lx '.Os d9d' tools/man/* | sed 's/$/: does not say at its foot that it is of d9d/'
    for page in tools/man/*.1; do
        [ ! -e "$page" ] || [ -e "tools/$(basename "$page" .1).c" ] || echo "$page: there is no such tool"
    done
    grep -rhoE '(getenv\(|VARIABLE )"D9D_[A-Z_]+' libcore kernels tools --include='*.[ch]' --include='*.cu' 2>/dev/null |
        sed 's/.*"//' | sort -u | while read -r word; do
        grep -qw "$word" tools/man/* || echo "$word: no manual page says what it does"
    done
    sed -nE 's/^ *"const": "([^"]+)",?$/\1/p' schemas/d9d.{train,infer}.v1.json 2>/dev/null | sort -u |
        while read -r word; do
            grep -qwF -e "$word" tools/man/* || echo "$word: a configuration may choose it, and no manual page says so"
        done
    rm -f "$a" "$b" "$a.help"
}

man_text() {
    if command -v mandoc >/dev/null; then
        mandoc -T ascii -O width=200 "$1" | sed 's/.\x08//g'
    else
        MANWIDTH=200 MAN_KEEP_FORMATTING='' man -l "$1"
    fi
}

tree() { # DIR: a tool with -n/--steps, and a page from standard input after the header
    put "$1/tools/d9d-x.c" </dev/null
    mkdir -p "$1/build/bin"
    printf '#!/bin/sh\necho "usage: d9d-x"\necho "  -n, --steps N   steps"\n' >"$1/build/bin/d9d-x"
    chmod +x "$1/build/bin/d9d-x"
    {
        printf '.Dd January 1, 2026\n.Dt D9D-X 1\n.Os d9d\n.Sh NAME\n.Nm d9d-x\n.Nd a tool\n'
        printf '.Sh SYNOPSIS\n.Nm\n.Sh DESCRIPTION\nIt works.\n.Bl -tag -width Ds\n'
        cat
    } | put "$1/tools/man/d9d-x.1"
}
steps='.It Fl n , Fl -steps Ar N
Steps.'
exits='.El
.Sh EXIT STATUS
0, 1 or 2.'
plant_no_page() { put "$1/tools/d9d-x.c" </dev/null; }
plant_page_silent() { tree "$1" <<<".It Fl q
Quiet.
$exits"; }
plant_help_silent() { tree "$1" <<<"$steps
.It Fl -every Ar N
One in N.
$exits"; }
plant_no_exit_status() { tree "$1" <<<"$steps
.El"; }
plant_markup() { tree "$1" <<<"$steps
$exits
.Bogus"; }
plant_foot_of_another() { tree "$1" <<<"$steps
$exits" && sed -i 's/^.Os d9d/.Os/' "$1/tools/man/d9d-x.1"; }
plant_page_without_tool() { tree "$1" <<<"$steps
$exits" && put "$1/tools/man/d9d-gone.1" </dev/null; }
plant_variable() { tree "$1" <<<"$steps
$exits" && echo 'getenv("D9D_SECRET")' | put "$1/libcore/base/a.c"; }
plant_choice() { tree "$1" <<<"$steps
$exits" && printf '  "const": "lion"\n' | put "$1/schemas/d9d.train.v1.json"; }
allow_agreeing() { tree "$1" <<<"$steps
$exits"; }
meta_run
