#!/bin/bash
# schemas/*.json and docs/reference/{config-*,families}.md are what the tables of the code say, messages.md beside
# them what its failures say (`make schemas` writes all), and every schema that a tool prints is there.
. "$(dirname "$0")/meta.bash"

check() {
    local build=$1/build tool printed page message
    [ "$1" = "$meta_root" ] && build=$meta_build
    cd "$1" || return 1
    [ ! -e libcore/LAYERS ] || diff <("$meta_root/tools/list_errors.sh") docs/reference/messages.md 2>&1 | head -n 20
    # what errors.md explains is there; ... stands for what a diagnosis puts together
    awk -F ' *[|] *' '/^\| .*(…| N )/ && !/^\| \.\.\./ { print $2 }' docs/reference/errors.md 2>/dev/null |
        while read -r message; do
            grep -qF -e "$message" docs/reference/messages.md || echo "docs/reference/errors.md: no tool says: $message"
        done
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
    for page in docs/reference/config-*.md docs/reference/families.md "$tmp"/pages/*; do
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
failing() { # DIR: a program that says two things, and the page of them
    mkdir -p "$1"/{kernels,tools,docs/reference} && echo 'base # status' | put "$1/libcore/LAYERS"
    echo '    X(EIO, -4, 1, "input/output error")' | put "$1/libcore/include/d9d/base/status.h"
    put "$1/libcore/base/a.c" <<'C'
    if (n < 2) /* D9D_FAIL(D9D_EIO, "is a comment") */
        return D9D_FAIL(D9D_EIO, "%s: \"x\", it has %" PRIu64 " of "
                        "%d", path, f(a, ")"), 2);
    d9d_log_warn(log, n > 1 ? "%s: several" : "%s: one", path);
C
    (cd "$1" && "$meta_root/tools/list_errors.sh" >docs/reference/messages.md)
}
plant_message_changed() { failing "$1" && sed -i 's/it has/they have/' "$1/libcore/base/a.c"; }
plant_message_moved() { failing "$1" && mv "$1/libcore/base/a.c" "$1/libcore/base/b.c"; }
plant_exit_code() { failing "$1" && sed -i 's/-4, 1/-4, 2/' "$1/libcore/include/d9d/base/status.h"; }
plant_messages_missing() { failing "$1" && rm "$1/docs/reference/messages.md"; }
plant_explained() { failing "$1" && echo '| …: "x", it had N of N | Change x. |' >"$1/docs/reference/errors.md"; }
allow_explained() { failing "$1" && echo '| …: "x", it has N | Change x. |' >"$1/docs/reference/errors.md"; }
allow_messages() {
    failing "$1" && cat >>"$1/libcore/base/a.c" <<'C'
    return D9D_FAIL(st, "%s: %s", path, d9d_err_message());
C
    # as they are to be read, and nothing else
    diff - <(grep '^| .* a.c' "$1/docs/reference/messages.md") >&2 <<'TEXT'
| …: "x", it has N of N | 1, input/output error | a.c |
| …: one | warning | a.c |
| …: several | warning | a.c |
TEXT
}
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
