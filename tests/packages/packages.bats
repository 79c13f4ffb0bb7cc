#!/usr/bin/env bats
# What is installed for other tools, by those tools: the ReFrame check, and the modulefile as Lmod loads it.

load ../tools/helper

top=$(cd "$BATS_TEST_DIRNAME/../.." && pwd)

setup_file() {
    work=$(mktemp -d)
    export work
}
teardown_file() { rm -rf "$work"; }

@test "ReFrame lists both checks" {
    command -v reframe >/dev/null || skip "no reframe"
    cd "$work"
    run -0 reframe -c "$top/packaging/reframe/d9d_check.py" -l
    assert_output --partial "Found 2 check(s)"
}

# ---- Modules ------------------------------------------------------------------------------------

installed() {
    [ -e "$work/opt/d9d/bin" ] || make -s --no-print-directory -C "$top" install DESTDIR="$work" PREFIX=/opt/d9d >&2
}
# loads_and_unloads: by a function `module` that is there.
loads_and_unloads() {
    module load d9d/0.1.0
    [[ :$PATH: == *:/opt/d9d/bin:* ]]
    assert_equal "$D9D_BIN" /opt/d9d/bin
    module unload d9d/0.1.0
    [[ :$PATH: != *:/opt/d9d/bin:* ]]
    assert_equal "${D9D_BIN:-}" ""
}

@test "Lmod loads and unloads it" {
    lmod=$(find /usr/share/lmod -name lmod -type f -path "*/libexec/*" 2>/dev/null | head -n 1)
    [ -n "$lmod" ] || skip "no Lmod"
    installed
    unset LOADEDMODULES _LMFILES_ D9D_BIN
    export MODULEPATH=$work/opt/d9d/share/modulefiles LMOD_SYSTEM_DEFAULT_MODULES=
    module() { eval "$("$lmod" bash "$@" 2>/dev/null)"; }
    loads_and_unloads
}
