#!/usr/bin/awk -f
# headings.awk - gives the headings of a page names that Doxygen knows: those of GitHub, behind the page's
# and its folder's.  Puts two backquotes around code with an apostrophe, which ends it in Doxygen.
#
#     ## Exit codes                       ## Exit codes {#reference-errors-exit-codes}
#     [codes](errors.md#exit-codes)       [codes](#reference-errors-exit-codes)
function page_of(path,   part, n) {
    sub(/\.md$/, "", path); n = split(path, part, "/")
    return n > 1 ? part[n - 1] "-" part[n] : folder "-" path
}
# `it's` as ``it's``; code in two backquotes is left as it is.
function quote(line,   part, n, i, out, tick) {
    if (line ~ /``/ || line !~ /`[^`]*'[^`]*`/) return line
    n = split(line, part, "`"); out = part[1]
    for (i = 2; i <= n; i++) {
        tick = i % 2 == 0 && i < n && part[i] ~ /'/ || i % 2 == 1 && part[i - 1] ~ /'/ ? "``" : "`"
        out = out tick part[i]
    }
    return out
}
FNR == 1 { folder = FILENAME; sub(/\/[^\/]*$/, "", folder); sub(/.*\//, "", folder); page = page_of(FILENAME) }
/^ *```/ { fenced = !fenced }
fenced || /^    / { print; next }
/^##+ / {
    a = tolower($0); sub(/^#+ +/, "", a); gsub(/\]\([^)]*\)/, "", a); gsub(/[^a-z0-9 _-]/, "", a); gsub(/ /, "-", a)
    $0 = $0 " {#" page "-" a (seen[a] ? "-" seen[a] : "") "}"; seen[a]++
}
{
    rest = quote($0); out = ""
    while (match(rest, /\]\([^):# ]*(\.md)?#[^)]+\)/)) {
        link = substr(rest, RSTART + 2, RLENGTH - 3); cut = index(link, "#")
        to = cut > 1 ? page_of(substr(link, 1, cut - 1)) : page
        out = out substr(rest, 1, RSTART - 1) "](#" to "-" substr(link, cut + 1) ")"
        rest = substr(rest, RSTART + RLENGTH)
    }
    print out rest
}
