#!/bin/bash
# jansson 2.13 is enough, as setup.sh and the documents say: functions that came with 2.14 are called
# only where JANSSON_VERSION_HEX is asked first.
. "$(dirname "$0")/meta.bash"

check() {
    find "$1" -name '*.[ch]' -path "$1/[lkste]*" | sort | xargs -r awk -v root="$1/" '
        FNR == 1 { guarded = 0 }
        /^#if.*JANSSON_VERSION_HEX/ { guarded = 1 }
        /^#(else|endif)/ { guarded = 0 }
        !guarded && /json_object_((get|set|del)n|setn_[a-z_]+|iter_key_len|keylen_foreach[a-z_]*)[( ]/ {
            print substr(FILENAME, length(root) + 1) ":" FNR ": jansson 2.13 has it not: " $0
        }'
}

plant_getn() { echo '    json_t *v = json_object_getn(o, "k", 1);' | put "$1/libcore/a/a.c"; }
plant_setn() { echo '    return json_object_setn_new(o, "k", 1, v);' | put "$1/tools/a.c"; }
plant_nocheck() { echo '    return json_object_setn_new_nocheck(o, "k", 1, v);' | put "$1/schemas/a.c"; }
plant_else() { printf '#if JANSSON_VERSION_HEX >= 0x020e00\n#else\n    json_object_deln(o, "k", 1);\n#endif\n' | put "$1/tests/a.c"; }
allow_asked() { printf '#if JANSSON_VERSION_HEX >= 0x020e00\n    json_object_deln(o, "k", 1);\n#endif\n' | put "$1/libcore/a.c"; }
meta_run
