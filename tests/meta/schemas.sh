#!/bin/bash
# schemas/*.json and docs/reference/config-*.md are what the key tables of the code say (`make schemas`
# writes them), and every schema that a tool prints is among them.
. "$(dirname "$0")/meta.bash"

check() {
    local build=$1/build tool printed page
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
    diff -r -x '*.[ch]' "$tmp" schemas | head -n 20
    mkdir "$tmp/pages"
    "$build/schemas/dump" --pages "$tmp/pages" || echo "schemas/dump --pages: exit status $?"
    for page in docs/reference/config-*.md "$tmp"/pages/*; do
        [ ! -e "$page" ] || diff "$tmp/pages/${page##*/}" "docs/reference/${page##*/}" 2>&1 | head -n 20
    done
    grep -l -- 'print-schema' tools/d9d-*.c 2>/dev/null | while read -r tool; do
        tool=$(basename "$tool" .c)
        printed=$("$build/bin/$tool" --print-schema </dev/null) || echo "$tool --print-schema: exit status $?"
        grep -qxF -- "$(md5sum <<<"$printed")" <(for f in schemas/*.json; do md5sum <"$f"; done) ||
            echo "$tool --print-schema: prints none of schemas/*.json"
    done
    rm -rf "$tmp"
}

tree() { # DIR: the code says {"a": 1}, and of it "a, 1"
    put "$1/schemas/dump.c" </dev/null
    mkdir -p "$1/build/schemas" "$1/build/bin" "$1/tools"
    printf '#!/bin/sh\n[ $1 != --pages ] || exec sh -c "echo a, 1 >$2/config-x.md"\necho "{\\"a\\": 1}" >$1/x.json\n' \
        >"$1/build/schemas/dump"
    printf '#!/bin/sh\necho "{\\"a\\": 1}"\n' >"$1/build/bin/d9d-x"
    chmod +x "$1/build/schemas/dump" "$1/build/bin/d9d-x"
    echo '"--print-schema"' >"$1/tools/d9d-x.c"
}
in_step() { tree "$1" && echo '{"a": 1}' >"$1/schemas/x.json" && echo 'a, 1' | put "$1/docs/reference/config-x.md"; }
plant_differs() { in_step "$1" && echo '{"a": 2}' >"$1/schemas/x.json"; }
plant_missing() { in_step "$1" && rm "$1/schemas/x.json"; }
plant_stale() { in_step "$1" && cp "$1/schemas/x.json" "$1/schemas/old.json"; }
plant_tool_differs() { in_step "$1" && printf '#!/bin/sh\necho "{}"\n' >"$1/build/bin/d9d-x"; }
plant_by_hand() { echo '{}' | put "$1/schemas/x.json"; }
plant_page_differs() { in_step "$1" && echo 'a, 2' >"$1/docs/reference/config-x.md"; }
plant_page_missing() { in_step "$1" && rm "$1/docs/reference/config-x.md"; }
plant_page_stale() { in_step "$1" && echo 'b, 1' >"$1/docs/reference/config-y.md"; }
allow_in_step() { in_step "$1"; }
meta_run
