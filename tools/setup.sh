#!/bin/sh
# setup.sh build|test|lint|long|site   see to what a target needs
# setup.sh config                      print what was found, and what is lost without the rest
# setup.sh gpu                         print the arguments of make for this machine's GPU alone
#
# What is there is found by asking for the thing itself, so a library that was built by hand and is
# known to pkg-config counts.  What is missing is installed as root by apt-get, dnf or zypper.  Without
# root, or with NO_INSTALL=1, nothing is installed and nobody is asked to become root: one line each says what
# modules, conda, Spack or the administrators bring, and the exit status is 2.
set -u
usage="usage: setup.sh build|test|lint|long|site|config|gpu"
what=${1:?"$usage"}
: "${CC:=cc}" "${MPICC=mpicc}" "${NVCC:=}" "${CUDA_CPP:=}"
PATH=$PATH:/usr/sbin:/sbin
export PATH

# One thing a row, one manager a column; "-": that manager has none.  `part` is what the build goes on
# without, for the price in the last column.
things() {
    cat <<TABLE
#     probe               module    apt                dnf                zypper           conda             spack     without it
build cc:CC               gcc       gcc                gcc                gcc              gcc               gcc
build prog:ld             binutils  binutils           binutils           binutils         binutils          binutils
build cmd:make            -         make               make               make             make              gmake
build cmd:pkg-config      pkgconf   pkg-config         pkgconf-pkg-config pkg-config       pkg-config        pkgconf
build header:stdlib.h     -         libc6-dev          glibc-devel        glibc-devel      sysroot_linux-64  -
build lib:jansson         jansson   libjansson-dev     jansson-devel      libjansson-devel jansson           jansson
build lib:libpcre2-8      pcre2     libpcre2-dev       pcre2-devel        pcre2-devel      pcre2             pcre2
build lib:libutf8proc     utf8proc  libutf8proc-dev    utf8proc-devel     utf8proc-devel   libutf8proc       utf8proc
build lib:libzstd         zstd      libzstd-dev        libzstd-devel      libzstd-devel    zstd              zstd
build lib:zlib            zlib      zlib1g-dev         zlib-devel         zlib-devel       zlib              zlib
build lib:libxxhash       xxhash    libxxhash-dev      xxhash-devel       xxhash-devel     xxhash            xxhash
build lib:lmdb            lmdb      liblmdb-dev        lmdb-devel         lmdb-devel       lmdb              lmdb
part  lib:cairo           cairo     libcairo2-dev      cairo-devel        cairo-devel      cairo             cairo     images are SVG, not PNG or PDF
part  lib:pmix            pmix      libpmix-dev        pmix-devel         pmix-devel       libpmix-devel     pmix      a job is one task: srun and mpirun cannot start several
part  font:font           -         fonts-dejavu-core  dejavu-sans-fonts  dejavu-fonts     font-ttf-dejavu-sans-mono - PNG and PDF have no text
TABLE
    [ -z "$MPICC" ] || cat <<TABLE
part  cmd:$MPICC          openmpi   libopenmpi-dev     openmpi-devel      openmpi4-devel   openmpi           openmpi   meshes of several ranks need GPUs
TABLE
    case $CC in *clang*) cat <<TABLE
build omp:CC              -         libomp-dev         libomp-devel       libomp-devel     llvm-openmp       llvm+clang
TABLE
    esac
    cat <<'TABLE'
test  cmd:g++             gcc       g++                gcc-c++            gcc-c++          gxx               gcc
test  lib:cmocka          cmocka    libcmocka-dev      libcmocka-devel    libcmocka-devel  cmocka            cmocka
test  cmd:bats            bats      bats               bats               bats             bats-core         bats
test  file:/usr/lib/bats/bats-assert/load.bash - bats-assert - - - -
test  file:/usr/lib/bats/bats-support/load.bash - bats-support - - - -
test  cmd:slurmctld       slurm     slurmctld          slurm-slurmctld    slurm            -                 slurm
test  cmd:slurmd          slurm     slurmd             slurm-slurmd       slurm-node       -                 slurm
test  cmd:sbatch          slurm     slurm-client       slurm              slurm            -                 slurm
test  glob:/usr/lib/*/slurm-wlm/mpi_pmix.so - slurm-wlm-basic-plugins - - - -
test  cmd:munged          munge     munge              munge              munge            -                 munge
test  glob:/usr/lib/*/pmix2/lib/libpmix.so - libpmix-dev - - - -
test  cmd:mpirun          openmpi   openmpi-bin        openmpi            openmpi4         openmpi           openmpi
test  cmd:strace          -         strace             strace             strace           strace            strace
test  cmd:mandoc          -         mandoc             mandoc             mandoc           mandoc            mandoc
test  cmd:git             git       git                git                git              git               git
test  cmd:jq            -         jq                 jq                 jq               jq                jq
test  cmd:zstd            zstd      zstd               zstd               zstd             zstd              zstd
test  cmd:gzip            -         gzip               gzip               gzip             gzip              gzip
test  cmd:ps              -         procps             procps-ng          procps           procps-ng         procps
test  cmd:ip              -         iproute2           iproute            iproute2         iproute2          iproute2
lint  cmd:clang           llvm      clang              clang              clang            clang             llvm
lint  cmd:clang-tidy      llvm      clang-tidy         clang-tools-extra  clang-tools      clang-tools       llvm
lint  cmd:clang-format-14 llvm      clang-format-14    -                  -                clang-format-14   -
lint  omp:clang           -         libomp-dev         libomp-devel       libomp-devel     llvm-openmp       -
lint  cmd:shellcheck      -         shellcheck         ShellCheck         ShellCheck       shellcheck        -
site  cmd:doxygen         doxygen   doxygen            doxygen            doxygen          doxygen           doxygen
long  cmd:valgrind        valgrind  valgrind           valgrind           valgrind         valgrind          valgrind
long  cmd:zsh             -         zsh                zsh                zsh              zsh               zsh
long  cmd:tclsh           tcl       tcl                tcl                tcl              tk                tcl
long  cmd:dpkg-buildpackage -       dpkg-dev           dpkg-dev           -                -                 -
long  cmd:dh              -         debhelper          debhelper          -                -                 -
long  cmd:lintian         -         lintian            -                  -                -                 -
long  cmd:rpmbuild        -         rpm                rpm-build          rpm-build        -                 -
long  cmd:debootstrap     -         debootstrap        debootstrap        debootstrap      -                 -
long  glob:/usr/share/lmod/*/libexec/lmod lmod lmod    Lmod               lua-lmod         -                 lmod
TABLE
}

# Rows of the table that a target needs.
kinds_of() {
    case $1 in
    build) echo build ;;
    test) echo build part test ;;
    lint) echo build part test lint ;;
    long) echo build part test lint long ;;
    site) echo site ;;
    esac
}

# Does the machine have it?
have() {
    sort=${1%%:*} thing=${1#*:}
    [ "$thing" != CC ] || thing=$CC
    case $sort in
    cc) compiler_is_new "$thing" ;;
    cmd) command -v "$thing" >/dev/null 2>&1 ;;
    prog) prog_of "$thing" >/dev/null ;;
    lib) pkg-config --exists "$thing" 2>/dev/null ;;
    file) [ -e "$thing" ] ;;
    glob) any_of "$thing" ;;
    header) echo "#include <$thing>" | $CC -E -x c - >/dev/null 2>&1 ;;
    omp) echo '#include <omp.h>' | $thing -fopenmp -E -x c - >/dev/null 2>&1 ;;
    font) [ -n "$(a_font)" ] ;;
    esac
}

# A program that the compiler calls; that of conda has one of another name.
prog_of() { command -v "$1" 2>/dev/null || command -v "$($CC -print-prog-name="$1" 2>/dev/null)" 2>/dev/null; }

# shellcheck disable=SC2086 # the pattern is to be expanded
any_of() { set -- $1 && [ -e "$1" ]; }

a_font() { find /usr/share/fonts ~/.fonts ~/.local/share/fonts ${CONDA_PREFIX:+"$CONDA_PREFIX/fonts"} \
    \( -name '*.ttf' -o -name '*.otf' \) 2>/dev/null | head -n 1; }

# gcc 11 or clang 14, and newer.
compiler_is_new() {
    version=$(echo '__clang_major__ __GNUC__' | $1 -E -P -x c - 2>/dev/null) || return 1
    case $version in
    __clang_major__*) [ "${version##* }" -ge 11 ] 2>/dev/null ;;
    *) [ "${version%% *}" -ge 14 ] 2>/dev/null ;;
    esac
}

# missing KIND...: rows of the table that this machine lacks.
missing() {
    things | while read -r kind probe rest; do
        case " $* " in *" $kind "*) have "$probe" || echo "$kind $probe $rest" ;; esac
    done
}

# ---- What brings it -------------------------------------------------------------------------

# The package manager: an environment that is active, then root's, then those that need no root.
manager() {
    [ -z "${CONDA_PREFIX:-}" ] || { echo conda && return; }
    [ -z "${SPACK_ENV:-}" ] || { echo spack && return; }
    [ -z "$root" ] || { root_manager && return; }
    for tool in conda mamba micromamba spack; do
        command -v "$tool" >/dev/null 2>&1 || continue
        case $tool in spack) echo spack ;; *) echo conda ;; esac
        return
    done
    root_manager
}
root_manager() {
    for tool in apt-get dnf zypper; do
        command -v "$tool" >/dev/null 2>&1 && echo "${tool%-get}" && return
    done
    return 1
}

# names MANAGER: of rows on standard input what the manager calls them, in one line.
names() {
    while read -r kind probe module apt dnf zypper conda spack price; do
        case $1 in
        probe) case $probe in *:CC) echo "$CC" ;; *) echo "${probe#*:}" ;; esac ;;
        module) echo "$module" ;;
        apt) echo "$apt" ;;
        dnf) echo "$dnf" ;;
        zypper) echo "$zypper" ;;
        conda) echo "$conda" ;;
        spack) echo "$spack" ;;
        esac
    done | grep -vx -e - | sort -u | tr '\n' ' ' | sed 's/ $//'
}

# The newest modules of the site that have these names, whatever their case.
modules_of() {
    avail=$({ "${LMOD_CMD:-${MODULES_CMD:-false}}" bash -t avail; } 2>&1) || return 0
    for name in $1; do
        printf '%s\n' "$avail" | sed 's/(.*//; s/ *$//' | grep -ix -e "$name/[^ ]*" -e "$name" | tail -n 1
    done | tr '\n' ' ' | sed 's/ $//'
}

command_of() { # MANAGER PACKAGES
    case $1 in
    apt) echo "apt-get install --no-install-recommends $2" ;;
    dnf) echo "dnf install $2" ;;
    zypper) echo "zypper install $2" ;;
    conda) echo "conda install -c conda-forge $2" ;;
    spack) [ -n "${SPACK_ENV:-}" ] && echo "spack install --add $2" || echo "spack install $2 && spack load $2" ;;
    esac
}

# One line for each way to get the rows in $list.
advise() {
    modules=$(modules_of "$(printf '%s\n' "$list" | names module)")
    [ -z "$modules" ] || echo "setup: this site has: module load $modules" >&2
    by=$(manager) || by=
    packages=$([ -z "$by" ] || printf '%s\n' "$list" | names "$by")
    if [ -z "$packages" ]; then
        [ -n "$modules" ] || echo "setup: no modules, conda, Spack, apt-get, dnf or zypper here that has them; a build" \
            "by hand counts if it is in PATH, or its .pc file in PKG_CONFIG_PATH" >&2
        return
    fi
    case $by,$root in
    conda, | spack, | *,?*) echo "setup: run: $(command_of "$by" "$packages")" >&2 ;;
    *) echo "setup: only administrators can run: $(command_of "$by" "$packages")" >&2 ;;
    esac
}

# ---- Installing, as root ------------------------------------------------------------------------

# Slurm and munge come with services; a machine that only tests must not start them.
install() { # MANAGER PACKAGES
    [ -d /run/systemd/system ] || export RUNLEVEL=1
    export DEBIAN_FRONTEND=noninteractive
    # shellcheck disable=SC2086 # several packages
    case $1 in
    apt)
        apt-get update -qq || echo "setup: apt-get update failed; trying with the lists at hand" >&2
        apt-get install -y --no-install-recommends $2
        ;;
    dnf) dnf install -y $2 ;;
    zypper) zypper --non-interactive install $2 ;;
    *) false ;;
    esac || {
        echo "setup: $1 could not install: $2" >&2
        exit 1
    }
}

see_to() {
    # shellcheck disable=SC2046 # several kinds
    list=$(missing $(kinds_of "$what"))
    [ -n "$list" ] || { tell_parts && return; }
    echo "setup: missing: $(printf '%s\n' "$list" | names probe)" >&2
    case $list in *" cc:CC "*) echo "setup: the compiler must be gcc 11, clang 14 or newer, and run: CC=$CC" >&2 ;; esac
    by=$(manager) || by=
    case ${NO_INSTALL:-},$root,$by in
    ,yes,apt | ,yes,dnf | ,yes,zypper) ;;
    *) advise && exit 2 ;;
    esac
    [ "$what" != build ] || list="$list
$(missing part)"
    install "$by" "$(printf '%s\n' "$list" | names "$by")"
    # shellcheck disable=SC2046
    list=$(missing $(kinds_of "$what"))
    [ -z "$list" ] || {
        echo "setup: still missing after the installation: $(printf '%s\n' "$list" | names probe)" >&2
        exit 1
    }
}

# What a build goes on without.
tell_parts() {
    [ "$what" = build ] || return 0
    parts=$(missing part | names probe)
    [ -z "$parts" ] || echo "setup: built without $parts; make config says what is lost" >&2
}

# ---- What was found -----------------------------------------------------------------------------

show() { printf '%-14s %s\n' "$1" "$2"; }
first_line() { command -v "$1" >/dev/null 2>&1 && "$@" 2>&1 | head -n 1; }

# found PROBE: version and path of what is there.
found() {
    thing=${1#*:}
    case $1 in
    lib:*) echo "$(pkg-config --modversion "$thing"), $(pkg-config --variable=prefix "$thing")" ;;
    font:*) a_font ;;
    cc:*) echo "$($CC --version 2>&1 | head -n 1), $(command -v "${CC%% *}")" ;;
    cmd:"$MPICC") echo "$({ $MPICC --showme:version || $MPICC -v; } 2>/dev/null | head -n 1), $(command -v "$MPICC")" ;;
    prog:*) thing=$(prog_of "$thing") && echo "$(first_line "$thing" --version), $thing" ;;
    cmd:*) echo "$(first_line "$thing" --version), $(command -v "$thing")" ;;
    *) echo "found" ;;
    esac
}

# header NAME MACRO...: the version that the macros of a header make, and its path.
header() {
    name=$1
    shift
    # shellcheck disable=SC2086 # several flags
    echo "#include <$name>" | $CC $CUDA_CPP -E -dD -x c - 2>/dev/null | LC_ALL=C awk -v header="$name" -v macros="$*" '
        BEGIN { n = split(macros, m, " ") }
        $1 == "#define" { value[$2] = $3 }
        $1 == "#" && $3 ~ "/" header "\"$" && path == "" { path = $3; gsub(/"/, "", path) }
        END {
            if (path == "") exit
            for (i = 1; i <= n; i++) printf "%s%s", (i > 1 ? "." : ""), value[m[i]]
            print ", " path
        }'
}

config_cuda() {
    gpus=$(nvidia-smi --query-gpu=name,compute_cap --format=csv,noheader 2>/dev/null | sort | uniq -c | sed 's/^ *//')
    show GPU "${gpus:-none: training and inference on CPUs}"
    if [ -z "$NVCC" ]; then
        show nvcc "none: no CUDA kernels; CPUs alone (CUDA_HOME or NVCC says where it is)"
        return
    fi
    show nvcc "$("$NVCC" --version | sed -n 's/.*release //p'), $NVCC"
    nccl=$(header nccl.h NCCL_MAJOR NCCL_MINOR NCCL_PATCH)
    cudnn=$(header cudnn.h CUDNN_MAJOR CUDNN_MINOR CUDNN_PATCHLEVEL)
    show NCCL "${nccl:-none: one GPU a job (NCCL_HOME says where it is)}"
    show cuDNN "${cudnn:-none: attention by slower kernels (CUDNN_HOME says where it is)}"
}

# Where the linker of running programs finds a library.
library() {
    for dir in $(echo "${LD_LIBRARY_PATH:-}" | tr : ' '); do
        [ ! -e "$dir/$1" ] || { echo "$dir/$1" && return; }
    done
    { ldconfig -p || /sbin/ldconfig -p; } 2>/dev/null | sed -n "s|^[[:space:]]*$1 .*=> ||p" | head -n 1
}

config() {
    # shellcheck disable=SC1091
    show system "$(. /etc/os-release 2>/dev/null && echo "$PRETTY_NAME"), $(uname -m), $(nproc) CPUs"
    things | while read -r kind probe module apt dnf zypper conda spack price; do
        case $kind in build | part) ;; *) continue ;; esac
        if have "$probe"; then
            show "${probe#*:}" "$(found "$probe")"
        elif [ "$kind" = part ]; then
            show "${probe#*:}" "none: $price"
        else
            show "${probe#*:}" "MISSING: nothing can be built"
        fi
    done
    config_cuda
    duckdb=$(library libduckdb.so)
    show DuckDB "${duckdb:-none: Parquet is read from a pipe (libduckdb.so on the library path reads it)}"
    for target in build test; do
        # shellcheck disable=SC2046
        list=$(missing $(kinds_of $target))
        if [ -z "$list" ]; then
            show "for make $target" "nothing is missing"
        else
            show "for make $target" "$(printf '%s\n' "$list" | names probe)"
            advise 2>&1
        fi
    done
}

# GPUs of one major version share machine code; newer ones translate PTX.
gpu() {
    archs=$(nvidia-smi --query-gpu=compute_cap --format=csv,noheader 2>/dev/null | sort -u | while read -r cap; do
        case $cap in
        8.*) echo 80 ;;
        9.*) echo 90a ;;
        [1-9][0-9].*) echo 80 ;;
        esac
    done | sort -u | tr '\n' ' ')
    [ -z "$archs" ] && echo "NVCC=" || echo "CUDA_ARCH=${archs% }"
}

root=
[ "$(id -u)" -ne 0 ] || root=yes
case $what in
build | test | lint | long | site) see_to ;;
config) config ;;
gpu) gpu ;;
*)
    echo "setup.sh: unknown target \"$what\"; $usage" >&2
    exit 2
    ;;
esac
