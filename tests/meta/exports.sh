#!/bin/bash
# The library exports d9d_* and nothing else; its own objects never exit, abort or print.
. "$(dirname "$0")/meta.bash"

check() {
    local build=$1/build lib
    [ "$1" = "$meta_root" ] && build=$meta_build
    lib=$build/lib/libd9d.so
    [ -e "$lib" ] || { echo "$lib: not built"; return; }
    nm -D --defined-only "$lib" | awk '$NF !~ /^d9d_/ { print "exports " $NF }'
    find "$build" \( -path "$build/libcore/*" -o -path "$build/kernels/*" \) -name '*.o' 2>/dev/null | sort |
        xargs nm -A --undefined-only | awk '
        {
            sub(/:.*/, "", $1); sub(/@.*/, "", $NF)
            if ($NF ~ /^(exit|_exit|_Exit|quick_exit|abort|raise|stdout|stderr|printf|vprintf|puts|putchar|perror|err|errx|warn|warnx|psignal|__printf_chk|__vprintf_chk)$/)
                print $1 ": uses " $NF
        }'
}

library() { # DIR: from standard input
    mkdir -p "$1/build/libcore/base" "$1/build/lib"
    "$CC" -x c -fPIC -c -o "$1/build/libcore/base/a.o" - &&
        "$CC" -shared -o "$1/build/lib/libd9d.so" "$1/build/libcore/base/a.o"
}
plant_export() { library "$1" <<<'int helper(void) { return 1; }'; }
plant_print() { library "$1" <<<'int puts(const char *); int d9d_a(void) { return puts("x"); }'; }
plant_exit() { library "$1" <<<'void _exit(int); void d9d_a(void); void d9d_a(void) { _exit(1); }'; }
plant_stderr() { library "$1" <<<'extern void *stderr; void *d9d_a(void) { return stderr; }'; }
plant_nothing_built() { mkdir "$1/build"; }
allow_own_names() { library "$1" <<<'int d9d_a(void) { return 1; }'; }
meta_run
