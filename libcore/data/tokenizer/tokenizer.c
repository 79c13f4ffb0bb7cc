/* tokenizer.c - encodes a text: the pipeline of components. */
#include "d9d/data/tokenizer/tokenizer.h"

#include <stdlib.h>
#include <string.h>

#include "data/tokenizer/tokenizer_parts.h"
#include "data/tokenizer/tokenizer_private.h"

struct d9d_tokenizer_scratch {
    d9di_split_pattern_matcher *matcher;
    d9di_normalizer_scratch normalizer;
    d9di_pretok_scratch pretok;
    const d9di_tokenizer_model_kind *kind;
    void *model; /* the scratch of that kind */
};

/* --- encoding ----------------------------------------------------------------------- */

d9d_status d9d_tokenizer_scratch_create(const d9d_tokenizer *tok, d9d_tokenizer_scratch **out)
{
    d9d_tokenizer_scratch *s = calloc(1, sizeof(*s));
    d9d_status st;

    if (!s)
        return D9D_FAIL(D9D_ENOMEM, "no memory to tokenise with");
    D9D_TRY_OR(st, d9di_split_pattern_matcher_create(&s->matcher), out);
    s->kind = tok->model.kind;
    D9D_TRY_OR(st, tok->model.kind->scratch_create(&s->model), out);
    s->normalizer.matcher = s->pretok.matcher = s->matcher;
    *out = s;
    s = NULL;
out:
    d9d_tokenizer_scratch_free(s);
    return st;
}

void d9d_tokenizer_scratch_free(d9d_tokenizer_scratch *s)
{
    if (!s)
        return;
    d9di_normalizer_scratch_release(&s->normalizer);
    d9di_pretok_scratch_release(&s->pretok);
    if (s->kind)
        s->kind->scratch_free(s->model);
    d9di_split_pattern_matcher_free(s->matcher);
    free(s);
}

struct encoding {
    const d9d_tokenizer *tok;
    d9d_tokenizer_scratch *s;
    d9d_token_ids *out;
    const char *raw;        /* start of the whole text */
    const char *normalized; /* the start of the text after normalisation; NULL: it was dropped, or
                             * another stretch is being encoded */
    struct tracing *trace;  /* NULL: alignments are not tracked */
};

/* Alignment state for a text with origins. */
struct tracing {
    const char *is_data;
    d9di_alignments *spans;
    const char *raw_done; /* end of the last raw stretch or token */
    const char *stretch, *text,
        *done; /* a raw stretch, its normalised text, and the processed part of that */
};

/* The raw bytes that text[0, n), n > 0, comes from; it is part of the normalised stretch or of the
 * pre-tokeniser's rewrite. */
static d9di_alignment raw_range(const struct encoding *e, const char *text, size_t n)
{
    const d9di_pretok_scratch *p = &e->s->pretok;
    const d9di_alignment *normal = e->s->normalizer.input;
    const size_t base = (size_t)(e->trace->stretch - e->raw);
    const uintptr_t at = (uintptr_t)text - (uintptr_t)p->prefixed.data;
    size_t from, to;

    if (at < p->alignments.len) {
        const d9di_alignment *o = p->alignments.data + at;

        from = (size_t)(p->rewritten - e->trace->text) + o[0].from;
        to = (size_t)(p->rewritten - e->trace->text) + o[n - 1].to;
    } else {
        from = (size_t)(text - e->trace->text);
        to = from + n;
    }
    return (d9di_alignment){(uint32_t)(base + (normal ? normal[from].from : from)),
                            (uint32_t)(base + (normal ? normal[to - 1].to : to))};
}

static d9d_status encode_pretokens(void *arg, const d9di_pretoken *pretokens, size_t n,
                                   const char *end)
{
    const struct encoding *e = arg;
    const d9di_tokenizer_model *m = &e->tok->model;

    return m->kind->encode(m->of_kind, e->s->model, pretokens, n, end, e->out, NULL);
}

/* Encodes pre-tokens one by one; what their ids stand for becomes bytes of the raw text. */
static d9d_status encode_traced(void *arg, const d9di_pretoken *pretokens, size_t n,
                                const char *end)
{
    const struct encoding *e = arg;
    const d9di_tokenizer_model *m = &e->tok->model;
    d9di_alignments *spans = e->trace->spans;

    for (size_t i = 0; i < n; i++) {
        const size_t before = spans->len;

        D9D_TRY(m->kind->encode(m->of_kind, e->s->model, &pretokens[i], 1, end, e->out, spans));
        for (size_t k = before; k < spans->len; k++) {
            const d9di_alignment in = spans->data[k];

            spans->data[k] = raw_range(e, pretokens[i].text + in.from, in.to - in.from);
        }
    }
    return D9D_OK;
}

/* Appends an added token between `done` and `end`. */
static d9d_status push_added_token(const struct encoding *e, uint32_t id, d9di_alignment span)
{
    D9D_TRY(D9D_VEC_PUSH(e->out, id));
    return e->trace ? D9D_VEC_PUSH(e->trace->spans, span) : D9D_OK;
}

static d9d_status encode_normalized(void *arg, const d9di_added_tokens_entry *token,
                                    const char *text, size_t n)
{
    const struct encoding *e = arg;
    const char *done = e->trace ? e->trace->done : NULL;

    if (e->trace)
        e->trace->done = text + n;
    if (token)
        return push_added_token(e, token->id,
                                done ? raw_range(e, done, (size_t)(text - done))
                                     : (d9di_alignment){0, 0});
    return d9di_pretok_run(e->tok->pretok, &e->s->pretok, text, n, text == e->normalized,
                           e->trace ? encode_traced : encode_pretokens, arg);
}

static bool is_word_byte(char c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_';
}

/* True if none of the bytes that make a special token what it is was written by a user. */
static bool is_of_template(const struct encoding *e, d9di_alignment bytes)
{
    for (uint32_t i = bytes.from; i < bytes.to; i++)
        if (e->trace->is_data[i] && !is_word_byte(e->raw[i]))
            return false;
    return bytes.from == bytes.to || !e->trace->is_data[bytes.from] ||
           !e->trace->is_data[bytes.to - 1];
}

static bool may_match_raw(const void *arg, const d9di_added_tokens_entry *token, const char *text,
                          size_t n)
{
    const struct encoding *e = arg;
    const size_t at = (size_t)(text - e->raw);

    return !token->special || is_of_template(e, (d9di_alignment){(uint32_t)at, (uint32_t)(at + n)});
}

static bool may_match_normalized(const void *arg, const d9di_added_tokens_entry *token,
                                 const char *text, size_t n)
{
    const struct encoding *e = arg;

    return !token->special || is_of_template(e, raw_range(e, text, n));
}

/* NULL: every token may match. */
static d9di_added_tokens_filter filter_of(const struct encoding *e, d9di_added_tokens_filter f)
{
    return e->trace != NULL && e->trace->is_data != NULL ? f : NULL;
}

static d9d_status encode_raw(void *arg, const d9di_added_tokens_entry *token, const char *text,
                             size_t n)
{
    struct encoding *e = arg;
    struct tracing *t = e->trace;
    const bool first = text == e->raw;
    const char *done = t ? t->raw_done : NULL;

    if (t)
        t->raw_done = text + n;
    if (token)
        return push_added_token(
            e, token->id,
            done ? (d9di_alignment){(uint32_t)(done - e->raw), (uint32_t)(text - e->raw)}
                 : (d9di_alignment){0, 0});
    if (t)
        t->stretch = text;
    D9D_TRY(d9di_normalizer_apply(e->tok->normalizer, &e->s->normalizer, text, n, &text, &n));
    e->normalized = first && !e->s->normalizer.starts_later ? text : NULL;
    if (t)
        t->text = t->done = text;
    return d9di_added_tokens_split(&e->tok->normalized, text, n, filter_of(e, may_match_normalized),
                                   encode_normalized, arg);
}

static d9d_status encode_text(struct encoding *e, size_t n)
{
    const size_t before = e->out->len, valid = d9d_utf8_valid_up_to(e->raw, n);
    d9d_status st;

    if (valid != n)
        return D9D_FAIL(D9D_EFORMAT, "byte %zu (0x%02x) is not valid UTF-8", valid,
                        (unsigned char)e->raw[valid]);
    st = d9di_added_tokens_split(&e->tok->raw, e->raw, n, filter_of(e, may_match_raw), encode_raw,
                                 e);
    if (st != D9D_OK)
        e->out->len = before;
    return st;
}

d9d_status d9d_tokenizer_encode(const d9d_tokenizer *tok, d9d_tokenizer_scratch *s,
                                const char *text, size_t n, d9d_token_ids *out)
{
    struct encoding e = {.tok = tok, .s = s, .out = out, .raw = text};

    return encode_text(&e, n);
}

d9d_status d9di_tokenizer_encode_data(const d9d_tokenizer *tok, d9d_tokenizer_scratch *s,
                                      const char *text, size_t n, const char *is_data,
                                      d9d_token_ids *out, d9di_alignments *spans)
{
    struct tracing t = {.is_data = is_data, .spans = spans, .raw_done = text};
    struct encoding e = {.tok = tok, .s = s, .out = out, .raw = text, .trace = &t};
    d9d_status st;

    if (n >= UINT32_MAX)
        return D9D_FAIL(D9D_EFORMAT, "a text of %zu bytes; it must be below 4 GiB", n);
    s->normalizer.tracks_alignments = s->pretok.tracks_alignments = true;
    s->pretok.alignments.len = 0;
    st = encode_text(&e, n);
    s->normalizer.tracks_alignments = s->pretok.tracks_alignments = false;
    s->pretok.alignments.len = 0;
    return st;
}
