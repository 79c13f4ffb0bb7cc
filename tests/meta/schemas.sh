#!/bin/bash
# schemas/*.json are what the key tables of the code say (`make schemas` writes them), every
# file is JSON, and every schema that a tool prints is among them.
. "$(dirname "$0")/meta.bash"

check() {
    local build=$1/build tool printed
    [ "$1" = "$meta_root" ] && build=$meta_build
    cd "$1" || return 1
    if [ ! -e schemas/dump.c ]; then
        find schemas -name '*.json' 2>/dev/null | sed 's/$/: no schemas\/dump.c that would write it/'
        grep -l -- '--print-schema' tools/d9d-*.c 2>/dev/null | sed 's/$/: prints a schema, but there is no schemas\/dump.c/'
        return 0
    fi
    tmp=$(mktemp -d)
    "$build/schemas/dump" "$tmp" || echo "schemas/dump: exit status $?"
    [ -n "$(ls "$tmp")" ] || echo "schemas/dump: wrote no schema"
    diff -r -x '*.[ch]' -x examples "$tmp" schemas | head -n 20
    grep -l -- 'print-schema' tools/d9d-*.c 2>/dev/null | while read -r tool; do
        tool=$(basename "$tool" .c)
        printed=$("$build/bin/$tool" --print-schema </dev/null) || echo "$tool --print-schema: exit status $?"
        grep -qxF -- "$(md5sum <<<"$printed")" <(for f in schemas/*.json; do md5sum <"$f"; done) ||
            echo "$tool --print-schema: prints none of schemas/*.json"
    done
    rm -rf "$tmp"
}

tree() { # DIR: the code says {"a": 1}
    put "$1/schemas/dump.c" </dev/null
    mkdir -p "$1/build/schemas" "$1/build/bin" "$1/tools"
    printf '#!/bin/sh\necho "{\\"a\\": 1}" >$1/x.json\n' >"$1/build/schemas/dump"
    printf '#!/bin/sh\necho "{\\"a\\": 1}"\n' >"$1/build/bin/d9d-x"
    chmod +x "$1/build/schemas/dump" "$1/build/bin/d9d-x"
    echo '"--print-schema"' >"$1/tools/d9d-x.c"
}
plant_differs() { tree "$1" && echo '{"a": 2}' >"$1/schemas/x.json"; }
plant_missing() { tree "$1"; }
plant_stale() { tree "$1" && echo '{"a": 1}' | tee "$1/schemas/x.json" >"$1/schemas/old.json"; }
plant_tool_differs() { tree "$1" && echo '{"a": 1}' >"$1/schemas/x.json" && printf '#!/bin/sh\necho "{}"\n' >"$1/build/bin/d9d-x"; }
plant_by_hand() { echo '{}' | put "$1/schemas/x.json"; }
allow_in_step() { tree "$1" && echo '{"a": 1}' >"$1/schemas/x.json"; }
meta_run
