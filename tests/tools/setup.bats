#!/usr/bin/env bats
# What make and tools/setup.sh find on a machine, and what they say to do.  Package managers, modules
# and the GPU are stand-ins in PATH; libraries hide behind PKG_CONFIG_LIBDIR.

load helper

top=$(cd "$BATS_TEST_DIRNAME/../.." && pwd)

setup() {
    cd "$BATS_TEST_TMPDIR" || return 1
    unset CONDA_PREFIX SPACK_ENV LMOD_CMD MODULES_CMD NO_INSTALL MAKEFLAGS MAKELEVEL MAKE_TERMOUT
    unset CC MPICC NVCC CFLAGS CPPFLAGS LDFLAGS LDLIBS
    export PKG_CONFIG_LIBDIR=$BATS_TEST_TMPDIR/pc LOG=$BATS_TEST_TMPDIR/log
    mkdir -p bin pc gone
    local dir
    for dir in $(pkg-config --variable pc_path pkg-config | tr : ' '); do
        ls "$dir"/*.pc >/dev/null 2>&1 && ln -sf "$dir"/*.pc pc
    done
    for name in sh env sed awk grep sort tr head tail cat find uname nproc uniq rm mv touch ld make pkg-config mpicc; do
        ln -s "$(command -v $name)" bin
    done
    : >log
    stand_in gcc "PATH='$PATH' exec gcc \"\$@\"" # which may be ccache's, that searches PATH
    stand_in id 'echo 1000'
}

stand_in() { printf '#!/bin/sh\n%s\n' "$2" >"bin/$1" && chmod +x "bin/$1"; }
hide() { for name in "$@"; do mv "pc/$name.pc" gone; done; }
# One that logs its calls, and brings back what is hidden when it installs.
manager() { stand_in "$1" "echo \"$1 \$*\" >>\"\$LOG\"; case \" \$* \" in *' install '*) mv gone/* pc ;; esac"; }
setup_sh() { CC=${CC:-gcc} PATH=$BATS_TEST_TMPDIR/bin "$top/tools/setup.sh" "$@"; }

@test "nothing is missing, nothing is said" {
    run -0 setup_sh build
    assert_output ""
}

@test "without root nobody is asked for root: the line is for administrators" {
    hide jansson lmdb
    manager apt-get
    run -2 setup_sh build
    assert_line "setup: missing: jansson lmdb"
    assert_line "setup: only administrators can run: apt-get install --no-install-recommends libjansson-dev liblmdb-dev"
    refute_output --partial sudo
    assert_equal "$(cat log)" ""
}

@test "each manager has its own names" {
    hide jansson libxxhash
    manager dnf
    run -2 setup_sh build
    assert_output --partial "dnf install jansson-devel xxhash-devel"
    rm bin/dnf
    manager zypper
    run -2 setup_sh build
    assert_output --partial "zypper install libjansson-devel xxhash-devel"
    manager conda
    run -2 setup_sh build
    assert_output --partial "setup: run: conda install -c conda-forge jansson xxhash"
    SPACK_ENV=/e run -2 setup_sh build
    assert_output --partial "setup: run: spack install --add jansson xxhash"
    rm bin/conda
    manager spack
    run -2 setup_sh build
    assert_output --partial "setup: run: spack install jansson xxhash && spack load jansson xxhash"
    assert_equal "$(cat log)" ""
}

@test "an active conda environment comes before root's manager, which then installs nothing" {
    hide jansson
    stand_in id 'echo 0'
    manager apt-get
    CONDA_PREFIX=/c run -2 setup_sh build
    assert_output --partial "setup: run: conda install -c conda-forge jansson"
    assert_equal "$(cat log)" ""
}

@test "modules of the site are named as module avail has them, the newest" {
    hide jansson libpcre2-8
    stand_in lmod 'printf "/apps/modules:\nJansson/2.13\nJansson/2.14 (D)\nPCRE/8.45\n" >&2'
    LMOD_CMD=$PWD/bin/lmod run -2 setup_sh build
    assert_line "setup: this site has: module load Jansson/2.14"
    refute_output --partial "PCRE/"
}

@test "without any of them the shortest list is all" {
    hide jansson
    run -2 setup_sh build
    assert_line "setup: missing: jansson"
    assert_output --partial "PKG_CONFIG_PATH"
}

@test "root installs, the optional parts too; NO_INSTALL=1 only says" {
    hide jansson cairo
    stand_in id 'echo 0'
    manager apt-get
    NO_INSTALL=1 run -2 setup_sh build
    assert_output --partial "setup: run: apt-get install --no-install-recommends libjansson-dev"
    assert_equal "$(cat log)" ""
    run -0 setup_sh build
    run cat log
    assert_line "apt-get update -qq"
    assert_line "apt-get install -y --no-install-recommends libcairo2-dev libjansson-dev"
}

@test "an installation that brings nothing is an error" {
    hide jansson
    stand_in id 'echo 0'
    stand_in dnf :
    run -1 setup_sh build
    assert_line "setup: still missing after the installation: jansson"
}

@test "cairo, PMIx and MPI may be missing: make config says what each costs" {
    hide cairo pmix
    MPICC=nowhere run -0 setup_sh build
    assert_output "setup: built without cairo nowhere pmix; make config says what is lost"
    MPICC=nowhere NVCC='' run -0 setup_sh config
    assert_line --regexp '^cairo +none: images are SVG'
    assert_line --regexp '^pmix +none: a job is one task'
    assert_line --regexp '^nowhere +none: meshes of several ranks need GPUs'
    assert_line --regexp '^nvcc +none: no CUDA'
    assert_line --regexp '^jansson +[0-9.]+, /'
    assert_line --regexp '^for make build nothing is missing'
}

@test "a compiler that is too old is named" {
    stand_in oldcc 'echo "__clang_major__ 10"'
    CC=$PWD/bin/oldcc run -2 setup_sh build
    assert_output --partial "the compiler must be gcc 11, clang 14 or newer, and run: CC=$PWD/bin/oldcc"
    stand_in newcc 'echo "14 4"'
    CC=$PWD/bin/newcc run -0 setup_sh build
}

@test "a linker of another name counts if the compiler knows it, as conda's does" {
    rm bin/ld
    stand_in x86_64-conda-linux-gnu-ld 'echo GNU ld'
    stand_in condacc "[ \"\$*\" = -print-prog-name=ld ] && echo $PWD/bin/x86_64-conda-linux-gnu-ld || PATH='$PATH' exec gcc \"\$@\""
    CC=$PWD/bin/condacc run -0 setup_sh build
    rm bin/x86_64-conda-linux-gnu-ld
    CC=$PWD/bin/condacc run -2 setup_sh build
    assert_line "setup: missing: ld"
}

@test "the demo builds for the GPU that is there" {
    run -0 setup_sh gpu
    assert_output NVCC=
    for row in "9.0|CUDA_ARCH=90a" "8.9|CUDA_ARCH=80" "12.0|CUDA_ARCH=80" "7.0|NVCC=" '9.0\n8.0\n9.0|CUDA_ARCH=80 90a'; do
        stand_in nvidia-smi "printf '${row%|*}\n'"
        run -0 setup_sh gpu
        assert_output "${row#*|}"
    done
    stand_in nvidia-smi 'exit 9'
    run -0 setup_sh gpu
    assert_output NVCC=
}

@test "NCCL and cuDNN are found where their variables say" {
    mkdir -p nccl/include
    printf '#define NCCL_MAJOR 2\n#define NCCL_MINOR 28\n#define NCCL_PATCH 9\n' >nccl/include/nccl.h
    stand_in nvcc 'echo "Cuda compilation tools, release 12.4, V12.4.131"'
    NVCC=$PWD/bin/nvcc CUDA_CPP="-isystem $PWD/nccl/include -nostdinc" run -0 setup_sh config
    assert_line --regexp "^nvcc +12.4, V12.4.131, $PWD/bin/nvcc"
    assert_line --regexp "^NCCL +2.28.9, $PWD/nccl/include/nccl.h"
    assert_line --regexp '^cuDNN +none: .*CUDNN_HOME'
}

@test "flags of the command line add to those that the build needs" {
    hide cairo
    NO_INSTALL=1 run -0 make -s -C "$top" NVCC= B="$PWD/b" CFLAGS=-O1 CPPFLAGS=-DX LDFLAGS=-L/x LDLIBS=-ly "$PWD/b/flags"
    for word in -std=c11 '-O2 -g -O1' '-DX' '-fopenmp -L/x' '-lpthread  -ly'; do
        grep -qF -e "$word" b/flags || fail "no $word in: $(cat b/flags)"
    done
    run -1 grep -e D9D_CAIRO -e -lcairo b/flags
}

@test "pmix.h is found where packages of Debian 11 have it" {
    hide pmix
    mkdir -p pmix/lib/pmix2/include
    printf 'Name: pmix\nDescription: -\nVersion: 4\nlibdir=%s\nCflags: -I/elsewhere\n' "$PWD/pmix/lib" >pc/pmix.pc
    NO_INSTALL=1 run -0 make -s -C "$top" NVCC= B="$PWD/b" "$PWD/b/flags"
    grep -qF -e "-isystem /elsewhere -isystem $PWD/pmix/lib/pmix2/include " b/flags
    # in the tree of an older system
    printf 'Name: pmix\nDescription: -\nVersion: 4\nlibdir=/pmix/lib\nCflags: -I/elsewhere\n' >pc/pmix.pc
    PKG_CONFIG_SYSROOT_DIR=$PWD NO_INSTALL=1 run -0 make -s -C "$top" NVCC= B="$PWD/c" "$PWD/c/flags"
    grep -qF -e "-isystem $PWD/pmix/lib/pmix2/include " c/flags
}

@test "gcc 11 is told of what it takes wrongly for a slip, others are not" {
    for row in "11 yes" "11.4.0 yes" "12 no" "14.0.6 no"; do
        stand_in somecc "[ \"\$*\" = -dumpversion ] && echo ${row% *} || PATH='$PATH' exec gcc \"\$@\""
        NO_INSTALL=1 run -0 make -s -C "$top" NVCC= CC="$PWD/bin/somecc" B="$PWD/b" "$PWD/b/flags"
        found=no
        ! grep -q -e -Wno-missing-field-initializers b/flags || found=yes
        assert_equal "${row% *} $found" "$row"
    done
}

@test "on a terminal each step of a build has its number" {
    MAKE_TERMOUT="tty" run -0 make -n -C "$top" NVCC= B="$PWD/b" "$PWD/b/libcore/base/version.o"
    assert_output --partial "printf '[%3d/%s] %-5s %s\n' 1 1 CC"
}
