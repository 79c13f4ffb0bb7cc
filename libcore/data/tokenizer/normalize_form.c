/* normalize_form.c - the Unicode forms NFC, NFD, NFKC and NFKD, over utf8proc. */
#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>

#include "data/tokenizer/normalize_private.h"
#include "data/tokenizer/unicode_tables.h"
#include "data/tokenizer/utf8.h"

enum {
    MAX_PLAIN = 0x30000, /* few characters above are in use, and none is plain */
    MAX_DECOMPOSED = 32  /* characters; the longest decomposition has 18 */
};

/* --- Unicode forms -------------------------------------------------------- *
 *
 * A plain character is unchanged, is never the second part of a composition, and is never reordered
 * across.  So only runs of other characters are processed.  A run begins at the character before
 * the first non-plain one, which may compose with it, and ends before the next plain one.  Marks
 * are ordered by a counting sort on their combining class, so a million of them take linear time.
 */

static bool is_inert(uint32_t c)
{
    return d9di_unicode_in(d9di_unicode_inert, d9di_unicode_inert_n, c);
}

static uint8_t combining_class(int32_t c)
{
    return (uint8_t)utf8proc_get_property(c)->combining_class;
}

/* Stable sort by combining class of chars[from, to), all of them marks. */
static d9d_status sort_marks(d9di_normalizer_scratch *s, size_t from, size_t to)
{
    size_t at[257] = {0}, i;
    const size_t n = to - from;

    if (n < 2)
        return D9D_OK;
    s->marks.len = 0;
    D9D_TRY(D9D_VEC_RESERVE(&s->marks, n));
    memcpy(s->marks.data, s->chars.data + from, n * sizeof(*s->marks.data));
    for (i = 0; i < n; i++)
        at[combining_class(s->marks.data[i]) + 1]++;
    for (i = 0; i < 256; i++)
        at[i + 1] += at[i];
    for (i = 0; i < n; i++)
        s->chars.data[from + at[combining_class(s->marks.data[i])]++] = s->marks.data[i];
    return D9D_OK;
}

static d9d_status order_marks(d9di_normalizer_scratch *s)
{
    size_t i = 0;

    while (i < s->chars.len) {
        size_t end = i;

        while (end < s->chars.len && combining_class(s->chars.data[end]) != 0)
            end++;
        D9D_TRY(sort_marks(s, i, end));
        i = end + 1;
    }
    return D9D_OK;
}

static d9d_status append_chars(const d9di_normalizer_scratch *s, d9d_buf *out)
{
    size_t i;

    D9D_TRY(d9d_buf_reserve(out, s->chars.len * 4));
    for (i = 0; i < s->chars.len; i++)
        out->len += d9di_utf8_encode((uint32_t)s->chars.data[i], out->data + out->len);
    return D9D_OK;
}

static d9d_status normalize_run(const struct d9di_normalizer_step *step, d9di_normalizer_scratch *s,
                                const char *text, size_t n, d9d_buf *out)
{
    size_t i = 0;
    int bound = 0;

    s->chars.len = 0;
    while (i < n) {
        utf8proc_ssize_t k;
        unsigned w;
        const uint32_t c = d9di_utf8_decode(text + i, &w);

        D9D_TRY(D9D_VEC_RESERVE(&s->chars, MAX_DECOMPOSED));
        k = utf8proc_decompose_char((int32_t)c, s->chars.data + s->chars.len, MAX_DECOMPOSED,
                                    (utf8proc_option_t)step->form, &bound);
        if (k < 0 || k > MAX_DECOMPOSED)
            return D9D_FAIL(D9D_EFORMAT, "U+%04X cannot be decomposed: %s", c,
                            k < 0 ? utf8proc_errmsg(k) : "too long");
        s->chars.len += (size_t)k;
        i += w;
    }
    D9D_TRY(order_marks(s));
    if (step->form & UTF8PROC_COMPOSE) {
        const utf8proc_ssize_t k = utf8proc_normalize_utf32(
            s->chars.data, (utf8proc_ssize_t)s->chars.len, (utf8proc_option_t)step->form);

        if (k < 0)
            return D9D_FAIL(D9D_EFORMAT, "text cannot be composed: %s", utf8proc_errmsg(k));
        s->chars.len = (size_t)k;
    }
    return append_chars(s, out);
}

static inline bool is_plain(const struct d9di_normalizer_step *step, uint32_t c)
{
    return c < MAX_PLAIN && (step->plain[c / 64] >> c % 64 & 1);
}

/* The first non-plain character from `at` on; n if there is none. */
static size_t skip_plain(const struct d9di_normalizer_step *step, const char *text, size_t n,
                         size_t at)
{
    unsigned w;

    while (at < n) {
        at += d9di_utf8_ascii_prefix(text + at, n - at);
        if (at == n)
            break;
        do {
            if (!is_plain(step, d9di_utf8_decode(text + at, &w)))
                return at;
            at += w;
        } while (at < n && (unsigned char)text[at] >= 0x80);
    }
    return n;
}

static size_t skip_not_plain(const struct d9di_normalizer_step *step, const char *text, size_t n,
                             size_t at)
{
    unsigned w;

    while (at < n && !is_plain(step, d9di_utf8_decode(text + at, &w)))
        at += w;
    return at;
}

/* Records the alignment of the bytes written after out[0, before) for one run: byte by byte if the
 * run was normalised already, otherwise all from the whole run. */
static d9d_status trace_run(d9di_normalizer_scratch *s, const char *text, size_t from, size_t to,
                            const d9d_buf *out, size_t before)
{
    const size_t n = out->len - before;

    if (!s->tracks_alignments)
        return D9D_OK;
    if (n != to - from || memcmp(out->data + before, text + from, n) != 0)
        return d9di_normalizer_trace(s, n, from, to);
    for (size_t i = from; i < to; i++)
        D9D_TRY(d9di_normalizer_trace(s, 1, i, i + 1));
    return D9D_OK;
}

static d9d_status apply_form(const struct d9di_normalizer_step *step, d9di_normalizer_scratch *s,
                             const char *text, size_t n, d9d_buf *out, bool *changed)
{
    size_t done = 0, at = skip_plain(step, text, n, 0);

    *changed = at < n;
    while (at < n) {
        const size_t end = skip_not_plain(step, text, n, at);
        size_t from = at, before;
        unsigned w;

        if (at > done) {
            from = d9di_utf8_prev(text, at);
            if (is_inert(d9di_utf8_decode(text + from, &w))) /* composes with nothing */
                from = at;
        }
        D9D_TRY(d9di_normalizer_copy(s, text, done, from, out));
        before = out->len;
        D9D_TRY(normalize_run(step, s, text + from, end - from, out));
        D9D_TRY(trace_run(s, text, from, end, out, before));
        done = end;
        at = skip_plain(step, text, n, end);
    }
    return *changed ? d9di_normalizer_copy(s, text, done, n, out) : D9D_OK;
}

/* --- parsing ---------------------------------------------------------------- */

static void clear_plain(struct d9di_normalizer_step *step, uint32_t c)
{
    if (c < MAX_PLAIN)
        step->plain[c / 64] &= ~(UINT64_C(1) << c % 64);
}

/* Clears the plain bits that `c` rules out: its own if it is a mark or is written differently in
 * this form, and those of all but the first character of its decomposition. */
static void clear_not_plain(struct d9di_normalizer_step *step, uint32_t c)
{
    int32_t as[MAX_DECOMPOSED];
    utf8proc_ssize_t n, i;
    int bound = 0;

    if (is_inert(c))
        return;
    n = utf8proc_decompose_char((int32_t)c, as, MAX_DECOMPOSED,
                                UTF8PROC_STABLE | UTF8PROC_DECOMPOSE, &bound);
    for (i = 1; i < n && (step->form & UTF8PROC_COMPOSE); i++)
        clear_plain(step, (uint32_t)as[i]);
    n = utf8proc_decompose_char((int32_t)c, as, MAX_DECOMPOSED, (utf8proc_option_t)step->form,
                                &bound);
    if (n > 1 && (step->form & UTF8PROC_COMPOSE))
        n = utf8proc_normalize_utf32(as, n, (utf8proc_option_t)step->form);
    if (n != 1 || as[0] != (int32_t)c || combining_class((int32_t)c) != 0)
        clear_plain(step, c);
}

/* Hangul composes by rule: vowels and final consonants can be second parts. */
static const struct d9di_unicode_range hangul_seconds[] = {{0x1161, 0x1175}, {0x11a8, 0x11c2}};

static d9d_status compute_plain(struct d9di_normalizer_step *step, const char *where)
{
    uint32_t c;

    step->plain = malloc(MAX_PLAIN / 8);
    if (!step->plain)
        return D9D_FAIL(D9D_ENOMEM, "%s: no memory", where);
    memset(step->plain, 0xff, MAX_PLAIN / 8);
    for (c = 0x80; c < MAX_PLAIN; c++)
        if (c < 0xac00 || c >= 0xe000) /* Hangul syllables and surrogates */
            clear_not_plain(step, c);
        else if (!(step->form & UTF8PROC_COMPOSE))
            clear_plain(step, c);
    for (size_t i = 0; i < 2 && (step->form & UTF8PROC_COMPOSE); i++)
        for (c = hangul_seconds[i].first; c <= hangul_seconds[i].last; c++)
            clear_plain(step, c);
    return D9D_OK;
}

d9d_status d9di_normalizer_add_form(d9di_normalizer *nz, const char *where, const char *form)
{
    static const struct {
        const char *name;
        int form;
    } forms[] = {
        {"NFC", UTF8PROC_STABLE | UTF8PROC_COMPOSE},
        {"NFD", UTF8PROC_STABLE | UTF8PROC_DECOMPOSE},
        {"NFKC", UTF8PROC_STABLE | UTF8PROC_COMPOSE | UTF8PROC_COMPAT},
        {"NFKD", UTF8PROC_STABLE | UTF8PROC_DECOMPOSE | UTF8PROC_COMPAT},
    };
    size_t i = 0;

    while (strcmp(forms[i].name, form) != 0)
        i++;
    D9D_TRY(d9di_normalizer_add(
        nz, where, (struct d9di_normalizer_step){.apply = apply_form, .form = forms[i].form}));
    return compute_plain(&nz->steps.data[nz->steps.len - 1], where);
}

d9d_status d9di_normalizer_parse_form(const json_t *v, const char *where, void *into)
{
    return d9di_normalizer_add_form(into, where, json_string_value(json_object_get(v, "type")));
}
