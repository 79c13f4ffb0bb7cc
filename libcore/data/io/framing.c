/* framing.c - see framing.h. */
#include "data/io/framing.h"

#include <string.h>

#include "data/tokenizer/utf8.h"

static bool ends_with(const char *name, size_t n, const char *end)
{
    const size_t len = strlen(end);

    return n > len && memcmp(name + n - len, end, len) == 0;
}

int64_t d9di_framing_count_lines(const char *text, size_t n)
{
    int64_t lines = 0;

    for (size_t i = 0; i < n; i++)
        lines += text[i] == '\n';
    return lines;
}

bool d9di_framing_name_ends(const char *name, const char *end)
{
    size_t n = strlen(name);

    n -= ends_with(name, n, ".gz") ? 3 : ends_with(name, n, ".zst") ? 4 : 0;
    return ends_with(name, n, end);
}

static bool is_space(char c)
{
    return c == ' ' || c == '\t' || c == '\r' || c == '\n';
}

static size_t skip_space(const char *text, size_t at, size_t n)
{
    while (at < n && is_space(text[at]))
        at++;
    return at;
}

/* Where the text of an input begins: behind a byte order mark, of which part may be all there is.
 */
static size_t text_start(const char *text, size_t n)
{
    return n > 0 && n < 3 && text[0] == '\xef' ? n : d9di_utf8_bom(text, n);
}

bool d9di_framing_is_space(const char *text, size_t n)
{
    return n == 0 || skip_space(text, text_start(text, n), n) == n;
}

d9di_framing d9di_framing_of(const char *name, const char *text, size_t n)
{
    const size_t at = skip_space(text, text_start(text, n), n);

    if (d9di_framing_name_ends(name, ".csv"))
        return D9DI_FRAMING_CSV;
    if (d9di_framing_name_ends(name, ".tsv"))
        return D9DI_FRAMING_TSV;
    return at < n && text[at] == '[' ? D9DI_FRAMING_ARRAY : D9DI_FRAMING_LINES;
}

/* --- lines --------------------------------------------------------------------------------------
 */

static d9d_status find_line(const char *text, size_t n, bool end, d9di_framing_scan *scan,
                            d9di_framing_span *out)
{
    const char *nl = n > scan->at ? memchr(text + scan->at, '\n', n - scan->at) : NULL;

    scan->at = n;
    if (nl == NULL && (!end || n == 0))
        return D9D_OK;
    *out = (d9di_framing_span){.found = true, .len = nl ? (size_t)(nl - text) : n};
    out->used = out->len + (nl != NULL);
    return D9D_OK;
}

/* --- an array of objects ------------------------------------------------------------------------
 */

/* Sets *at behind the bracket before the first element, or the comma before the next.  False: more
 * bytes are needed.  *closed: the array ends here. */
static d9d_status skip_separator(const char *text, size_t n, bool first, size_t *at, bool *closed)
{
    const size_t i = skip_space(text, first ? text_start(text, n) : 0, n);
    size_t next;

    *closed = false;
    *at = i;
    if (i == n)
        return D9D_OK;
    if (text[i] != (first ? '[' : ',') && text[i] != ']')
        return D9D_FAIL(D9D_EFORMAT, "',' or ']' is expected after an element of the array");
    next = skip_space(text, i + 1, n);
    *closed = text[i] == ']' || (first && next < n && text[next] == ']');
    *at = *closed ? (text[i] == ']' ? i + 1 : next + 1) : next;
    return D9D_OK;
}

/* Nothing may follow the array. */
static d9d_status check_closed(const char *text, size_t n, size_t at, d9di_framing_span *out)
{
    out->used = skip_space(text, at, n);
    return out->used == n ? D9D_OK : D9D_FAIL(D9D_EFORMAT, "something follows the array");
}

/* Scans the object at `begin` on; true at its end, of which scan->at is one behind. */
static bool scan_object(const char *text, size_t n, d9di_framing_scan *scan)
{
    size_t i = scan->at;

    for (; i < n; i++) {
        const char c = text[i];

        if (scan->in_string && c == '\\') {
            if (i + 1 == n)
                break;
            i++;
        } else if (c == '"') {
            scan->in_string = !scan->in_string;
        } else if (!scan->in_string && (c == '{' || c == '[')) {
            scan->depth++;
        } else if (!scan->in_string && (c == '}' || c == ']') && --scan->depth == 0) {
            scan->at = i + 1;
            return true;
        }
    }
    scan->at = i;
    return false;
}

static d9d_status find_element(const char *text, size_t n, bool first, bool end,
                               d9di_framing_scan *scan, d9di_framing_span *out)
{
    bool closed;
    size_t begin;

    D9D_TRY(skip_separator(text, n, first, &begin, &closed));
    if (closed)
        return check_closed(text, n, begin, out);
    if (begin < n && text[begin] != '{') {
        out->used = begin;
        return D9D_FAIL(D9D_EFORMAT, "an element of the array is not an object");
    }
    if (begin < n) {
        scan->at = scan->at > begin ? scan->at : begin;
        if (scan_object(text, n, scan)) {
            *out = (d9di_framing_span){true, begin, scan->at - begin, scan->at};
            return D9D_OK;
        }
    }
    return end ? D9D_FAIL(D9D_EFORMAT, "the array has no end") : D9D_OK;
}

/* --- rows of a table ----------------------------------------------------------------------------
 */

static d9d_status find_row(char separator, const char *text, size_t n, bool end,
                           d9di_framing_scan *scan, d9di_framing_span *out)
{
    size_t i = scan->at;

    for (; i < n && (text[i] != '\n' || scan->field == D9DI_CSV_QUOTED); i++)
        scan->field = d9di_csv_next(scan->field, separator, text[i]);
    scan->at = i;
    if (i == n && (!end || n == 0))
        return D9D_OK;
    *out = (d9di_framing_span){.found = true, .len = i, .used = i + (i < n)};
    return D9D_OK;
}

d9d_status d9di_framing_find(d9di_framing f, const char *text, size_t n, bool first, bool end,
                             d9di_framing_scan *scan, d9di_framing_span *out)
{
    *out = (d9di_framing_span){.found = false};
    switch (f) {
    case D9DI_FRAMING_ARRAY: return find_element(text, n, first, end, scan, out);
    case D9DI_FRAMING_CSV:
    case D9DI_FRAMING_TSV: return find_row(d9di_framing_separator(f), text, n, end, scan, out);
    default: return find_line(text, n, end, scan, out);
    }
}
