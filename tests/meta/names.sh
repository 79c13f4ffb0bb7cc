#!/bin/bash
# A type of the suite (d9d_*, d9di_*) is defined in one place, and so is a function: where a name is
# that of two, one passes for the other without a warning.
. "$(dirname "$0")/meta.bash"

# KIND<TAB>NAME<TAB>FILE of every struct, union and enum with a body, and of every typedef, once a file.  An
# opaque typedef in a header and its body in a source are two kinds, and one type.
types() {
    awk -v OFS='\t' '
        match($0, /^(typedef )?(struct|union|enum) (d9di?_[a-z0-9_]+) \{/) {
            split($0, w, " "); print "body", w[1] == "typedef" ? w[3] : w[2], FILENAME
        }
        match($0, /^typedef (struct|union|enum) (d9di?_[a-z0-9_]+) d9di?_[a-z0-9_]+;/) {
            split($0, w, " "); sub(/;/, "", w[4]); print "typedef", w[4], FILENAME
        }
        match($0, /^} d9di?_[a-z0-9_]+;/) {
            name = substr($0, 3, RLENGTH - 3); print "typedef", name, FILENAME
        }' "$@" | sort -u
}
# The same of every function that begins at the left edge and is not static, with its body.  Under
# an #if it is one of two for different builds, of which the linker takes one.
functions() {
    awk -v OFS='\t' '
        FNR == 1 { name = ""; under = 0 }
        /^# *if/ { under++ }
        /^# *endif/ { under-- }
        /^(static|typedef|#|extern|D9D_API)/ { name = ""; next }
        /^[a-z].*\(/ && !/^(if|for|while|switch|return)/ {
            line = $0; name = ""
            if (match(line, /d9di?_[a-z0-9_]+\(/)) name = substr(line, RSTART, RLENGTH - 1)
        }
        /;[ \t]*$/ && !/^[ \t]/ { name = "" }
        /^[ \t].*\);[ \t]*$/ { name = "" }
        /^\{/ { if (name != "" && !under) print "function", name, FILENAME; name = "" }' "$@" | sort -u
}

# Lines KIND NAME FILE: those of one kind and name in several files.
several() {
    awk -F '\t' '{ k = $1 " " $2; at[k] = at[k] " " $3; n[k]++ }
        END { for (k in n) if (n[k] > 1) print k ": in" at[k] }' | sort
}

check() {
    local -a headers sources
    cd "$1" || return 1
    mapfile -t headers < <(find libcore kernels tools -name '*.h' -o -name '*.cuh' -o -name '*.c' -o -name '*.cu' 2>/dev/null)
    mapfile -t sources < <(find libcore kernels tools -name '*.c' -o -name '*.cu' 2>/dev/null)
    [ ${#headers[@]} -eq 0 ] || types "${headers[@]}" | several
    [ ${#sources[@]} -eq 0 ] || functions "${sources[@]}" | several
}

plant_typedef() {
    put "$1/libcore/a/a.h" <<<'typedef struct d9d_thing d9d_thing;'
    printf 'typedef struct d9d_thing {\n    int x;\n} d9d_thing;\n' | put "$1/libcore/b/b.h"
}
plant_tag() {
    printf 'struct d9di_thing {\n    int x;\n};\n' | tee >(put "$1/libcore/a/a.h") | put "$1/kernels/b.h"
}
plant_enum() {
    printf 'typedef enum d9di_mapper_spec_context { A } d9di_mapper_spec_context;\n' | put "$1/libcore/a/a.h"
    printf 'typedef struct d9di_mapper_spec_context {\n    int x;\n} d9di_mapper_spec_context;\n' | put "$1/libcore/b/b.h"
}
plant_function() {
    printf 'int d9di_do(int x)\n{\n    return x;\n}\n' | put "$1/libcore/a/a.c"
    printf 'int d9di_do(int x,\n            int y)\n{\n    return x + y;\n}\n' | put "$1/libcore/b/b.c"
}
allow_opaque() {
    put "$1/libcore/a/a.h" <<<'typedef struct d9d_thing d9d_thing;'
    printf 'struct d9d_thing {\n    int x;\n};\n' | put "$1/libcore/a/a.c"
}
allow_builds() {
    printf 'int d9di_do(int x)\n{\n    return x;\n}\n' | put "$1/libcore/a/a.c"
    printf '#ifndef CUDA\nint d9di_do(int x)\n{\n    return x;\n}\n#endif\n' | put "$1/libcore/b/b.c"
}
allow_declared() {
    put "$1/libcore/a/a.h" <<<'int d9di_do(int x);'
    printf 'int d9di_do(int x)\n{\n    return x;\n}\nint other(void)\n{\n    return d9di_do(1);\n}\n' | put "$1/libcore/a/a.c"
    printf 'static int d9di_do(int x)\n{\n    return x;\n}\n' | put "$1/libcore/b/b.c"
}

meta_run
