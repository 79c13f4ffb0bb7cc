/* normalize_precompiled.c - the normaliser Precompiled: SentencePiece's replacements. */
#include <string.h>
#include <utf8proc.h>

#include "data/tokenizer/normalize_private.h"
#include "data/tokenizer/unicode_tables.h"
#include "data/tokenizer/utf8.h"

enum { MAX_CLUSTER = 6 }; /* shorter clusters are looked up whole */

/* The character at `text`; a combining mark for one that utf8proc does not know as such. */
static int32_t decode_known(const char *text, unsigned *w)
{
    const uint32_t c = d9di_utf8_decode(text, w);

    return d9di_unicode_in(d9di_unicode_extend, d9di_unicode_extend_n, c) ? 0x300 : (int32_t)c;
}

/* The end of the grapheme cluster that begins at text[at]. */
static size_t cluster_end(const char *text, size_t n, size_t at)
{
    utf8proc_int32_t state = 0;
    unsigned w;
    int32_t c = decode_known(text + at, &w);

    for (at += w; at < n; at += w) {
        const int32_t next = decode_known(text + at, &w);

        if (utf8proc_grapheme_break_stateful(c, next, &state))
            break;
        c = next;
    }
    return at;
}

/* True if text[at] is a cluster of its own that stays as it is; most of a text is. */
static inline bool is_plain(const d9di_charsmap *m, const char *text, size_t n, size_t at)
{
    const unsigned char c = (unsigned char)text[at];

    return c < 0x80 && !m->ascii[c] && (at + 1 == n || (unsigned char)text[at + 1] < 0x80) &&
           c != '\r';
}

static size_t skip_plain(const d9di_charsmap *m, const char *text, size_t n, size_t at)
{
    while (at < n && is_plain(m, text, n, at))
        at++;
    return at;
}

/* Writes the replacement of text[from, to); *done: there is one. */
static d9d_status write_replacement(const d9di_charsmap *m, d9di_normalizer_scratch *s,
                                    const char *text, size_t from, size_t to, d9d_buf *out,
                                    bool *done)
{
    const char *with = d9di_charsmap_find(m, text + from, to - from);
    const size_t len = with ? strlen(with) : 0;

    *done = with != NULL;
    if (!with)
        return D9D_OK;
    D9D_TRY(d9di_normalizer_trace(s, len, from, to));
    return d9d_buf_append(out, with, len);
}

/* Writes a cluster: replaced as a whole, or character by character. */
static d9d_status write_cluster(const d9di_charsmap *m, d9di_normalizer_scratch *s,
                                const char *text, size_t from, size_t to, d9d_buf *out,
                                bool *changed)
{
    bool done = false;

    if (to - from < MAX_CLUSTER)
        D9D_TRY(write_replacement(m, s, text, from, to, out, &done));
    *changed |= done;
    while (!done && from < to) {
        const size_t end = from + d9di_utf8_width((unsigned char)text[from]);
        bool replaced;

        D9D_TRY(write_replacement(m, s, text, from, end, out, &replaced));
        if (!replaced)
            D9D_TRY(d9di_normalizer_copy(s, text, from, end, out));
        *changed |= replaced;
        from = end;
    }
    return D9D_OK;
}

static d9d_status apply_precompiled(const struct d9di_normalizer_step *step,
                                    d9di_normalizer_scratch *s, const char *text, size_t n,
                                    d9d_buf *out, bool *changed)
{
    const d9di_charsmap *m = &step->charsmap;
    const bool starts_later =
        s->starts_later; /* what is deleted at the start does not count in HF */
    size_t at = 0;

    *changed = false;
    while (at < n) {
        const size_t plain_end = skip_plain(m, text, n, at);
        size_t end;

        D9D_TRY(d9di_normalizer_copy(s, text, at, plain_end, out));
        if ((at = plain_end) == n)
            break;
        end = cluster_end(text, n, at);
        D9D_TRY(write_cluster(m, s, text, at, end, out, changed));
        at = end;
    }
    s->starts_later = starts_later;
    return d9d_buf_append(out, "", 0);
}

d9d_status d9di_normalizer_parse_precompiled(const json_t *v, const char *where, void *into)
{
    d9di_normalizer *nz = into;
    const char *base64;

    D9D_TRY(d9d_json_get_str(v, where, "precompiled_charsmap", &base64));
    D9D_TRY(
        d9di_normalizer_add(nz, where, (struct d9di_normalizer_step){.apply = apply_precompiled}));
    return d9di_charsmap_init(base64, strlen(base64), where,
                              &nz->steps.data[nz->steps.len - 1].charsmap);
}
