/* normalize_chars.c - normalisers that treat each character by itself: Lowercase, StripAccents,
 * BertNormalizer, Nmt and ByteLevel. */
#include <string.h>

#include "data/tokenizer/bytelevel.h"
#include "data/tokenizer/normalize_private.h"
#include "data/tokenizer/tokenizer_component.h"
#include "data/tokenizer/unicode_tables.h"
#include "data/tokenizer/utf8.h"

/* --- Lowercase ---------------------------------------------------------------------- */

/* Lowercases each character without context. */
static d9d_status apply_lowercase(const struct d9di_normalizer_step *step,
                                  d9di_normalizer_scratch *s, const char *text, size_t n,
                                  d9d_buf *out, bool *changed)
{
    static const char dotted_i[] = "i\xcc\x87";
    size_t i = 0;

    (void)step;
    *changed = true;
    D9D_TRY(d9d_buf_reserve(out, n * 2)); /* two bytes become at most three */
    while (i < n) {
        unsigned w;
        const uint32_t c = d9di_utf8_decode(text + i, &w);
        const size_t before = out->len;

        if (c == 0x130)
            D9D_TRY(d9d_buf_append(out, dotted_i, sizeof(dotted_i) - 1));
        else
            out->len += d9di_utf8_encode(d9di_unicode_to_lower(c), out->data + out->len);
        if (s->tracks_alignments)
            D9D_TRY(d9di_normalizer_trace(s, out->len - before, i, i + w));
        i += w;
    }
    return D9D_OK;
}

d9d_status d9di_normalizer_add_lowercase(d9di_normalizer *nz, const char *where)
{
    return d9di_normalizer_add(nz, where, (struct d9di_normalizer_step){.apply = apply_lowercase});
}

d9d_status d9di_normalizer_parse_lowercase(const json_t *v, const char *where, void *into)
{
    (void)v;
    return d9di_normalizer_add_lowercase(into, where);
}

/* --- maps of characters ------------------------------------------------------------- */

/* Writes what the characters of text[at, n) become. */
static d9d_status write_mapped(const struct d9di_normalizer_step *step, d9di_normalizer_scratch *s,
                               const char *text, size_t n, size_t at, d9d_buf *out)
{
    D9D_TRY(d9d_buf_reserve(out, n - at + 4));
    while (at < n) {
        unsigned w, wrote = 0;
        const uint32_t c = step->map(d9di_utf8_decode(text + at, &w));

        if (c != D9DI_NORMALIZER_DROP)
            wrote = d9di_utf8_encode(c, out->data + out->len);
        s->starts_later |= out->len == 0 && at > 0 && wrote > 0;
        out->len += wrote;
        if (s->tracks_alignments)
            D9D_TRY(d9di_normalizer_trace(s, wrote, at, at + w));
        at += w;
    }
    return d9d_buf_append(out, "", 0);
}

/* No character becomes a wider one. */
static d9d_status apply_map(const struct d9di_normalizer_step *step, d9di_normalizer_scratch *s,
                            const char *text, size_t n, d9d_buf *out, bool *changed)
{
    size_t at = 0;
    unsigned w;

    while (at < n) {
        const uint32_t c = d9di_utf8_decode(text + at, &w);

        if (step->map(c) != c)
            break;
        at += w;
    }
    *changed = at < n;
    if (!*changed)
        return D9D_OK;
    D9D_TRY(d9di_normalizer_copy(s, text, 0, at, out));
    return write_mapped(step, s, text, n, at, out);
}

d9d_status d9di_normalizer_add_map(d9di_normalizer *nz, const char *where,
                                   uint32_t (*map)(uint32_t c))
{
    return d9di_normalizer_add(nz, where,
                               (struct d9di_normalizer_step){.apply = apply_map, .map = map});
}

static uint32_t map_accents(uint32_t c)
{
    return d9di_unicode_in(d9di_unicode_accent, d9di_unicode_accent_n, c) ? D9DI_NORMALIZER_DROP
                                                                          : c;
}

d9d_status d9di_normalizer_parse_strip_accents(const json_t *v, const char *where, void *into)
{
    (void)v;
    return d9di_normalizer_add_map(into, where, map_accents);
}

static uint32_t map_nmt(uint32_t c)
{
    if ((c >= 0x01 && c <= 0x08) || c == 0x0b || (c >= 0x0e && c <= 0x1f) || c == 0x7f ||
        c == 0x8f || c == 0x9f)
        return D9DI_NORMALIZER_DROP;
    return c == 0x09 || c == 0x0a || c == 0x0c || c == 0x0d || c == 0x1680 ||
                   (c >= 0x200b && c <= 0x200f) || c == 0x2028 || c == 0x2029 || c == 0x2581 ||
                   c == 0xfeff || c == 0xfffd
               ? ' '
               : c;
}

d9d_status d9di_normalizer_parse_nmt(const json_t *v, const char *where, void *into)
{
    (void)v;
    return d9di_normalizer_add_map(into, where, map_nmt);
}

/* --- BertNormalizer ----------------------------------------------------------------- */

static uint32_t map_clean(uint32_t c)
{
    if (c == 0 || c == 0xfffd || d9di_unicode_in(d9di_unicode_control, d9di_unicode_control_n, c))
        return D9DI_NORMALIZER_DROP;
    return d9di_unicode_space(c) ? ' ' : c;
}

static uint32_t map_nonspacing(uint32_t c)
{
    return d9di_unicode_in(d9di_unicode_nonspacing, d9di_unicode_nonspacing_n, c)
               ? D9DI_NORMALIZER_DROP
               : c;
}

/* Ideographs of Chinese, in the blocks that BERT's reference names. */
static bool is_chinese(uint32_t c)
{
    static const struct d9di_unicode_range blocks[] = {
        {0x3400, 0x4dbf},   {0x4e00, 0x9fff},   {0xf900, 0xfaff},   {0x20000, 0x2a6df},
        {0x2a700, 0x2b81f}, {0x2b920, 0x2ceaf}, {0x2f800, 0x2fa1f},
    };

    return d9di_unicode_in(blocks, sizeof(blocks) / sizeof(blocks[0]), c);
}

/* Puts spaces around Chinese characters. */
static d9d_status apply_chinese(const struct d9di_normalizer_step *step, d9di_normalizer_scratch *s,
                                const char *text, size_t n, d9d_buf *out, bool *changed)
{
    size_t done = 0, at = 0;

    *changed = false;
    while (at < n) {
        const size_t from = at;
        unsigned w;
        const uint32_t c = d9di_utf8_decode(text + at, &w);

        at += w;
        if (!is_chinese(c))
            continue;
        *changed = true;
        D9D_TRY(d9di_normalizer_copy(s, text, done, from, out));
        D9D_TRY(d9di_normalizer_replace(s, &step->content, from, at, out));
        D9D_TRY(d9di_normalizer_copy(s, text, from, at, out));
        D9D_TRY(d9di_normalizer_replace(s, &step->content, from, at, out));
        done = at;
    }
    return *changed ? d9di_normalizer_copy(s, text, done, n, out) : D9D_OK;
}

static d9d_status add_chinese(d9di_normalizer *nz, const char *where)
{
    D9D_TRY(d9di_normalizer_add(nz, where, (struct d9di_normalizer_step){.apply = apply_chinese}));
    return d9d_buf_append(&nz->steps.data[nz->steps.len - 1].content, " ", 1);
}

d9d_status d9di_normalizer_parse_bert(const json_t *v, const char *where, void *into)
{
    bool clean, chinese, accents, lower;

    D9D_TRY(d9di_tokenizer_component_get_flag(v, where, "clean_text", true, &clean));
    D9D_TRY(d9di_tokenizer_component_get_flag(v, where, "handle_chinese_chars", true, &chinese));
    D9D_TRY(d9di_tokenizer_component_get_flag(v, where, "lowercase", true, &lower));
    accents = lower;
    if (!json_is_null(json_object_get(v, "strip_accents")))
        D9D_TRY(d9di_tokenizer_component_get_flag(v, where, "strip_accents", lower, &accents));
    if (clean)
        D9D_TRY(d9di_normalizer_add_map(into, where, map_clean));
    if (chinese)
        D9D_TRY(add_chinese(into, where));
    if (accents) {
        D9D_TRY(d9di_normalizer_add_form(into, where, "NFD"));
        D9D_TRY(d9di_normalizer_add_map(into, where, map_nonspacing));
    }
    return lower ? d9di_normalizer_add_lowercase(into, where) : D9D_OK;
}

/* --- ByteLevel ---------------------------------------------------------------------- */

/* Spells each byte in the byte alphabet. */
static d9d_status apply_bytelevel(const struct d9di_normalizer_step *step,
                                  d9di_normalizer_scratch *s, const char *text, size_t n,
                                  d9d_buf *out, bool *changed)
{
    (void)step;
    *changed = n > 0;
    D9D_TRY(d9d_buf_reserve(out, 2 * n));
    for (size_t i = 0; i < n; i++) {
        const unsigned w =
            d9di_utf8_encode(d9di_bytelevel_char((unsigned char)text[i]), out->data + out->len);

        out->len += w;
        if (s->tracks_alignments)
            D9D_TRY(d9di_normalizer_trace(s, w, i, i + 1));
    }
    return D9D_OK;
}

d9d_status d9di_normalizer_parse_bytelevel(const json_t *v, const char *where, void *into)
{
    (void)v;
    return d9di_normalizer_add(into, where,
                               (struct d9di_normalizer_step){.apply = apply_bytelevel});
}
