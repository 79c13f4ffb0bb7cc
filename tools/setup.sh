#!/bin/sh
# setup.sh build|test|lint|long|site - see to the Debian or Ubuntu packages that a target needs.
# setup.sh config               - print what was found on this machine.
#
# What is there is found by asking for the thing itself, so a library that was built by
# hand and is known to pkg-config counts.  What is missing is printed and installed with
# apt-get, as root or through sudo; NO_INSTALL=1 only names it and exits with status 2.
set -u
what=${1:?"usage: setup.sh build|test|lint|long|site|config"}
: "${CC:=cc}" "${MPICC=mpicc}"
PATH=$PATH:/usr/sbin:/sbin
export PATH

# how:thing                                            Debian and Ubuntu package
needs_build() {
    cat <<'TABLE'
cmd:gcc                                                gcc
cmd:ld                                                 binutils
cmd:make                                               make
cmd:pkg-config                                         pkg-config
header:stdlib.h                                        libc6-dev
lib:jansson                                            libjansson-dev
lib:libpcre2-8                                         libpcre2-dev
lib:libutf8proc                                        libutf8proc-dev
lib:libzstd                                            libzstd-dev
lib:zlib                                               zlib1g-dev
lib:libxxhash                                          libxxhash-dev
lib:lmdb                                               liblmdb-dev
lib:cairo                                              libcairo2-dev
lib:pmix                                               libpmix-dev
font:sans                                              fonts-dejavu-core
TABLE
    [ -z "$MPICC" ] || echo "cmd:$MPICC libopenmpi-dev"
    case $CC in *clang*) echo "cmd:$CC clang"; echo "omp:$CC libomp-dev" ;; esac
}

needs_test() {
    needs_build
    cat <<'TABLE'
cmd:g++                                                g++
lib:cmocka                                             libcmocka-dev
cmd:bats                                               bats
file:/usr/lib/bats/bats-assert/load.bash               bats-assert
file:/usr/lib/bats/bats-support/load.bash              bats-support
cmd:slurmctld                                          slurmctld
cmd:slurmd                                             slurmd
cmd:sbatch                                             slurm-client
glob:/usr/lib/*/slurm-wlm/mpi_pmix.so                  slurm-wlm-basic-plugins
cmd:munged                                             munge
glob:/usr/lib/*/pmix2/lib/libpmix.so                   libpmix-dev
cmd:mpirun                                             openmpi-bin
cmd:strace                                             strace
cmd:mandoc                                             mandoc
cmd:git                                                git
cmd:zstd                                               zstd
cmd:gzip                                               gzip
cmd:ps                                                 procps
cmd:ip                                                 iproute2
TABLE
}

needs_lint() {
    needs_test
    cat <<'TABLE'
cmd:clang                                              clang
cmd:clang-tidy                                         clang-tidy
cmd:clang-format-14                                    clang-format-14
omp:clang                                              libomp-dev
cmd:shellcheck                                         shellcheck
TABLE
}

needs_site() {
    echo "cmd:doxygen doxygen"
}

needs_long() {
    needs_lint
    echo "cmd:valgrind valgrind"
}

# Does the machine have it?
have() {
    kind=${1%%:*} thing=${1#*:}
    case $kind in
    cmd) command -v "$thing" >/dev/null 2>&1 ;;
    lib) pkg-config --exists "$thing" 2>/dev/null ;;
    file) [ -e "$thing" ] ;;
    glob) any_of "$thing" ;;
    header) echo "#include <$thing>" | gcc -E -x c - >/dev/null 2>&1 ;;
    omp) echo '#include <omp.h>' | "$thing" -fopenmp -E -x c - >/dev/null 2>&1 ;;
    font) [ -n "$(find /usr/share/fonts ~/.fonts -name '*.ttf' -o -name '*.otf' 2>/dev/null | head -n 1)" ] ;;
    esac
}

# shellcheck disable=SC2086 # the pattern is to be expanded
any_of() { set -- $1 && [ -e "$1" ]; }

missing() {
    "needs_$what" | while read -r probe package; do
        have "$probe" || echo "$package"
    done | sort -u | tr '\n' ' '
}

apt() {
    if [ "$(id -u)" -eq 0 ]; then
        DEBIAN_FRONTEND=noninteractive apt-get "$@"
    else
        sudo DEBIAN_FRONTEND=noninteractive apt-get "$@"
    fi
}

# Slurm and munge come with services; a machine that only tests must not start them.
install() {
    apt update -qq || echo "setup: apt-get update failed; trying with the lists at hand" >&2
    [ -d /run/systemd/system ] || export RUNLEVEL=1
    # shellcheck disable=SC2086
    apt install -y --no-install-recommends $1 || {
        echo "setup: apt-get could not install: $1" >&2
        exit 1
    }
}

see_to() {
    list=$(missing)
    [ -n "$list" ] || return 0
    echo "setup: missing packages: $list" >&2
    if [ -n "${NO_INSTALL:-}" ] || ! command -v apt-get >/dev/null 2>&1; then
        echo "setup: install them, for example: sudo apt-get install --no-install-recommends $list" >&2
        exit 2
    fi
    if [ "$(id -u)" -ne 0 ] && ! command -v sudo >/dev/null 2>&1; then
        echo "setup: installing needs root, and there is no sudo; as root: apt-get install --no-install-recommends $list" >&2
        exit 2
    fi
    install "$list"
    list=$(missing)
    [ -z "$list" ] || {
        echo "setup: still missing after the installation: $list" >&2
        exit 1
    }
}

show() { printf '%-14s %s\n' "$1" "${2:-none}"; }
first_line() { command -v "$1" >/dev/null 2>&1 && "$@" 2>&1 | head -n 1; }

config() {
    # shellcheck disable=SC1091
    show system "$(. /etc/os-release 2>/dev/null && echo "$PRETTY_NAME"), $(uname -m), $(nproc) CPUs"
    show CC "$CC: $(first_line "$CC" --version)"
    for tool in gcc clang make bats; do
        show $tool "$(first_line $tool --version)"
    done
    for lib in ${PKGS:-jansson}; do
        show "$lib" "$(pkg-config --modversion "$lib" 2>/dev/null)"
    done
    show cmocka "$(pkg-config --modversion cmocka 2>/dev/null)"
    show nvcc "${NVCC:+$NVCC: $("$NVCC" --version | sed -n 's/.*release //p')}"
    show MPI "$(first_line mpirun --version)"
    show PMIx "$(pkg-config --modversion pmix 2>/dev/null)"
    show Slurm "$(first_line slurmctld -V)"
    what='test'
    list=$(missing)
    show missing "${list:-nothing}"
}

case $what in
build | test | lint | long | site) see_to ;;
config) config ;;
*)
    echo "setup.sh: unknown target \"$what\"; one of build, test, lint, long, site, config" >&2
    exit 2
    ;;
esac
