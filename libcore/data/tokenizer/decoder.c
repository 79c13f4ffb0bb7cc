/* decoder.c - see decoder.h. */
#include "data/tokenizer/decoder.h"

#include <string.h>

#include "data/tokenizer/bytelevel.h"
#include "data/tokenizer/tokenizer_component.h"
#include "data/tokenizer/utf8.h"
#include "data/tokenizer/vocab.h"

typedef d9di_tokenizer_decoder_step decoder_step;

/* --- steps ------------------------------------------------------------------------------------ */

static bool begins_with(const char *text, size_t n, const char *with, size_t len)
{
    return n >= len && memcmp(text, with, len) == 0;
}

/* Appends text[0, n) with `to` for each `from`. */
static d9d_status append_replaced(const char *text, size_t n, const char *from, size_t from_n,
                                  const char *to, size_t to_n, d9d_buf *out)
{
    for (size_t i = 0; i < n;) {
        const bool here = begins_with(text + i, n - i, from, from_n);

        D9D_TRY(here ? d9d_buf_append(out, to, to_n) : d9d_buf_append(out, text + i, 1));
        i += here ? from_n : 1;
    }
    return D9D_OK;
}

static d9d_status apply_replace(const decoder_step *step, const char *text, size_t n,
                                unsigned place, d9d_buf *out)
{
    (void)place;
    return append_replaced(text, n, step->from.data, step->from.len, step->to.data, step->to.len,
                           out);
}

/* A text that is not spelled in the byte alphabet throughout stands for itself. */
static d9d_status apply_bytelevel(const decoder_step *step, const char *text, size_t n,
                                  unsigned place, d9d_buf *out)
{
    const size_t before = out->len;
    size_t i = 0;

    (void)step;
    (void)place;
    D9D_TRY(d9d_buf_reserve(out, n));
    while (i < n) {
        unsigned w;
        const int byte = d9di_bytelevel_byte(d9di_utf8_decode(text + i, &w));

        if (byte < 0) {
            out->len = before;
            return d9d_buf_append(out, text, n);
        }
        out->data[out->len++] = (char)byte;
        i += w;
    }
    return D9D_OK;
}

static d9d_status apply_byte_fallback(const decoder_step *step, const char *text, size_t n,
                                      unsigned place, d9d_buf *out)
{
    unsigned char byte;

    (void)step;
    (void)place;
    return d9di_vocab_is_byte(text, n, &byte) ? d9d_buf_append(out, &byte, 1)
                                              : d9d_buf_append(out, text, n);
}

/* Strips up to `start` and `stop` of a character. */
static d9d_status apply_strip(const decoder_step *step, const char *text, size_t n, unsigned place,
                              d9d_buf *out)
{
    const size_t w = step->from.len;
    size_t i;

    (void)place;
    for (i = 0; i < step->start && begins_with(text, n, step->from.data, w); i++) {
        text += w;
        n -= w;
    }
    for (i = 0; i < step->stop && n >= w && memcmp(text + n - w, step->from.data, w) == 0; i++)
        n -= w;
    return d9d_buf_append(out, text, n);
}

/* Spaces again, but none in the first token where one was prepended. */
static d9d_status apply_metaspace(const decoder_step *step, const char *text, size_t n,
                                  unsigned place, d9d_buf *out)
{
    const bool none = step->flag && (place & D9DI_TOKENIZER_DECODER_FIRST);

    return append_replaced(text, n, step->from.data, step->from.len, " ", none ? 0 : 1, out);
}

/* The suffix of the last token of a word is the space behind it. */
static d9d_status apply_bpe(const decoder_step *step, const char *text, size_t n, unsigned place,
                            d9d_buf *out)
{
    return append_replaced(text, n, step->from.data, step->from.len, " ",
                           place & D9DI_TOKENIZER_DECODER_LAST ? 0 : 1, out);
}

/* English as it was before it was split at punctuation. */
static d9d_status clean_up(size_t from, d9d_buf *text)
{
    static const struct {
        const char *from, *to;
    } pairs[] = {{" .", "."},   {" ?", "?"},     {" !", "!"},    {" ,", ","},
                 {" ' ", "'"},  {" n't", "n't"}, {" 'm", "'m"},  {" do not", " don't"},
                 {" 's", "'s"}, {" 've", "'ve"}, {" 're", "'re"}};
    d9d_buf old = {0};
    d9d_status st = D9D_OK;

    for (size_t i = 0; i < sizeof(pairs) / sizeof(pairs[0]); i++) {
        old.len = 0;
        D9D_TRY_OR(st, d9d_buf_append(&old, text->data + from, text->len - from), out);
        text->len = from;
        D9D_TRY_OR(st,
                   append_replaced(old.data, old.len, pairs[i].from, strlen(pairs[i].from),
                                   pairs[i].to, strlen(pairs[i].to), text),
                   out);
    }
out:
    d9d_buf_release(&old);
    return st;
}

/* A token with the prefix continues a word, another begins one. */
static d9d_status apply_wordpiece(const decoder_step *step, const char *text, size_t n,
                                  unsigned place, d9d_buf *out)
{
    const size_t from = out->len;

    if (!(place & D9DI_TOKENIZER_DECODER_FIRST)) {
        if (begins_with(text, n, step->from.data, step->from.len)) {
            text += step->from.len;
            n -= step->from.len;
        } else {
            D9D_TRY(d9d_buf_append(out, " ", 1));
        }
    }
    D9D_TRY(d9d_buf_append(out, text, n));
    return step->flag ? clean_up(from, out) : D9D_OK;
}

/* --- parsing ---------------------------------------------------------------------------------- */

static d9d_status add_step(d9di_tokenizer_decoder *d, decoder_step step, const char *from,
                           const char *to)
{
    decoder_step *added;

    D9D_TRY(D9D_VEC_PUSH(&d->steps, step));
    added = &d->steps.data[d->steps.len - 1];
    if (!d->fused)
        d->n_single = d->steps.len;
    D9D_TRY(d9d_buf_append(&added->from, from, strlen(from)));
    return d9d_buf_append(&added->to, to, strlen(to));
}

static d9d_status parse_fuse(const json_t *v, const char *where, void *into)
{
    (void)v;
    (void)where;
    ((d9di_tokenizer_decoder *)into)->fused = true;
    return D9D_OK;
}

static d9d_status parse_bytelevel(const json_t *v, const char *where, void *into)
{
    D9D_TRY(add_step(into, (decoder_step){.apply = apply_bytelevel}, "", ""));
    return parse_fuse(v, where, into);
}

static d9d_status parse_replace(const json_t *v, const char *where, void *into)
{
    const json_t *pattern = json_object_get(v, "pattern");
    const char *from, *to;

    if (json_object_get(pattern, "Regex"))
        return D9D_FAIL(D9D_ENOTSUP, "%s: pattern: Regex is not supported in a decoder", where);
    D9D_TRY(d9d_json_get_str(pattern, where, "String", &from));
    D9D_TRY(d9d_json_get_str(v, where, "content", &to));
    if (*from == '\0')
        return D9D_FAIL(D9D_EFORMAT, "%s: pattern: String is empty", where);
    return add_step(into, (decoder_step){.apply = apply_replace}, from, to);
}

static d9d_status parse_byte_fallback(const json_t *v, const char *where, void *into)
{
    (void)v;
    (void)where;
    return add_step(into, (decoder_step){.apply = apply_byte_fallback}, "", "");
}

static d9d_status check_char(const char *text, const char *where, const char *key)
{
    unsigned w;

    (void)d9di_utf8_decode(text, &w);
    if (strlen(text) != w)
        return D9D_FAIL(D9D_EFORMAT, "%s: %s: must be one character", where, key);
    return D9D_OK;
}

static d9d_status parse_strip(const json_t *v, const char *where, void *into)
{
    const char *content;
    int64_t start, stop;

    D9D_TRY(d9d_json_get_str(v, where, "content", &content));
    D9D_TRY(check_char(content, where, "content"));
    D9D_TRY(d9d_json_get_i64(v, where, "start", 0, INT32_MAX, &start));
    D9D_TRY(d9d_json_get_i64(v, where, "stop", 0, INT32_MAX, &stop));
    return add_step(
        into, (decoder_step){.apply = apply_strip, .start = (size_t)start, .stop = (size_t)stop},
        content, "");
}

static d9d_status parse_metaspace(const json_t *v, const char *where, void *into)
{
    const json_t *scheme = json_object_get(v, "prepend_scheme");
    const bool prepends =
        !json_is_string(scheme) || strcmp(json_string_value(scheme), "never") != 0;
    d9di_tokenizer_decoder *d = into;
    const char *replacement;

    D9D_TRY(d9d_json_get_str(v, where, "replacement", &replacement));
    D9D_TRY(check_char(replacement, where, "replacement"));
    d->by_place |= prepends;
    return add_step(d, (decoder_step){.apply = apply_metaspace, .flag = prepends}, replacement, "");
}

static d9d_status parse_bpe(const json_t *v, const char *where, void *into)
{
    d9di_tokenizer_decoder *d = into;
    const char *suffix;

    D9D_TRY(d9d_json_get_str(v, where, "suffix", &suffix));
    if (*suffix == '\0')
        return D9D_FAIL(D9D_ENOTSUP, "%s: suffix: is empty, which is not supported", where);
    d->by_place = true;
    return add_step(d, (decoder_step){.apply = apply_bpe}, suffix, "");
}

static d9d_status parse_wordpiece(const json_t *v, const char *where, void *into)
{
    d9di_tokenizer_decoder *d = into;
    const char *prefix;
    bool cleanup;

    D9D_TRY(d9d_json_get_str(v, where, "prefix", &prefix));
    D9D_TRY(d9di_tokenizer_component_get_flag(v, where, "cleanup", true, &cleanup));
    d->by_place = true;
    return add_step(d, (decoder_step){.apply = apply_wordpiece, .flag = cleanup}, prefix, "");
}

static d9d_status parse_sequence(const json_t *v, const char *where, void *into);

static const d9di_tokenizer_component components[] = {
    {"ByteLevel", "add_prefix_space trim_offsets use_regex", parse_bytelevel},
    {"Replace", "pattern content", parse_replace},
    {"ByteFallback", "", parse_byte_fallback},
    {"Fuse", "", parse_fuse},
    {"Strip", "content start stop", parse_strip},
    {"Metaspace", "replacement add_prefix_space prepend_scheme split str_rep", parse_metaspace},
    {"BPEDecoder", "suffix", parse_bpe},
    {"WordPiece", "prefix cleanup", parse_wordpiece},
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
    for (size_t i = 0; i < d->steps.len; i++) {
        d9d_buf_release(&d->steps.data[i].from);
        d9d_buf_release(&d->steps.data[i].to);
    }
    D9D_VEC_RELEASE(&d->steps);
}

/* --- decoding --------------------------------------------------------------------------------- */

/* Appends what steps [at, end) make of text[0, n). */
static d9d_status apply_steps(const d9di_tokenizer_decoder *d, size_t at, size_t end,
                              const char *text, size_t n, unsigned place, d9d_buf *out)
{
    d9d_buf buffers[2] = {{0}, {0}};
    d9d_status st = D9D_OK;

    if (at == end)
        return d9d_buf_append(out, text, n);
    for (; at < end; at++) {
        const decoder_step *step = &d->steps.data[at];
        d9d_buf *next = at + 1 < end ? &buffers[at % 2] : out;

        if (next != out)
            next->len = 0;
        D9D_TRY_OR(st, d9d_buf_reserve(next, 1), out);
        D9D_TRY_OR(st, step->apply(step, text, n, place, next), out);
        text = next->data;
        n = next->len;
    }
out:
    d9d_buf_release(&buffers[0]);
    d9d_buf_release(&buffers[1]);
    return st;
}

d9d_status d9di_tokenizer_decoder_apply(const d9di_tokenizer_decoder *d, const char *text, size_t n,
                                        unsigned place, d9d_buf *out)
{
    return apply_steps(d, 0, d->n_single, text, n, place, out);
}

d9d_status d9di_tokenizer_decoder_apply_fused(const d9di_tokenizer_decoder *d, size_t from,
                                              d9d_buf *text)
{
    d9d_buf fused = {0};
    d9d_status st;

    if (d->n_single == d->steps.len)
        return D9D_OK;
    D9D_TRY_OR(st, d9d_buf_append(&fused, text->data + from, text->len - from), out);
    text->len = from;
    st = apply_steps(d, d->n_single, d->steps.len, fused.data, fused.len,
                     D9DI_TOKENIZER_DECODER_FIRST | D9DI_TOKENIZER_DECODER_LAST, text);
out:
    d9d_buf_release(&fused);
    return st;
}
