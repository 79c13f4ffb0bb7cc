#!/usr/bin/env bats
# A share of the families on their meshes (family_meshes.bash).

load family_meshes

setup_file() { workroom; }

@test "families of share 3 of 6 equal one rank on every mesh" {
    share 3 6
}
