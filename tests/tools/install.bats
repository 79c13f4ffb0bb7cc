#!/usr/bin/env bats
# An installed tree beside its library and headers (tests/multirank/plugin.bats): completions,
# modulefiles, and a check against the reference log.

load helper

setup_file() {
    stage=$(workplace)
    export stage root=$stage/opt/d9d
    make -s --no-print-directory -C "$BATS_TEST_DIRNAME/../.." install DESTDIR="$stage" PREFIX=/opt/d9d LIBDIR=lib64 >&2
}
teardown_file() { rm -rf "$stage"; }

@test "library, pkg-config file and module are where LIBDIR says" {
    [ -x "$root/lib64/libd9d.so.0" ]
    assert_equal "$(readlink "$root/lib64/libd9d.so")" libd9d.so.0
    [ ! -e "$root/lib" ]
    grep -qx 'Libs: -L${prefix}/lib64 -ld9d' "$root/lib64/pkgconfig/d9d.pc"
    assert_equal "$(readelf -d "$root/lib64/libd9d.so.0" | sed -n 's/.*SONAME.*\[\(.*\)\]/\1/p')" libd9d.so.0
}

@test "every tool has completions of bash and zsh" {
    for tool in "$root"/bin/d9d-*; do
        bash -n "$root/share/bash-completion/completions/${tool##*/}"
        grep -qx "complete -o filenames -F _${tool##*/}" <(sed 's/ d9d-.*//; s/_d9d_/_d9d-/' "$root/share/bash-completion/completions/${tool##*/}")
        assert_equal "$(head -n 1 "$root/share/zsh/site-functions/_${tool##*/}")" "#compdef ${tool##*/}"
        ! command -v zsh >/dev/null || zsh -n "$root/share/zsh/site-functions/_${tool##*/}"
    done
}

@test "completions have every option that help has" {
    for tool in d9d-map d9d-shard d9d-lrplot; do
        for option in $("$root/bin/$tool" --help | grep -oE '^  (-.,|   ) --[a-z-]+' | grep -oE -- '--[a-z-]+' | sort -u); do
            grep -qF -e "$option" "$root/share/bash-completion/completions/$tool" || fail "bash: $tool $option"
            grep -qF -e "$option" "$root/share/zsh/site-functions/_$tool" || fail "zsh: $tool $option"
        done
        run -0 "$root/bin/$tool" --help
        refute_output --partial " --completion"
    done
}

# What either shell makes of a line and a tab.
completions='d9d-map ve > d9d-map verify
d9d-map plan --do > d9d-map plan --dot
d9d-map verify --do > d9d-map verify --do
d9d-map verify --qui > d9d-map verify --quiet
d9d-map --dtype bf > d9d-map --dtype bfloat16
d9d-map plan --to=h > d9d-map plan --to=hf
d9d-map -m mod > d9d-map -m model.json
d9d-map -j mod > d9d-map -j mod
d9d-train --pl > d9d-train --plan
d9d-train mod > d9d-train model.json
d9d-metrics su > d9d-metrics summary
d9d-shard ins > d9d-shard inspect
d9d-shard --format meg > d9d-shard --format megatron'

@test "bash completes commands, options, their words and files" {
    # shellcheck source=/dev/null # a file of the installation
    for tool in d9d-map d9d-train d9d-metrics d9d-shard; do . "$root/share/bash-completion/completions/$tool"; done
    # words are cut at "=", as by COMP_WORDBREAKS
    completed() { # LINE
        local cut=${1//=/ = }
        read -ra COMP_WORDS <<<"$cut"
        COMP_CWORD=$((${#COMP_WORDS[@]} - 1))
        COMPREPLY=()
        "_${COMP_WORDS[0]//-/_}"
        [ ${#COMPREPLY[@]} -ne 1 ] && echo "$1" || echo "${1%"${COMP_WORDS[COMP_CWORD]}"}${COMPREPLY[0]}"
    }
    mkdir "$BATS_TEST_TMPDIR/a" && cd "$BATS_TEST_TMPDIR/a" && touch model.json
    while read -r line; do
        assert_equal "${line% > *} > $(completed "${line% > *}")" "$line"
    done <<<"$completions"
    COMP_WORDS=(d9d-map --to "=") COMP_CWORD=2
    _d9d_map
    assert_equal "${COMPREPLY[*]}" "other d9d hf"
}

@test "an interactive zsh completes the same" {
    command -v zsh >/dev/null || skip "no zsh"
    mkdir "$BATS_TEST_TMPDIR/a" && cd "$BATS_TEST_TMPDIR/a" && touch model.json
    local lines=()
    while read -r line; do lines+=("${line% > *}"); done <<<"$completions"
    PATH=$root/bin:$PATH run -0 timeout -k 5 "${patience:-900}" "$BATS_TEST_DIRNAME/complete.zsh" "$root/share/zsh/site-functions" "${lines[@]}"
    # it adds a blank to a word that is whole
    diff <(printf '%s\n' "${lines[@]}" | sed 's/ $//') <(while read -r line; do echo "${line#* > }"; done <<<"$completions")
}

# What each modulefile does, as lines NAME VALUE.
want='MANPATH /opt/d9d/share/man
PATH /opt/d9d/bin
PKG_CONFIG_PATH /opt/d9d/lib64/pkgconfig'

@test "the modulefile of Tcl runs" {
    command -v tclsh >/dev/null || skip "no tclsh"
    cat >"$BATS_TEST_TMPDIR/run.tcl" <<'TCL'
foreach name {module-whatis conflict setenv append-path} { proc $name args {} }
proc prepend-path {name value} { puts "$name $value" }
source [lindex $argv 0]
TCL
    run -0 tclsh "$BATS_TEST_TMPDIR/run.tcl" "$root/share/modulefiles/d9d/0.1.0"
    assert_equal "$(sort <<<"$output")" "$want"
}

@test "the modulefile of Lmod runs" {
    lua=$(command -v lua || command -v lua5.4 || command -v lua5.3) || skip "no lua"
    run -0 "$lua" -e 'for _, f in ipairs{"help", "whatis", "conflict", "setenv", "append_path"} do _G[f] = function() end end
        prepend_path = function(n, v) print(n .. " " .. v) end
        dofile(arg[1])' /dev/null "$root/share/modulefiles/d9d/0.1.0.lua"
    assert_equal "$(sort <<<"$output")" "$want"
}

# loads_and_unloads COMMAND...: what a module command makes of it.
loads_and_unloads() {
    unset LOADEDMODULES _LMFILES_ MODULEPATH MANPATH D9D_BIN "${!_ModuleTable@}" "${!__LMOD@}"
    command=("$@")
    module() {
        MODULEPATH=$root/share/modulefiles "${command[@]}" bash "$@" >"$BATS_TEST_TMPDIR/shell" 2>"$BATS_TEST_TMPDIR/said"
        eval "$(cat "$BATS_TEST_TMPDIR/shell")"
    }
    module -t avail
    grep -qx 'd9d/0.1.0.*' "$BATS_TEST_TMPDIR/said"
    module help d9d
    grep -q 'man d9d-train' "$BATS_TEST_TMPDIR/said"
    module load d9d
    [[ $PATH == /opt/d9d/bin:* && $PKG_CONFIG_PATH == /opt/d9d/lib64/pkgconfig* ]]
    # an empty folder stands for those of the system
    [[ $MANPATH: == /opt/d9d/share/man::* ]]
    assert_equal "$D9D_BIN" /opt/d9d/bin
    module unload d9d
    [[ :$PATH: != *:/opt/d9d/* && :$MANPATH: != */opt/d9d/* && -z ${D9D_BIN:-} ]]
}

@test "Lmod loads and unloads it" {
    local command
    command=${LMOD_CMD:-$(ls /usr/share/lmod/lmod/libexec/lmod 2>/dev/null)} || skip "no Lmod"
    loads_and_unloads "$command"
}

# Debian's package and that of Lmod exclude each other, so it may be unpacked and not installed.
@test "Environment Modules loads and unloads it" {
    local command
    find_it() {
        { compgen -G "$1/usr/lib/*/modulecmd.tcl" || compgen -G "$1/usr/share/[Mm]odules/libexec/modulecmd.tcl"; } | head -n 1
    }
    command=$(find_it "")
    if [ -z "$command" ] && [ "${D9D_LONG:-0}" = 1 ]; then
        cd "$BATS_TEST_TMPDIR"
        apt-get download environment-modules >&2 && dpkg -x environment-modules_*.deb unpacked
        command=$(find_it unpacked)
    fi
    [ -n "$command" ] || skip "no Environment Modules"
    loads_and_unloads tclsh "$command"
}

@test "the installation computes what the reference log has" {
    unset D9D_BIN
    run -0 "$root/share/d9d/reference/check"
    assert_line "1..13"
    assert_line --regexp '^ok 13 - perplexity of step 12: '
}

@test "a number that is off fails the check, and so does a tool" {
    cp -r "$root/share/d9d/reference" "$BATS_TEST_TMPDIR/other"
    sed -i 's/^loss 5 .*/loss 5 9.9/' "$BATS_TEST_TMPDIR/other/reference.log"
    D9D_BIN=$root/bin run -1 "$BATS_TEST_TMPDIR/other/check"
    assert_equal "$(grep -c '^not ok' <<<"$output")" 1
    assert_line --regexp '^not ok 5 - loss of step 5: [0-9.]+, reference 9.9'
    mkdir "$BATS_TEST_TMPDIR/bin" && ln -s /bin/false "$BATS_TEST_TMPDIR/bin/d9d-map"
    D9D_BIN=$BATS_TEST_TMPDIR/bin run -1 "$root/share/d9d/reference/check"
    assert_line "Bail out! d9d-map failed:"
}

@test "uninstall leaves nothing" {
    cp -r "$stage" "$BATS_TEST_TMPDIR/stage"
    make -s --no-print-directory -C "$BATS_TEST_DIRNAME/../.." uninstall DESTDIR="$BATS_TEST_TMPDIR/stage" PREFIX=/opt/d9d LIBDIR=lib64
    assert_equal "$(find "$BATS_TEST_TMPDIR/stage" ! -type d)" ""
}
