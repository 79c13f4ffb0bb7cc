#!/bin/bash
# certificates.sh BIN [FAMILY...] - certifies every family of docs/reference/families.md, or those given, and
# heads of tasks, on four ranks: a certificate a line (d9d.certificate.v1), with the vectors of
# tests/golden where there are some.  `make certificates` keeps them in docs/reference.
#
# D9D_MPIRUN: how to start ranks; D9D_RANKS: how many.
set -euo pipefail
bin=$1
shift
root=$(cd "$(dirname "$0")/.." && pwd)
read -ra launch <<<"${D9D_MPIRUN:-mpirun --oversubscribe -n ${D9D_RANKS:-4}}"
export OMP_NUM_THREADS=1 OMP_WAIT_POLICY=passive

# The folder of vectors of a family.
golden() {
    case $1 in
    qwen3_dense) echo families/qwen3 ;;
    modernbert) echo masked_lm/modernbert ;;
    *) echo "families/$1" ;;
    esac
}

certify() { # FAMILY [OPTION]...
    (cd "$root" && "${launch[@]}" "$bin/d9d-map" certify --json "${@:2}" "$1") | tr -s ' \n' ' ' | sed 's/ $//'
    echo
}

if [ $# -eq 0 ]; then
    # shellcheck disable=SC2046 # words
    set -- $(sed -n 's/^| \[`\([a-z0-9_]*\)`\](#.*/\1/p' "$root/docs/reference/families.md")
fi
for f; do
    vectors=tests/golden/$(golden "$f") options=()
    [ ! -e "$root/$vectors" ] || options=(--golden "$vectors")
    certify "$f" ${options[@]+"${options[@]}"}
    case $f in
    llama | qwen3_moe | modernbert)
        certify "$f" --task classification
        options=()
        [ "$f" != modernbert ] || options=(--golden tests/golden/encoders/modernbert)
        certify "$f" --task embedding ${options[@]+"${options[@]}"}
        ;;
    esac
done
