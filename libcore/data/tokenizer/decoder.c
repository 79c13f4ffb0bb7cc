/* decoder.c - see decoder.h. */
#include "data/tokenizer/decoder.h"

#include <string.h>

#include "data/tokenizer/bpe.h"
#include "data/tokenizer/tokenizer_component.h"

/* --- parsing ----------------------------------------------------------------- */

static d9d_status add_replace(d9di_tokenizer_decoder *d, const char *from, const char *to)
{
    struct d9di_tokenizer_decoder_replace *r;

    D9D_TRY(D9D_VEC_PUSH(&d->replaces, (struct d9di_tokenizer_decoder_replace){{0}, {0}}));
    r = &d->replaces.data[d->replaces.len - 1];
    D9D_TRY(d9d_buf_append(&r->from, from, strlen(from)));
    return d9d_buf_append(&r->to, to, strlen(to));
}

/* The pre-tokeniser decides whether the byte alphabet is decoded. */
static d9d_status parse_bytelevel(const json_t *v, const char *where, void *into)
{
    (void)v;
    (void)where;
    (void)into;
    return D9D_OK;
}

static d9d_status parse_replace(const json_t *v, const char *where, void *into)
{
    const json_t *pattern = json_object_get(v, "pattern");
    const char *from, *to;

    if (json_object_get(pattern, "Regex"))
        return D9D_FAIL(D9D_ENOTSUP, "%s: pattern: Regex is not supported in a decoder", where);
    if (((d9di_tokenizer_decoder *)into)->fused)
        return D9D_FAIL(D9D_ENOTSUP, "%s: Replace is supported before Fuse, not behind it", where);
    D9D_TRY(d9d_json_get_str(pattern, where, "String", &from));
    D9D_TRY(d9d_json_get_str(v, where, "content", &to));
    if (*from == '\0')
        return D9D_FAIL(D9D_EFORMAT, "%s: pattern: String is empty", where);
    return add_replace(into, from, to);
}

static d9d_status parse_byte_fallback(const json_t *v, const char *where, void *into)
{
    (void)v;
    (void)where;
    ((d9di_tokenizer_decoder *)into)->byte_fallback = true;
    return D9D_OK;
}

static d9d_status parse_fuse(const json_t *v, const char *where, void *into)
{
    (void)v;
    (void)where;
    ((d9di_tokenizer_decoder *)into)->fused = true;
    return D9D_OK;
}

static d9d_status parse_strip(const json_t *v, const char *where, void *into)
{
    d9di_tokenizer_decoder *d = into;
    const char *content;
    int64_t start, stop;

    D9D_TRY(d9d_json_get_str(v, where, "content", &content));
    D9D_TRY(d9d_json_get_i64(v, where, "start", 0, INT32_MAX, &start));
    D9D_TRY(d9d_json_get_i64(v, where, "stop", 0, INT32_MAX, &stop));
    if (!d->fused || stop != 0 || strlen(content) != 1 || d->strip_count > 0)
        return D9D_FAIL(D9D_ENOTSUP,
                        "%s: Strip is supported once, behind Fuse, of one ASCII character at the "
                        "start",
                        where);
    d->strip = content[0];
    d->strip_count = (size_t)start;
    return D9D_OK;
}

static d9d_status parse_metaspace(const json_t *v, const char *where, void *into)
{
    const json_t *scheme = json_object_get(v, "prepend_scheme");
    d9di_tokenizer_decoder *d = into;
    const char *replacement;

    D9D_TRY(d9d_json_get_str(v, where, "replacement", &replacement));
    if (!json_is_string(scheme) || strcmp(json_string_value(scheme), "never") != 0) {
        d->strip = ' ';
        d->strip_count = 1;
    }
    return add_replace(d, replacement, " ");
}

static d9d_status parse_sequence(const json_t *v, const char *where, void *into);

static const d9di_tokenizer_component components[] = {
    {"ByteLevel", "add_prefix_space trim_offsets use_regex", parse_bytelevel},
    {"Replace", "pattern content", parse_replace},
    {"ByteFallback", "", parse_byte_fallback},
    {"Fuse", "", parse_fuse},
    {"Strip", "content start stop", parse_strip},
    {"Metaspace", "replacement add_prefix_space prepend_scheme split str_rep", parse_metaspace},
    {"Sequence", "decoders", parse_sequence},
    {NULL, NULL, NULL},
};

static d9d_status parse_sequence(const json_t *v, const char *where, void *into)
{
    return d9di_tokenizer_component_parse_sequence(components, v, where, "decoders", into);
}

d9d_status d9di_tokenizer_decoder_parse(const json_t *v, const char *where,
                                        d9di_tokenizer_decoder *out)
{
    out->joins = !v || json_is_null(v);
    return out->joins ? D9D_OK : d9di_tokenizer_component_parse(components, v, where, out);
}

void d9di_tokenizer_decoder_release(d9di_tokenizer_decoder *d)
{
    for (size_t i = 0; i < d->replaces.len; i++) {
        d9d_buf_release(&d->replaces.data[i].from);
        d9d_buf_release(&d->replaces.data[i].to);
    }
    D9D_VEC_RELEASE(&d->replaces);
}

/* --- decoding ------------------------------------------------------------------ */

/* Applies r to out[from, len). */
static d9d_status apply_replace(const struct d9di_tokenizer_decoder_replace *r, size_t from,
                                d9d_buf *out)
{
    d9d_buf old = {0};
    d9d_status st;
    size_t i = 0;

    D9D_TRY_OR(st, d9d_buf_append(&old, out->data + from, out->len - from), out);
    out->len = from;
    while (i < old.len) {
        const bool here =
            old.len - i >= r->from.len && memcmp(old.data + i, r->from.data, r->from.len) == 0;

        D9D_TRY_OR(st,
                   here ? d9d_buf_append(out, r->to.data, r->to.len)
                        : d9d_buf_append(out, old.data + i, 1),
                   out);
        i += here ? r->from.len : 1;
    }
out:
    d9d_buf_release(&old);
    return st;
}

d9d_status d9di_tokenizer_decoder_apply(const d9di_tokenizer_decoder *d, const char *text, size_t n,
                                        d9d_buf *out)
{
    const size_t from = out->len;
    unsigned char byte;

    if (d->byte_fallback && d9di_bpe_fallback_byte(text, n, &byte))
        return d9d_buf_append(out, &byte, 1);
    D9D_TRY(d9d_buf_append(out, text, n));
    for (size_t i = 0; i < d->replaces.len; i++)
        D9D_TRY(apply_replace(&d->replaces.data[i], from, out));
    return D9D_OK;
}
