#!/usr/bin/env bats
# The tarball: what is in it runs where it is unpacked, with nothing of this machine but glibc.

load ../tools/helper

top=$(cd "$BATS_TEST_DIRNAME/../.." && pwd)

setup_file() {
    work=$(mktemp -d)
    export work
    # Of the build at hand: what this system's glibc makes of it is no matter here.
    make -s --no-print-directory -C "$top" tarball NVCC= BASELINE=9 ZSTD_LEVEL=1 B="$D9D_BUILD" >&2
    mkdir "$work/a place" && tar -C "$work/a place" -xf "$D9D_BUILD"/d9d-*.tar.zst
    root=$(echo "$work/a place"/d9d-*)
    export root
}
teardown_file() { rm -rf "$work"; }

@test "libraries that are not glibc's are beside the suite, and found there" {
    for file in "$root"/bin/d9d-*; do
        run -0 env -i LD_TRACE_LOADED_OBJECTS=1 "$file"
        assert_output --partial "libjansson.so.4 => $root/"
        refute_output --partial "not found"
        others=$(grep ' => ' <<<"$output" | grep -vF " => $root/" | awk '{ print $1 }' |
            grep -vE '^lib(c|m|dl|rt|pthread)\.so\.[0-9]$') || true
        assert_equal "$others" ""
    done
    for library in "$root"/lib/*.so.*; do
        case ${library##*/} in libd9d*) ;; *) [ -s "$root/share/doc/d9d/licenses/${library##*/}" ] || fail "$library has no license" ;; esac
    done
}

@test "the reference run, with an empty environment" {
    run -0 env -i PATH=/usr/bin:/bin "$root/share/d9d/reference/check"
    assert_line "1..13"
}

@test "the MPI module is built by one command, and starts two ranks" {
    command -v mpicc >/dev/null || skip "no mpicc"
    run -1 env MPICC=none "$root/share/d9d/mpi/build"
    assert_output --partial "there is no none"
    run -0 "$root/share/d9d/mpi/build"
    [ -x "$root/lib/libd9d_mpi.so.0" ]
    run -0 nm -D --defined-only "$root/lib/libd9d_mpi.so.0"
    assert_output --partial d9d_mpi_module
    run -0 env -u D9D_MPI_LIB RANKS=2 OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 \
        OMPI_MCA_rmaps_base_oversubscribe=1 "$root/share/d9d/reference/check" mpirun -n 2
    assert_line "1..13"
}

@test "modulefiles and d9d.pc know where they are" {
    prefix=$(PKG_CONFIG_PATH="$root/lib/pkgconfig" pkg-config --variable=prefix d9d | sed 's|[^[:alnum:]/._ -]||g')
    assert_equal "$(realpath "$prefix")" "$(realpath "$root")"
    if command -v tclsh >/dev/null; then
        cat >"$work/run.tcl" <<'TCL'
foreach name {module-whatis conflict prepend-path append-path} { proc $name args {} }
proc setenv {name value} { puts "$name $value" }
set ModulesCurrentModulefile "[lindex $argv 0]/share/modulefiles/d9d/0.1.0"
source $ModulesCurrentModulefile
TCL
        run -0 tclsh "$work/run.tcl" "$root"
        assert_output "D9D_BIN $root/bin"
    fi
}

@test "what needs a newer glibc, other libraries or folders of this machine is named" {
    run -0 "$top/packaging/tarball/needs" "$root"
    refute_line --regexp '^path '
    assert_line "library libc.so.6"
    assert_line --regexp '^glibc 2\.[0-9]+$'
    cp -r "$root" "$work/planted" && cd "$work"
    rm planted/lib/libjansson.so.4
    echo 'void f(void) {}' | gcc -shared -x c -fPIC - -o planted/lib/libplanted.so.1 -Wl,-rpath,/opt/elsewhere
    run -0 "$top/packaging/tarball/needs" planted
    assert_line "library libjansson.so.4"
    assert_line "path /opt/elsewhere"
}

@test "a tarball that needs more than the baseline is refused" {
    run -2 make -s --no-print-directory -C "$top" tarball NVCC= BASELINE=2.2 B="$D9D_BUILD"
    assert_output --partial "the baseline is 2.2: give the tree of an older system"
}
