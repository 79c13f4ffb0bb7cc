/* framing.h - where one document of an input ends and the next begins.
 *
 *     FILE    the whole file is a document
 *     LINES   a document a line: JSON lines, or lines of text
 *     ARRAY   one JSON array of objects, each a document
 *     CSV     comma-separated values with a header row (RFC 4180), each further row a document
 *     TSV     the same with tabs
 *
 * A quoted field of CSV and an object of an array may have line ends.  Lines alone can be found
 * from any byte of a file, so only they are divided among input splits.
 */
#ifndef D9DI_DATA_IO_FRAMING_H
#define D9DI_DATA_IO_FRAMING_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "d9d/base/status.h"

typedef enum d9di_framing {
    D9DI_FRAMING_FILE,
    D9DI_FRAMING_LINES,
    D9DI_FRAMING_ARRAY,
    D9DI_FRAMING_CSV,
    D9DI_FRAMING_TSV,
} d9di_framing;

/* The framing of JSON or of tables in a file of this name, perhaps with .gz or .zst behind it, that
 * begins with text[0, n), decompressed. */
d9di_framing d9di_framing_of(const char *name, const char *text, size_t n);
/* What separates the fields of a table; 0 for other framings. */
static inline char d9di_framing_separator(d9di_framing f)
{
    return f == D9DI_FRAMING_CSV ? ',' : f == D9DI_FRAMING_TSV ? '\t' : 0;
}
/* Line ends in text[0, n). */
int64_t d9di_framing_count_lines(const char *text, size_t n);
/* True if text[0, n) is white space, perhaps behind a byte order mark. */
bool d9di_framing_is_space(const char *text, size_t n);
/* True if the name, without .gz or .zst, ends with `end`, such as ".txt". */
bool d9di_framing_name_ends(const char *name, const char *end);

/* How far a document was scanned that needs more bytes.  Zero-initialised before each document. */
typedef struct d9di_framing_scan {
    size_t at;
    int depth;      /* of objects and arrays in an object */
    bool in_string; /* of an object */
    enum d9di_csv_state { D9DI_CSV_START, D9DI_CSV_PLAIN, D9DI_CSV_QUOTED, D9DI_CSV_CLOSED } field;
} d9di_framing_scan;

/* The state of a table's field after one more byte.  A quote opens a quoted field at its start
 * only, as Python's csv reads; a doubled one within closes and opens it again. */
static inline enum d9di_csv_state d9di_csv_next(enum d9di_csv_state s, char separator, char c)
{
    if (s == D9DI_CSV_QUOTED)
        return c == '"' ? D9DI_CSV_CLOSED : s;
    if (c == separator)
        return D9DI_CSV_START;
    return c == '"' && s != D9DI_CSV_PLAIN ? D9DI_CSV_QUOTED : D9DI_CSV_PLAIN;
}

/* A document is text[begin, begin + len); `used` bytes are read with it, its line end among them.
 */
typedef struct d9di_framing_span {
    bool found;
    size_t begin, len, used;
} d9di_framing_span;

/* Finds the next document of text[0, n), the unread bytes of an input, of which `first` are the
 * beginning and `end` all that is left.  Not found: more bytes are needed, or at the end there is
 * none.  EFORMAT: what follows is no document of this framing; *out says how far it was read. */
d9d_status d9di_framing_find(d9di_framing f, const char *text, size_t n, bool first, bool end,
                             d9di_framing_scan *scan, d9di_framing_span *out);

#endif
