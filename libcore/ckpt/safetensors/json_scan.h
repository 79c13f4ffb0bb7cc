/* json_scan.h - a pull parser for JSON (token by token), for untrusted files of any size.
 *
 * Safetensors headers and indices may have 100 MB.  Scanning them in place needs memory only for
 * what is kept, not for a tree.  Strict: UTF-8 without control characters in names, no duplicate
 * commas, nothing after the value, nesting up to 64.  Messages begin with `where` and name the
 * byte.
 */
#ifndef D9DI_CKPT_SAFETENSORS_JSON_SCAN_H
#define D9DI_CKPT_SAFETENSORS_JSON_SCAN_H

#include "d9d/base/mem.h"

typedef struct d9di_json_scan {
    const char *where; /* "a/model.safetensors: header" */
    const char *text, *p, *end;
    bool allow_control; /* control characters are allowed in the string being read */
} d9di_json_scan;

/* Characters that no name may contain. */
static inline bool d9di_json_scan_is_control(uint32_t c)
{
    return c < 0x20 || c == 0x7f;
}

static inline d9di_json_scan d9di_json_scan_start(const char *where, const char *text, size_t n)
{
    return (d9di_json_scan){.where = where, .text = text, .p = text, .end = text + n};
}

/* One member or element at a time:
 *
 *     D9D_TRY(d9di_json_scan_open(&s, '{'));
 *     for (bool first = true;; first = false) {
 *         D9D_TRY(d9di_json_scan_more(&s, '}', first, &more));
 *         if (!more)
 *             break;
 *         D9D_TRY(d9di_json_scan_key(&s, arena, &key, &len));
 *         ... one value ...
 *     }
 */
d9d_status d9di_json_scan_open(d9di_json_scan *s, char bracket);
d9d_status d9di_json_scan_more(d9di_json_scan *s, char bracket, bool first, bool *more);
d9d_status d9di_json_scan_string(d9di_json_scan *s, d9d_arena *a, char **out, size_t *len);
/* The same for free text: line ends and other control characters are allowed, as escapes. */
d9d_status d9di_json_scan_free_text(d9di_json_scan *s, d9d_arena *a, char **out, size_t *len);
/* True if the next value is null, which is then consumed. */
bool d9di_json_scan_null(d9di_json_scan *s);
d9d_status d9di_json_scan_key(d9di_json_scan *s, d9d_arena *a, char **out,
                              size_t *len);                      /* also consumes the colon */
d9d_status d9di_json_scan_u64(d9di_json_scan *s, uint64_t *out); /* digits only */
d9d_status d9di_json_scan_skip(d9di_json_scan *s);               /* any value */
d9d_status d9di_json_scan_end(d9di_json_scan *s);                /* only white space is left */

#endif /* D9DI_CKPT_SAFETENSORS_JSON_SCAN_H */
