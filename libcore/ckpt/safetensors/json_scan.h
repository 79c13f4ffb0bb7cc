/* json_scan.h - reading JSON token by token, for files whose size a stranger decides.
 *
 * Headers of safetensors files and indices may have 100 MB.  Scanning them in place costs
 * the memory of what is kept, not of a tree.  Strict: UTF-8 without control characters in
 * names, no duplicate commas, nothing after the value, nesting up to 64.  Sentences
 * begin with `where` and name the byte.
 */
#ifndef D9DI_CKPT_SAFETENSORS_JSON_SCAN_H
#define D9DI_CKPT_SAFETENSORS_JSON_SCAN_H

#include "d9d/base/mem.h"

typedef struct d9di_json_scan {
    const char *where; /* "a/model.safetensors: header" */
    const char *text, *p, *end;
    bool allow_control; /* the string that is read may have control characters */
} d9di_json_scan;

/* No name has one of these. */
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
/* The same of text that is nobody's name: line ends and other control characters, as escapes. */
d9d_status d9di_json_scan_free_text(d9di_json_scan *s, d9d_arena *a, char **out, size_t *len);
/* Is the next value null?  Then it is read. */
bool d9di_json_scan_null(d9di_json_scan *s);
d9d_status d9di_json_scan_key(d9di_json_scan *s, d9d_arena *a, char **out,
                              size_t *len);                      /* and the colon */
d9d_status d9di_json_scan_u64(d9di_json_scan *s, uint64_t *out); /* digits only */
d9d_status d9di_json_scan_skip(d9di_json_scan *s);               /* any value */
d9d_status d9di_json_scan_end(d9di_json_scan *s);                /* only white space is left */

#endif /* D9DI_CKPT_SAFETENSORS_JSON_SCAN_H */
