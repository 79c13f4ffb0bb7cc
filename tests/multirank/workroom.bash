# shellcheck shell=bash disable=SC2154 # variables of bats
# workroom.bash - one working directory for all tests of a file, with plugins and ranks; load it.
load ../multirank/launch
load ../tools/helper
root=$BATS_TEST_DIRNAME/../..

# workroom, first in setup_file: makes the directory $work and enters it.  enter, first in setup:
# enters it again.
workroom() {
    no_launcher
    work=$(workplace)
    export work
    enter
}
enter() {
    cd "$work" || return 1
    PATH=$work/d9d/bin:$PATH # if it is installed
}
setup() { enter; }
teardown_file() { rm -rf "$work"; }

# installed: installs this build in $work/d9d.
installed() { make -s --no-print-directory -C "$root" install PREFIX="$work/d9d" DESTDIR= >&2; }

# struck TOOL: runs TOOL with its pid in pid.RANK, which all_gone reads.  strike SIGNAL signals a
# random rank, `rank`, and waits until all have ended: the timeout, and the time to detect and end.
struck() {
    mkdir -p "$work/bin"
    # shellcheck disable=SC2016
    printf '#!/bin/bash\necho $$ >pid.$OMPI_COMM_WORLD_RANK\nexec %q "$@"\n' "$D9D_BIN/$1" >"$work/bin/$1"
    chmod +x "$work/bin/$1"
    PATH=$work/bin:$PATH
}
all_gone() {
    local f
    for f in pid.*; do is_gone "$(cat "$f")" || return 1; done
}
strike() {
    local ranks=(pid.*)
    rank=$((RANDOM % ${#ranks[@]}))
    kill "-$1" "$(cat pid.$rank)"
    patience=60 wait_for all_gone
}
# named FILE STATE: FILE says that rank `rank` is STATE, and names its call.
named() {
    grep -E "(rank|is) $rank \([^)]*\),? which is $2( since [0-9.]+ s)?; its last call: [a-z_+]+: [a-z_]+ [0-9]+ of " "$1" || { echo "rank $rank:"; cat err "$1"; return 1; }
}

# plugin NAME SOURCE [FLAG...]: builds libNAME.so against the installed tree, as users do.
plugin() {
    local name=$1 source=$2 flags libs
    shift 2
    [ -d "$work/d9d" ] || installed
    flags=$(PKG_CONFIG_PATH=$work/d9d/lib/pkgconfig pkg-config --cflags d9d)
    libs=$(PKG_CONFIG_PATH=$work/d9d/lib/pkgconfig pkg-config --libs d9d)
    # shellcheck disable=SC2086 # several options
    ${CC:-cc} -std=c11 -Wall -Wextra -Werror -O2 -g ${D9D_SAN:+-fsanitize=$D9D_SAN} -shared -fPIC \
        -o "lib$name.so" "$@" "$source" $flags $libs
}

# numbers FIELD FILE|RUN: the values of a field, one per line.
numbers() {
    local file=$2
    [ ! -d "$2" ] || file=$2/metrics.jsonl
    sed -nE "s|.*\"$1\": ([-+0-9.e]+).*|\1|p" "$file"
}
# close_to TOLERANCE FILE FILE: compares numbers, one per line, by relative difference.
close_to() {
    paste -d' ' "$2" "$3" | awk -v e="$1" '
        NF != 2 || !(($1 - $2) ^ 2 <= (e * $2) ^ 2) { print; bad = 1 } END { exit bad || NR == 0 }'
}
