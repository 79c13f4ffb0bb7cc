#!/bin/sh
# list_errors.sh - every sentence that a tool may end with or warn with, as docs/reference/messages.md.
#
#     tools/list_errors.sh [ROOT] >docs/reference/messages.md
#
# It reads the calls of D9D_FAIL() and of what is made of it in the sources below ROOT.  In a message
# ... is a name, a path or a text, and N a number.  `make schemas` runs it.
set -eu
cd "${1:-.}"

# calls FILE...: lines FOLDER<TAB>FILE<TAB>EXIT<TAB>MESSAGE, EXIT as status.h says it.
calls() {
    LC_ALL=C awk '
        # What a printf format looks like to a reader; CODE for a Markdown cell.
        function readable(s,   out, c) {
            out = ""
            while (match(s, /%[-+ #0]*[0-9*]*(\.[0-9*]*)?(hh|h|ll|l|z|j|t)?[a-zA-Z%]/)) {
                c = substr(s, RSTART + RLENGTH - 1, 1)
                out = out substr(s, 1, RSTART - 1) (c == "%" ? "%" : index("scmp", c) ? "…" : "N")
                s = substr(s, RSTART + RLENGTH)
            }
            s = out s
            gsub(/\\n/, " ", s); gsub(/\\t/, " ", s); gsub(/\\"/, "\"", s); gsub(/\\\\/, "\\", s)
            gsub(/[*|]/, "\\\\&", s); gsub(/</, "\\&lt;", s); gsub(/……(…)*/, "…", s); gsub(/  +/, " ", s); sub(/ +$/, "", s)
            return s
        }
        function row(status, message) {
            message = readable(message)
            if (message !~ /[A-Za-z][A-Za-z]/) return # passes on what another one says
            print folder "\t" file "\t" exit_of(status) "\t" message
        }
        function exit_of(status,   out, name) {
            if (status == "warning") return status
            out = ""
            while (match(status, /D9D_E[A-Z]+/)) {
                name = substr(status, RSTART + 4, RLENGTH - 4); status = substr(status, RSTART + RLENGTH)
                if (name in exits && index(out, exits[name]) == 0) out = out (out == "" ? "" : "; ") exits[name]
            }
            return out == "" ? "of its cause" : out
        }
        function spelled(word) { return word == "" ? "" : word ~ /^(PRI|JSON_INTEGER)/ ? "d" : "%s" }
        # Alternatives of an expression: strings and, for all else in it, dots.
        function rows(status, prefix, expr,   i, n, c, text, word) {
            text = word = ""; n = length(expr) # word: what stands between two strings
            for (i = 1; i <= n; i++) {
                c = substr(expr, i, 1)
                if (c == "\"") {
                    text = text spelled(word); word = ""
                    for (i++; (c = substr(expr, i, 1)) != "\"" && i <= n; i++) {
                        text = text c
                        if (c == "\\") text = text substr(expr, ++i, 1)
                    }
                } else if (c == "?") text = word = ""
                else if (c == ":") { row(status, prefix text); text = word = "" }
                else if (c ~ /[A-Za-z0-9_]/) word = word c
            }
            last = prefix text (text != "" ? spelled(word) : "")
            if (status != "none") row(status, last)
        }
        # The arguments of a call whose text begins behind its parenthesis; false: it goes on below.
        function arguments(s,   i, n, c, depth, quote) {
            n_args = 1; args[1] = ""; depth = 0; quote = ""; n = length(s)
            for (i = 1; i <= n; i++) {
                c = substr(s, i, 1)
                if (quote != "") {
                    if (c == "\\") { args[n_args] = args[n_args] c; c = substr(s, ++i, 1) }
                    else if (c == quote) quote = ""
                } else if (c == "\"" || c == "\047") quote = c
                else if (index("([{", c)) depth++
                else if (index(")]}", c)) { if (depth-- == 0) return 1 }
                else if (c == "," && depth == 0) { args[++n_args] = ""; continue }
                args[n_args] = args[n_args] c
            }
            return 0
        }
        function call(name) {
            if (name == "D9D_FAIL") {
                if (pending != "" && args[2] ~ /%s"$/) wrap_as(pending)
                else rows(args[1], "", args[2])
            } else if (name in wrap_at) rows(wrap_status[name], wrap_prefix[name], args[wrap_at[name]])
            else if (name == "D9DI_FAIL_ERRNO") rows("", "%s: ", args[2] " \": %m\"")
            else if (name == "d9d_log_warn") rows("warning", "", args[2])
            else if (name == "d9di_comm_call_fail") rows("D9D_ECOMM", "%s: ", args[3])
            else if (name == "note_problem") rows("D9D_EMISMATCH", "", args[3])
            else if (name ~ /^fail_(json|missing|value)$/) rows("D9D_EFORMAT", "", args[2])
            else if (name in macro_at) rows(macro_status[name], macro_prefix[name], args[macro_at[name]])
        }
        # "static d9d_status fail_line(r, const char *why)" of one file, which fails with what it is given.
        function wrapper(s,   name, n, i, p) {
            if (!match(s, /[a-z_]+\(/)) return ""
            name = substr(s, RSTART, RLENGTH - 1); n = split(substr(s, RSTART + RLENGTH), p, /,/)
            for (i = 1; i <= n; i++) if (p[i] ~ /const char \*(why|reason)\)?/) wrap_at[name] = i
            return name
        }
        function wrap_as(name) {
            wrap_status[name] = args[1]; rows("none", "", args[2])
            wrap_prefix[name] = substr(last, 1, length(last) - 2) # without its %s
            pending = ""
        }
        # "#define BAD(w, at, fmt, ...) D9D_FAIL(D9D_ECONFIG, "%s: " fmt, ...)" of one file
        function define(s,   name, params, i, n, p) {
            if (s !~ /[ (]fmt[,)]/ || s !~ /D9D_FAIL\(/) return
            sub(/^# *define +/, "", s); name = s; sub(/\(.*/, "", name)
            params = substr(s, length(name) + 2); sub(/\).*/, "", params)
            n = split(params, p, / *, */)
            for (i = 1; i <= n; i++) if (p[i] == "fmt") macro_at[name] = i
            sub(/.*D9D_FAIL\(/, "", s); arguments(s ")")
            macro_status[name] = args[1]; sub(/^[^"]*"/, "", args[2]); sub(/".*/, "", args[2])
            macro_prefix[name] = args[2]
        }
        FILENAME ~ /base\/status\.h$/ {
            if (match($0, /X\(E[A-Z]+, -[0-9]+, [0-9]+, "[^"]*"/)) {
                split(substr($0, RSTART + 2, RLENGTH - 2), part, /, /)
                gsub(/"/, "", part[4]); exits[part[1]] = part[3] ", " part[4]
            }
            next
        }
        FNR == 1 {
            folder = FILENAME; sub(/^libcore\/include\/d9d\//, "", folder); sub(/^libcore\//, "", folder)
            sub(/\/.*/, "", folder); file = FILENAME; sub(/.*\//, "", file); open = 0; defining = ""
            for (name in macro_at) delete macro_at[name]
            for (name in wrap_at) delete wrap_at[name]
            pending = ""
        }
        /^ *\/?\*[ \/]/ && !open { next } # comments
        defining != "" || /^# *define/ {
            sub(/^[ \t]+/, " "); defining = defining $0
            if (sub(/ *\\$/, "", defining)) {
                if ($0 ~ /D9D_FAIL\(/ && defining !~ /[ (]fmt[,)]/) defining = ""
                else next
            } else {
                define(defining); defining = ""; next
            }
        }
        /^static d9d_status .*const char \*(why|reason)[,)]/ { pending = wrapper($0); next }
        /^}/ { pending = "" }
        {
            line = $0; sub(/[ \t]*\\$/, "", line); gsub(/\/\*[^*]*\*\//, "", line)
            if (open) text = text " " line
            while (1) {
                if (!open) {
                    if (!match(line, /[A-Za-z_0-9]+\(/)) break
                    name = substr(line, RSTART, RLENGTH - 1); line = substr(line, RSTART + RLENGTH)
                    if (name !~ /^(D9D_FAIL|D9DI_FAIL_ERRNO|d9d_log_warn|d9di_comm_call_fail|note_problem|fail_(json|missing|value))$/ &&
                        !(name in macro_at) && !(name in wrap_at)) continue
                    text = line
                }
                open = !arguments(text)
                if (open) break
                call(name)
                line = "" # one call a line
            }
        }' libcore/include/d9d/base/status.h "$@" | LC_ALL=C sort -u
}

sources() { find libcore kernels tools -name '*.c' -o -name '*.h' -o -name '*.cu' -o -name '*.cuh' | LC_ALL=C sort; }

cat <<'TEXT'
# Messages

- Every error and warning of the tools, one a row, by the module whose code says it.
- … stands for a name, a path or a text, N for a number: search for the words between them.
- "exit" is the [exit code](errors.md#exit-codes) of a tool that ends with the message, and its class; after a warning the tool goes on.
- "of its cause": 2 for a path that is not there or cannot be used, else 1.
- [errors.md](errors.md) says what to do about the most common ones. What is said of ranks that wait for others is put together when it happens: its section on ranks. This page is made of the sources by `tools/list_errors.sh`.
TEXT
# shellcheck disable=SC2046 # no source has blanks in its name
calls $(sources) | LC_ALL=C awk -F '\t' '
    FILENAME != "-" { # layers, lowest first
        if (match($0, /^\+? *[a-z]+ +# /)) {
            split($0, w, /[+ ]+/); name = w[1] == "" ? w[2] : w[1]
            about[name] = $0; sub(/^[^#]*# /, "", about[name]); order[++n] = name
        }
        next
    }
    { text[$1] = text[$1] "| " $4 " | " $3 " | " $2 " |\n" }
    END {
        order[++n] = "tools"; about["tools"] = "the programs: options and operands"
        for (i = 1; i <= n; i++) {
            if (!(order[i] in text)) continue
            printf "\n## %s\n\n%s.\n\n| message | exit | file |\n|---|---|---|\n%s", order[i],
                toupper(substr(about[order[i]], 1, 1)) substr(about[order[i]], 2), text[order[i]]
        }
    }' libcore/LAYERS -
