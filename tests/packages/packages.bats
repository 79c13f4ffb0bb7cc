#!/usr/bin/env bats
# Recipes by their own tools, or by a stand-in of these that says what it was asked for.

load ../tools/helper
load helper

top=$(cd "$BATS_TEST_DIRNAME/../.." && pwd)

setup_file() {
    work=$(mktemp -d)
    export work
    make -s --no-print-directory -C "$BATS_TEST_DIRNAME/../.." install NVCC= PREFIX="$work/d9d" B="$D9D_BUILD" >&2
}
teardown_file() { rm -rf "$work"; }

# arguments_of SPEC: of what make is called with by the Spack recipe, one a line.
arguments_of() { python3 "$BATS_TEST_DIRNAME/read_spack.py" "$top/packaging/spack/package.py" "$1" | sed '1,/^arguments/d'; }

@test "the Spack recipe calls make with variables that it has, and builds what its variants say" {
    needs python3
    for spec in "" "~mpi ~pmix ~plots" "~mpi +cuda cuda_arch=80,90"; do
        run -0 arguments_of "$spec"
        assert_line NO_INSTALL=1
        while read -r name; do
            grep -qE "^#.* $name=|^$name +\?=|origin $name\)" "$top/Makefile" || fail "the Makefile has no $name"
        done < <(cut -d= -f1 <<<"$output")
    done
    assert_line "CUDA_ARCH=80 90a"
    run -0 arguments_of "~mpi"
    assert_line MPICC=
    assert_line NVCC=
    run -0 arguments_of ""
    assert_line MPICC=/opt/mpi/bin/mpicc
    # an argument that Spack's directives have not
    sed 's/description="Jobs/descripton="Jobs/' "$top/packaging/spack/package.py" >"$work/planted.py"
    run ! python3 "$BATS_TEST_DIRNAME/read_spack.py" "$work/planted.py" ""
    assert_output --partial "no such argument: descripton"
}

@test "rattler-build renders the conda recipe" {
    needs python3
    python3 -c 'import rattler_build' 2>/dev/null || skip "no python3 with rattler_build"
    run -0 python3 "$BATS_TEST_DIRNAME/render_conda.py" "$top"/packaging/conda/{recipe,variants}.yaml
    assert_line "package d9d 0.1.0"
    assert_line "build sysroot_linux-64 2.28.*"
    assert_line "host jansson"
    assert_line "tests 1"
}

@test "ReFrame runs both checks, and a number that is off fails them" {
    needs reframe
    cd "$work"
    launcher=()
    ! command -v mpirun >/dev/null || launcher=(-S "launcher=mpirun -n 2")
    checks() { # ARGUMENT...
        OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMPI_MCA_rmaps_base_oversubscribe=1 \
            reframe -c "$top/packaging/reframe/d9d_check.py" -S installation="$work/d9d" "${launcher[@]}" --prefix="$work/reframe" "$@"
    }
    run -0 checks -l
    assert_output --partial "Found 2 check(s)"
    [ ${#launcher[@]} -gt 0 ] && [ -e "$work/d9d/lib/libd9d_mpi.so.0" ] || skip "no MPI: two ranks cannot start"
    run -0 checks -r
    assert_output --partial "Ran 2/2 test case(s) from 2 check(s) (0 failure(s)"
    sed -i 's/^loss 5 .*/loss 5 9.9/' "$work/d9d/share/d9d/reference/reference.log"
    run ! checks -r
    assert_output --partial "2 failure(s)"
}

# stages FILE: of a definition of Apptainer, its stages; an error names what a stage lacks or copies from.
stages() {
    awk '
        function done() { if (stage != "" && !(bootstrap && from)) { print stage ": no Bootstrap or From"; bad = 1 } }
        /^Bootstrap:/ { done(); bootstrap = 1; from = 0; stage = "" }
        /^From:/ { from = NF == 2 }
        /^Stage:/ { stage = $2; print stage; known[stage] = 1 }
        /^%files from / && !($3 in known && $3 != stage) { print "%files: no stage " $3; bad = 1 }
        /^[^%# ]/ && !/^(Bootstrap|From|Stage): [^ ]+$/ { print "no header: " $0; bad = 1 }
        END { done(); exit bad }' "$1"
}

@test "the stages of the image are whole, and a shell reads their scripts" {
    definition=$top/packaging/apptainer/d9d.def
    run -0 stages "$definition"
    assert_output $'build\nrun'
    for section in post test runscript environment; do
        awk -v "s=%$section" '/^%|^Bootstrap:/ { on = $1 == s; next } on' "$definition" >"$work/$section.sh"
        [ -s "$work/$section.sh" ]
        sh -n "$work/$section.sh"
    done
    [ -x "$work/d9d/share/d9d/reference/check" ]
    grep -qx ' */opt/d9d/share/d9d/reference/check' "$work/test.sh"
    sed 's/^%files from build/%files from built/' "$definition" >"$work/planted.def"
    run -1 stages "$work/planted.def"
    assert_line "%files: no stage built"
    sed '0,/^From:/{/^From:/d}' "$definition" >"$work/planted.def"
    run -1 stages "$work/planted.def"
    assert_line "build: no Bootstrap or From"
}

@test "what the image copies and runs is there" {
    run -0 awk '/^%post/ { yes = 1; next } /^%/ { yes = 0 } yes && /make|setup/' "$top/packaging/apptainer/d9d.def"
    assert_line --partial "tools/setup.sh build"
    # names of packages of the stage that runs: what the libraries of the build are, in Debian 12
    needs dpkg-query ldd
    [ "$(. /etc/os-release && echo "$VERSION_ID")" = 12 ] || skip "not Debian 12"
    for library in $(ldd "$work/d9d/lib/libd9d.so.0" | awk '$3 ~ /^\// { print $3 }'); do
        package=$({ dpkg-query -S "$library" || dpkg-query -S "/usr$library"; } 2>/dev/null | head -n 1 | cut -d: -f1)
        case $package in libc6 | "") continue ;; esac
        grep -qw -e "$package" "$top/packaging/apptainer/d9d.def" || fail "the image lacks $package, for $library"
    done
}
