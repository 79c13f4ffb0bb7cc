#!/bin/bash
# Scripts that print or read numbers by awk or printf do it in the locale C: in others, mawk and printf
# write 0,5.  A script says `export LC_ALL=C` for all of its commands, or LC_ALL=C before one.  What
# tests/run.sh runs has it from there.
. "$(dirname "$0")/meta.bash"

scripts() {
    find "$1" -type d \( -name .git -o -name build -o -name shared \) -prune -o -type f \
        \( -path "$1/tests/gpu/*" -o -path "$1/tests/bench/*" -o -not -path "$1/tests/*/*" \) -print0 |
        xargs -0r grep -lZE '^(#!/.*sh$|# shellcheck shell=)' | xargs -0r grep -LZ '^export LC_ALL=C'
}

check() {
    scripts "$1" | xargs -0r awk -v root="$1/" '
        /^ *#/ { next }
        { number = "printf (-v [a-z]+ )?\047[^\047]*%[-+.0-9]*[efg]"
          awk = "(^|[^a-zA-Z_.=-])awk [^=]" }
        ($0 ~ awk || $0 ~ number) && !/LC_ALL=C[A-Za-z0-9.-]* (exec )?awk/ && !/find .*-printf/ {
            print substr(FILENAME, length(root) + 1) ":" FNR ": not in the locale C: " $0
        }'
}

plant_awk() { printf '#!/bin/sh\nawk "{ print \$1 / 2 }" x\n' | put "$1/examples/a.sh"; }
plant_gpu() { printf '#!/bin/bash\nx=$(awk "BEGIN { print 1 / 2 }")\n' | put "$1/tests/gpu/a"; }
plant_printf() { printf '#!/bin/bash\nprintf %s%%-8s %%.2f%s a 0.5\n' \' \' | put "$1/tests/bench/a.sh"; }
allow_export() { printf '#!/bin/sh\nexport LC_ALL=C\nawk "{ print \$1 / 2 }" x\n' | put "$1/examples/a.sh"; }
allow_one() { printf '#!/bin/sh\nLC_ALL=C awk "{ print \$1 / 2 }" x\n' | put "$1/examples/a.sh"; }
allow_suite() { printf '#!/usr/bin/env bats\nawk "{ print \$1 / 2 }" x\n' | put "$1/tests/tools/a.bats"; }
meta_run
