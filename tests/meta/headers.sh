#!/bin/bash
# Every public header compiles alone, as C11 and as C++17, and is guarded by its own name.
. "$(dirname "$0")/meta.bash"

# An empty unit that includes the header: clang calls static functions of a unit itself unused.
one() { # LANGUAGE STANDARD COMPILER HEADER INCLUDES...
    local language=$1 standard=$2 compiler=$3 header=$4
    shift 4
    "$compiler" -x "$language" -std="$standard" -Wall -Wextra -Werror -fsyntax-only "$@" -include "$header" /dev/null 2>&1 |
        grep -E 'error|warning' | head -n 3 | sed "s|^|$header, $standard: |"
}

check() {
    local -a include dirs
    local header base guard
    read -ra include <<<"${D9D_CPPFLAGS:-$(pkg-config --cflags jansson)}"
    cd "$1" || return 1
    mapfile -t dirs < <(ls -d libcore/include kernels/include 2>/dev/null)
    for header in $(find "${dirs[@]}" -name '*.h' | sort); do
        one c c11 "$CC" "$header" -Ilibcore/include -Ikernels/include "${include[@]}" &
        one c++ c++17 "$CXX" "$header" -Ilibcore/include -Ikernels/include "${include[@]}"
        wait
        base=${header#*/d9d/}
        guard=$(tr 'a-z/.' 'A-Z__' <<<"D9D_${base}")
        grep -q "^#ifndef $guard\$" "$header" || echo "$header: is not guarded by $guard"
    done
}

header() { { printf '#ifndef %s\n#define %s\n' "$2" "$2" && cat && echo '#endif'; } | put "$1"; }
plant_needs_another() { header "$1/libcore/include/d9d/base/a.h" D9D_BASE_A_H <<<'size_t a(void);'; }
plant_not_cxx() { header "$1/libcore/include/d9d/base/a.h" D9D_BASE_A_H <<<'int a(int class);'; }
plant_kernel() { header "$1/kernels/include/d9d/kernels/a.h" D9D_KERNELS_A_H <<<'uint8_t a(void);'; }
plant_guard() { header "$1/libcore/include/d9d/base/a.h" A_H <<<'int a(void);'; }
allow_plain() { header "$1/libcore/include/d9d/base/a.h" D9D_BASE_A_H <<<'int a(void);'; }
meta_run
