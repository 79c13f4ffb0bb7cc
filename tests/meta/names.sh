#!/bin/bash
# Names: a type of the suite (d9d_*, d9di_*) is defined in one place, and so is a function, since one
# of two passes for the other without a warning; what a header declares begins with a module of its
# layer (libcore/MODULES); and no identifier has a word that docs/GLOSSARY.md bans.
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

# FILE: NAME of every function and type that headers declare and that begins with no module of their
# layer; and modules that two layers have.
strangers() {
    awk '
        function layer(path,   p) {
            if (path ~ /^kernels\//) return "kernels"
            sub(/^libcore\/include\/d9d\//, "libcore/", path); split(path, p, "/"); return p[2]
        }
        function take(name,   w, i, n, k) {
            w = name; sub(/^d9di?_/, "", w); n = split(w, k, "_"); w = ""
            for (i = 1; i <= n; i++) {
                w = w (i > 1 ? "_" : "") k[i]
                if ((layer(FILENAME), w) in module) return
            }
            if (!seen[FILENAME, name]++) print FILENAME ": " name " begins with no module of " layer(FILENAME)
        }
        FILENAME == "libcore/MODULES" {
            if (/^#/) next
            from = 1
            if ($1 ~ /:$/) { own = $1; sub(/:/, "", own); from = 2 }
            for (i = from; i <= NF; i++) {
                if ($i in owner) print "libcore/MODULES: " $i " is a module of " owner[$i] " and of " own
                owner[$i] = own; module[own, $i] = 1
            }
            next
        }
        FNR == 1 { depth = 0; comment = 0; macro = 0 }
        { was = macro; macro = (macro || /^#/) && /\\$/ }
        was { next }
        {
            line = $0
            if (comment) { if (!match(line, /\*\//)) next; line = substr(line, RSTART + 2); comment = 0 }
            gsub(/\/\*([^*]|\*[^\/])*\*\//, "", line); gsub(/\/\/.*/, "", line); gsub(/"[^"]*"/, "", line)
            if (i = index(line, "/*")) { line = substr(line, 1, i - 1); comment = 1 }
            if (line ~ /^#/ || line ~ /^extern "C"|^}$/ && depth == 0) next
            if (depth == 0 && match(line, /d9di?_[a-z0-9_]+\(/)) take(substr(line, RSTART, RLENGTH - 1))
            if (match(line, /^(typedef )?(struct|union|enum) d9di?_[a-z0-9_]+ \{/)) {
                split(line, w, " "); take(w[1] == "typedef" ? w[3] : w[2])
            }
            if (match(line, /^} d9di?_[a-z0-9_]+;/)) take(substr(line, 3, RLENGTH - 3))
            depth += gsub(/\{/, "{", line) - gsub(/\}/, "}", line)
            if (depth < 0) depth = 0
        }' "$@"
}

# FILE: WORD in NAME, for the words in the first column of "Banned" in docs/GLOSSARY.md; not in the file
# of the last column.
banned() {
    local words
    words=$(awk -F'|' '/^## /{ on = /^## Banned/ } on && $2 ~ /^ `/ { gsub(/[` ]/, "", $2); gsub(/ /, "", $4); print $2 "=" $4 }' docs/GLOSSARY.md)
    [ -n "$words" ] || return 0
    awk -v words="$words" '
        BEGIN { n = split(words, w, "\n"); for (i = 1; i <= n; i++) { split(w[i], p, "="); bad[p[1]] = 1; in_file[p[1]] = p[2] } }
        FNR == 1 { comment = 0 }
        {
            line = $0
            if (comment) { if (!match(line, /\*\//)) next; line = substr(line, RSTART + 2); comment = 0 }
            gsub(/"([^"\\]|\\.)*"/, "", line); gsub(/\/\*([^*]|\*[^\/])*\*\//, "", line); sub(/\/\/.*/, "", line)
            if (i = index(line, "/*")) { line = substr(line, 1, i - 1); comment = 1 }
            if (line ~ /^#include/) next
            m = split(tolower(line), part, /[^a-z]+/)
            for (i = 1; i <= m; i++)
                if (part[i] in bad && in_file[part[i]] != FILENAME && !seen[FILENAME, part[i]]++)
                    print FILENAME ":" FNR ": \"" part[i] "\" is banned by docs/GLOSSARY.md"
        }' "$@"
}

check() {
    local -a headers sources
    cd "$1" || return 1
    mapfile -t headers < <(find libcore kernels tools -name '*.h' -o -name '*.cuh' -o -name '*.c' -o -name '*.cu' 2>/dev/null)
    mapfile -t sources < <(find libcore kernels tools -name '*.c' -o -name '*.cu' 2>/dev/null)
    [ ${#headers[@]} -eq 0 ] || types "${headers[@]}" | several
    [ ${#sources[@]} -eq 0 ] || functions "${sources[@]}" | several
    if [ -e libcore/MODULES ]; then
        mapfile -t headers < <(find libcore kernels -name '*.h' -o -name '*.cuh' 2>/dev/null)
        strangers libcore/MODULES "${headers[@]}"
    fi
    mapfile -t headers < <(find libcore kernels tools tests examples schemas -name '*.[ch]' -o -name '*.cu' -o -name '*.cuh' 2>/dev/null)
    [ ! -e docs/GLOSSARY.md ] || [ ${#headers[@]} -eq 0 ] || banned "${headers[@]}"
}

plant_typedef() {
    put "$1/libcore/a/a.h" <<<'typedef struct d9d_thing d9d_thing;'
    printf 'typedef struct d9d_thing {\n    int x;\n} d9d_thing;\n' | put "$1/libcore/b/b.h"
}
plant_tag() {
    printf 'struct d9di_thing {\n    int x;\n};\n' | put "$1/libcore/a/a.h"
    printf 'struct d9di_thing {\n    int x;\n};\n' | put "$1/kernels/b.h"
}
plant_enum() {
    printf 'typedef enum d9di_mapper_spec_context { A } d9di_mapper_spec_context;\n' | put "$1/libcore/a/a.h"
    printf 'typedef struct d9di_mapper_spec_context {\n    int x;\n} d9di_mapper_spec_context;\n' | put "$1/libcore/b/b.h"
}
plant_function() {
    printf 'int d9di_do(int x)\n{\n    return x;\n}\n' | put "$1/libcore/a/a.c"
    printf 'int d9di_do(int x,\n            int y)\n{\n    return x + y;\n}\n' | put "$1/libcore/b/b.c"
}
modules() { printf '# a comment\na: thing\n   other_thing\nb: %s\n' "$2" | put "$1/libcore/MODULES"; }
plant_stranger() { modules "$1" b && put "$1/libcore/include/d9d/a/a.h" <<<'int d9d_do_it(int x);'; }
plant_foreign_module() { modules "$1" b && put "$1/libcore/a/a.h" <<<'int d9di_b_do(int x);'; }
plant_stranger_type() { modules "$1" b && printf 'typedef struct d9d_odd {\n    int x;\n} d9d_odd;\n' | put "$1/libcore/a/a.h"; }
plant_module_of_two() { modules "$1" thing && put "$1/libcore/a/a.h" <<<'int d9d_thing(int x);'; }
plant_banned() {
    printf '## Banned\n\n| word | say |\n|---|---|\n| `crew` | consumer |\n' | put "$1/docs/GLOSSARY.md"
    put "$1/libcore/a/a.c" <<<'static int crew_size;'
}
plant_banned_in_a_test() {
    printf '## Banned\n\n| word | say | but in |\n|---|---|---|\n| `piece` | chunk | libcore/a/a.c |\n' | put "$1/docs/GLOSSARY.md"
    put "$1/tests/unit/a/test_a.c" <<<'enum { PIECE2 = 1 };'
}
plant_banned_by_this_tree() {
    mkdir -p "$1/docs" && cp "$meta_root/docs/GLOSSARY.md" "$1/docs" && put "$1/libcore/a/a.c" <<<'static size_t n_mine;'
}
allow_modules() {
    modules "$1" b
    printf '/* d9d_odd() is\n * no declaration */\nint d9d_other_thing_do(int x); /* of d9d_odd(x) */\nstatic inline int d9d_thing(void)\n{\n    return d9d_odd(1);\n}\n' | put "$1/libcore/a/a.h"
}
allow_banned_in_prose() {
    printf '## Banned\n\n| word | say |\n|---|---|\n| `crew` | consumer |\n' | put "$1/docs/GLOSSARY.md"
    printf '/* The crew. */\nstatic const char *a = "crew"; /* crew */\n' | put "$1/libcore/a/a.c"
}
allow_banned_in_its_field() {
    printf '## Banned\n\n| word | say | but in |\n|---|---|---|\n| `piece` | chunk | libcore/a/a.c |\n' | put "$1/docs/GLOSSARY.md"
    put "$1/libcore/a/a.c" <<<'static int push_piece;'
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
