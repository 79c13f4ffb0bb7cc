#!/usr/bin/env bats
# shellcheck disable=SC2154 # variables of bats
# The memory that d9d-train --plan says is what every rank measures, on many meshes.
#
# Where tokens choose experts ranks differ a little; all else is to the byte.

load ../slurm/helper

load topology

dense_meshes="1 1 1 1 1 1,2 1 1 1 1 1,1 2 1 1 1 1,1 1 1 1 2 1,1 1 2 1 1 1,1 1 1 2 1 1,2 2 1 1 1 1,1 2 1 1 2 1,1 1 1 1 8 1"
moe_meshes="1 1 1 1 1 1,1 2 1 1 1 1,1 2 1 1 1 2,2 2 1 1 1 2,1 2 1 1 2 4,1 1 2 1 1 2"

# holds MODEL MESH MORE-BY [KEY=VALUE...]: no rank takes more than the plan by that many percent, and
# the largest not less.
holds() {
    local model=$1 more=$3 i ranks=1 keys=() plan
    read -ra mesh <<<"$2"
    shift 3
    for i in "${!axes[@]}"; do
        keys+=("mesh.${axes[i]}=${mesh[i]}")
        [ "$i" -eq 5 ] || ranks=$((ranks * mesh[i]))
    done
    keys+=("$@")
    plan=$(d9d-train --plan --gpu cpu --json "${keys[@]/#/--set=}" "$model.json" |
        sed -n 's/^ *"peak": \([0-9]*\),$/\1/p')
    rm -rf measured
    mpi -n $ranks "$D9D_BUILD/tests/dist/plan_driver" "$model.json" "${keys[@]}" trainer.run.dir=measured >peaks
    awk -v plan="$plan" -v more="$more" -v ranks=$ranks -v what="$model ${mesh[*]} $*" '
        { n++; if ($2 > most) most = $2 }
        END { off = (plan / most - 1) * 100
              printf "%-60s plan %8d, measured %8d: %+.2f %%\n", what, plan, most, off
              exit !(n == ranks && off <= more && -off <= more) }' peaks
}

# each MODEL LIST MORE-BY [KEY=VALUE...]
each() {
    local model=$1 list=$2 more=$3 mesh bad=0
    shift 3
    while read -r mesh; do holds "$model" "$mesh" "$more" "$@" || bad=$((bad + 1)); done < <(tr , '\n' <<<"$list")
    [ "$bad" -eq 0 ]
}

@test "a dense model, to the byte" { each dense "$dense_meshes" 0; }
@test "a dense model with layers computed again, to the byte" {
    holds dense "1 2 1 1 1 1" 0 model_provider.checkpointing=full
    holds dense "1 2 1 1 2 1" 0 model_provider.checkpointing=selective
    holds dense "2 2 1 1 1 1" 0 trainer.gradient_manager.reduce=step
    holds dense "2 1 1 1 1 1" 0 model_provider.dtype=bfloat16
}
@test "a mixture of experts, within 5 percent" {
    each moe "$moe_meshes" 5
    holds moe "2 2 1 1 1 4" 5 model_provider.checkpointing=full
}
