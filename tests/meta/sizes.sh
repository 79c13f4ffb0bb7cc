#!/bin/bash
# Functions and files stay small, mains are thin, and within libcore, tests, tools or a backend of
# kernels a base name says which file it is: a kernel, its CPU reference and its cost model share one.
#
#   function   60 lines for nine of ten, 150 at most
#   file      800 lines for nine of ten, 1500 at most
#   main      200 lines at most (tools/d9d-*.c)
. "$(dirname "$0")/meta.bash"

sources() {
    find libcore kernels tools tests schemas \( -name '*.[ch]' -o -name '*.cu' -o -name '*.cuh' \) 2>/dev/null | sort
}

# A function is what stands between braces in the first column.
check() {
    cd "$1" || return 1
    sources | awk -F/ '
        { tree = $1; if ($1 == "kernels") tree = $1 "/" $2; k = tree "/" $NF }
        k in seen { print $0 ": shares its name with " seen[k] }
        { seen[k] = $0 }'
    sources | xargs awk '
        function over(what, n, big, limit,   i) {
            if (n >= 10 && big > n / 10)
                print big " of " n " " what "s are over " limit " lines; one in ten may be"
        }
        FNR == 1 { if (last) ends[last] = lines; last = FILENAME; start = 0 }
        { lines = FNR }
        /^\{/ { start = FNR; name = before }
        /^\}/ && start {
            len = FNR - start + 1; start = 0; functions++
            if (len > 60) long_functions++
            if (len > 150) print FILENAME ": " name ": " len " lines, 150 at most"
        }
        /^[A-Za-z]/ { before = $0; sub(/\(.*/, "", before); sub(/.*[ *]/, "", before) }
        END {
            if (last) ends[last] = lines
            for (f in ends) {
                files++
                if (ends[f] > 800) long_files++
                if (ends[f] > 1500) print f ": " ends[f] " lines, 1500 at most"
                if (f ~ /^tools\/d9d-/ && ends[f] > 200) print f ": " ends[f] " lines, 200 at most for a main"
            }
            over("function", functions, long_functions, 60)
            over("file", files, long_files, 800)
        }' /dev/null
}

lines() { awk -v n="$1" 'BEGIN { for (i = 0; i < n; i++) print "    x();" }'; }
function_of() { printf 'void %s(void)\n{\n' "$1" && lines "$2" && echo '}'; }
plant_long_function() { function_of f 160 | put "$1/libcore/base/a.c"; }
plant_many_long_functions() { for i in 1 2 3 4 5 6 7 8 9 10; do function_of "f$i" $((i < 3 ? 70 : 3)); done | put "$1/libcore/base/a.c"; }
plant_long_file() { lines 1501 | put "$1/kernels/cpu/a.c"; }
plant_long_main() { lines 201 | put "$1/tools/d9d-a.c"; }
plant_same_name() { put "$1/libcore/base/a.c" </dev/null && put "$1/libcore/nn/a.c" </dev/null; }
allow_backends() { put "$1/kernels/cpu/a.c" </dev/null && put "$1/kernels/cuda/a.c" </dev/null; }
allow_short() { { function_of f 100 && lines 1000; } | put "$1/libcore/base/a.c"; }
meta_run
