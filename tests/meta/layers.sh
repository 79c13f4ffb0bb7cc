#!/bin/bash
# A file includes only headers of its own layer and of those above it in libcore/LAYERS;
# private headers stay within their layer, or the layers that LAYERS joins by +; the tools see public headers only.
# Within a layer a wing includes only its own headers and those of earlier wings of the line with /.
. "$(dirname "$0")/meta.bash"

check() {
    cd "$1" || return 1
    find libcore kernels tools -name '*.[ch]' -o -name '*.cu' -o -name '*.cuh' 2>/dev/null | sort |
        xargs grep -HE '^[[:space:]]*#[[:space:]]*include[[:space:]]*["<]' /dev/null |
        awk -v root="$1" '
        function layer_of(path,   p) {      # of a file in the tree; "" for tools
            if (path ~ /^kernels\//) return "kernels"
            sub(/^libcore\/include\/d9d\//, "libcore/", path)
            if (path !~ /^libcore\//) return ""
            split(path, p, "/")
            return p[2]
        }
        function wing_of(path,   p) {       # the folder within the layer; "." for files of its own
            sub(/^libcore\/include\/d9d\//, "libcore/", path)
            return split(path, p, "/") > 3 ? p[3] : "."
        }
        function exists(path,   line, r) { r = (getline line < path); close(path); return r >= 0 }
        function norm(path) { while (sub(/[^\/]+\/\.\.\//, "", path)) ; return path }
        BEGIN {
            while ((getline line < "libcore/LAYERS") > 0)
                if (line ~ /^\//) {
                    k = split(line, w, " ")
                    for (i = 2; i <= k && w[i] !~ /^#/; i++) wing_rank[name, w[i]] = i
                } else if (line !~ /^#/ && split(line, w, " ")) {
                    name = w[1] == "+" ? w[2] : w[1]
                    if (w[1] != "+") part++
                    rank[name] = ++n; part_of[name] = part
                }
            if (!n) print "libcore/LAYERS: names no layer"
            cmd = "ls libcore libcore/include/d9d 2>/dev/null"
            while ((cmd | getline d) > 0)
                if (d != "include" && d !~ /[.:]/ && d != "LAYERS" && d != "MODULES" && d != "" && !(d in rank))
                    print "libcore/" d ": not in libcore/LAYERS"
            cmd = "ls -d libcore/*/*/ libcore/include/d9d/*/*/ 2>/dev/null"
            while ((cmd | getline d) > 0)
                if (d !~ /^libcore\/include\/d9d\/$/ && !((layer_of(d "x"), wing_of(d "x")) in wing_rank))
                    print d ": not among the wings of " layer_of(d "x") " in libcore/LAYERS"
        }
        {
            i = index($0, ":"); file = substr($0, 1, i - 1); text = substr($0, i + 1)
            match(text, /["<][^">]+[">]/)
            quote = substr(text, RSTART, 1); name = substr(text, RSTART + 1, RLENGTH - 2)
            own = layer_of(file); private = 0
            if (name ~ /^d9d\//) {
                split(name, p, "/"); other = p[2]; path = "libcore/include/" name
            } else if (quote == "\"") {
                dir = file; sub(/[^\/]*$/, "", dir)
                path = norm(dir name)
                if (!exists(path)) path = "libcore/" name
                if (!exists(path)) path = "kernels/" name
                if (!exists(path)) { print file ": cannot find \"" name "\""; next }
                other = layer_of(path); private = 1
            } else next
            if (own == "" && private && other != "")
                print file ": a tool may not use the private header " name
            else if (file ~ /\/include\// && private)
                print file ": a public header may not use the private header " name
            else if (own != "" && private && part_of[other] != part_of[own])
                print file ": " name " is private to " (other == "" ? "tools" : other)
            else if (own != "" && !(other in rank))
                print file ": " name ": no such layer"
            else if (own != "" && rank[other] > rank[own])
                print file ": " own " may not use " name ", which lies above it"
            else if (own == other && (own, wing_of(file)) in wing_rank && (own, wing_of(path)) in wing_rank &&
                wing_rank[own, wing_of(path)] > wing_rank[own, wing_of(file)])
                print file ": the wing " wing_of(file) " may not use " name ", which lies above it"
        }'
}

tree() { printf 'base # low\nkernels\ntop # high\n' | put "$1/libcore/LAYERS"; mkdir -p "$1/kernels" "$1/tools"; }
plant_upward() { tree "$1"; echo '#include "d9d/top/x.h"' | put "$1/libcore/base/a.c"; }
plant_upward_angle() { tree "$1"; echo '#include <d9d/top/x.h>' | put "$1/libcore/include/d9d/base/a.h"; }
plant_kernel_upward() { tree "$1"; echo '# include "d9d/top/x.h"' | put "$1/kernels/cpu/a.c"; }
plant_foreign_private() {
    tree "$1"
    put "$1/libcore/base/p.h" </dev/null
    echo '#include "base/p.h"' | put "$1/libcore/top/a.c"
}
plant_private_by_path() {
    tree "$1"
    put "$1/libcore/base/p.h" </dev/null
    echo '#include "../base/p.h"' | put "$1/libcore/top/a.c"
}
plant_tool_private() {
    tree "$1"
    put "$1/libcore/base/p.h" </dev/null
    echo '#include "base/p.h"' | put "$1/tools/d9d-x.c"
}
plant_private_in_public() {
    tree "$1"
    put "$1/libcore/base/p.h" </dev/null
    echo '#include "base/p.h"' | put "$1/libcore/include/d9d/base/q.h"
}
plant_private_upward() {
    printf 'base\n+ top # shares\n' | put "$1/libcore/LAYERS"
    mkdir -p "$1/kernels" "$1/tools"
    put "$1/libcore/top/p.h" </dev/null
    echo '#include "top/p.h"' | put "$1/libcore/base/a.c"
}
allow_private_of_a_part() {
    printf 'base\n+ top # shares\n' | put "$1/libcore/LAYERS"
    mkdir -p "$1/kernels" "$1/tools"
    put "$1/libcore/base/p.h" </dev/null
    echo '#include "base/p.h"' | put "$1/libcore/top/a.c"
}
wings() { printf 'base\nkernels\ntop # high\n/ low high\n' | put "$1/libcore/LAYERS"; mkdir -p "$1/kernels" "$1/tools"; }
plant_wing_upward() {
    wings "$1"
    put "$1/libcore/top/high/p.h" </dev/null
    echo '#include "top/high/p.h"' | put "$1/libcore/top/low/a.c"
}
plant_wing_upward_public() { wings "$1"; echo '#include "d9d/top/high/x.h"' | put "$1/libcore/include/d9d/top/low/a.h"; }
plant_unlisted_wing() { wings "$1"; put "$1/libcore/top/other/a.c" </dev/null; }
plant_root_above_wings() {
    wings "$1"
    printf 'base\nkernels\ntop\n/ . low # the folder itself is lowest\n' | put "$1/libcore/LAYERS"
    put "$1/libcore/top/low/p.h" </dev/null
    echo '#include "top/low/p.h"' | put "$1/libcore/top/a.c"
}
allow_wings() {
    wings "$1"
    put "$1/libcore/top/low/p.h" </dev/null
    put "$1/libcore/top/own.h" </dev/null
    printf '#include "top/low/p.h"\n#include "top/own.h"\n#include "d9d/top/high/x.h"\n' | put "$1/libcore/top/high/a.c"
    echo '#include "top/low/p.h"' | put "$1/libcore/top/a.c"
    echo '#include "top/own.h"' | put "$1/libcore/top/low/b.c"
}
plant_unlisted_layer() { tree "$1"; put "$1/libcore/extra/a.c" </dev/null; }
allow_downward() {
    tree "$1"
    put "$1/libcore/top/p.h" </dev/null
    printf '#include "d9d/base/x.h"\n#include "top/p.h"\n#include "p.h"\n#include <stdio.h>\n' | put "$1/libcore/top/a.c"
    printf '#include "d9d/top/x.h"\n#include "tool.h"\n' | put "$1/tools/d9d-x.c"
    put "$1/tools/tool.h" </dev/null
}
meta_run
