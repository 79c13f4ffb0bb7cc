/* packer.c - see packer.h. */
#include "data/build/packer.h"

#include <stdlib.h>
#include <string.h>

#include "data/io/jsonl.h"

#define NONE UINT32_MAX
enum { WINDOW_FIELD_BYTES = 64 << 20 }; /* of fields, at which the window is full */

/* Concatenated documents. */
struct token_run {
    d9d_token_ids tokens;
    d9di_token_labels labels; /* one per token, or none */
    D9D_VEC(uint32_t) segments;
    d9d_buf fields;
    D9D_VEC(size_t) field_bytes; /* of each segment */
    uint32_t key;                /* key of the sample */
};

/* Documents of a window.  Ids take two bytes if that is enough, since they are most of a packer's
 * memory. */
struct window {
    D9D_VEC(uint16_t) narrow;
    struct token_run wide; /* four-byte ids; holds the labels in either case */
    d9d_token_ids one;     /* one narrow document, widened for output */
};

struct document {
    size_t offset;
    size_t fields, fields_bytes; /* range in the window's fields */
    uint32_t key, n, length, bin;
    uint32_t first_part, n_parts; /* of the window's list */
    uint32_t next;                /* next document of the same sample */
};

/* A sample being filled (bin packing). */
struct bin {
    uint32_t space;
    uint32_t other; /* next bin with the same free space */
    uint32_t first; /* first document */
};

struct d9di_packer {
    d9di_shard_unit *unit; /* NULL: samples are only counted */
    size_t split;
    d9di_packer_opts opts;
    struct window window;
    size_t window_tokens; /* tokens of all documents in the window */
    D9D_VEC(struct document) docs;
    D9D_VEC(uint32_t) parts; /* of the documents of the window */
    D9D_VEC(struct bin) bins;
    uint32_t *bin_by_space; /* [size + 1] a bin with this free space, or NONE */
    uint64_t *has_space;    /* [words] one bit per free space that some bin has */
    size_t words;
    struct token_run sample;
    d9d_buf part;    /* fields of a part of a document */
    int64_t filled;  /* concat mode: positions of the current sample */
    int64_t samples; /* samples so far */
};

d9d_status d9di_packer_create(d9di_shard_unit *unit, size_t split, const d9di_packer_opts *opts,
                              d9di_packer **out)
{
    const size_t n_spaces = (size_t)opts->size + 1;
    d9di_packer *p = calloc(1, sizeof(*p));

    if (p) {
        p->words = n_spaces / 64 + 1;
        p->bin_by_space = malloc(n_spaces * sizeof(*p->bin_by_space));
        p->has_space = malloc(p->words * sizeof(*p->has_space));
    }
    if (!p || !p->bin_by_space || !p->has_space) {
        d9di_packer_free(p);
        return D9D_FAIL(D9D_ENOMEM, "no memory to pack with");
    }
    p->unit = unit;
    p->split = split;
    p->opts = *opts;
    *out = p;
    return D9D_OK;
}

static void token_run_release(struct token_run *r)
{
    D9D_VEC_RELEASE(&r->tokens);
    D9D_VEC_RELEASE(&r->labels);
    D9D_VEC_RELEASE(&r->segments);
    d9d_buf_release(&r->fields);
    D9D_VEC_RELEASE(&r->field_bytes);
}

void d9di_packer_free(d9di_packer *p)
{
    if (!p)
        return;
    D9D_VEC_RELEASE(&p->window.narrow);
    D9D_VEC_RELEASE(&p->window.one);
    token_run_release(&p->window.wide);
    token_run_release(&p->sample);
    d9d_buf_release(&p->part);
    D9D_VEC_RELEASE(&p->docs);
    D9D_VEC_RELEASE(&p->parts);
    D9D_VEC_RELEASE(&p->bins);
    free(p->bin_by_space);
    free(p->has_space);
    free(p);
}

/* --- samples ------------------------------------------------------------------------------- */

static d9d_status append_labels(struct token_run *r, const int32_t *labels, size_t n)
{
    if (!labels)
        return D9D_OK;
    D9D_TRY(D9D_VEC_RESERVE(&r->labels, n));
    memcpy(r->labels.data + r->labels.len, labels, n * sizeof(*labels));
    r->labels.len += n;
    return D9D_OK;
}

/* Appends labels and fields. */
static d9d_status append_others(struct token_run *r, const d9di_shard_document *d)
{
    if (d->fields_bytes > 0)
        D9D_TRY(d9d_buf_append(&r->fields, d->fields, d->fields_bytes));
    return append_labels(r, d->labels, d->n);
}

/* Does nothing when only samples are counted. */
static d9d_status append_document(struct token_run *r, const d9di_shard_document *d)
{
    if (!d->tokens)
        return D9D_OK;
    D9D_TRY(D9D_VEC_RESERVE(&r->tokens, d->n));
    memcpy(r->tokens.data + r->tokens.len, d->tokens, d->n * sizeof(*d->tokens));
    r->tokens.len += d->n;
    return append_others(r, d);
}

static d9d_status write_sample(d9di_packer *p)
{
    struct token_run *s = &p->sample;
    d9d_status st = D9D_OK;

    if (p->unit)
        st = d9di_shard_unit_add(
            p->unit, &(d9di_shard_sample){.split = p->split,
                                          .key = s->key,
                                          .all = {.tokens = s->tokens.data,
                                                  .labels = s->labels.len ? s->labels.data : NULL,
                                                  .n = s->tokens.len,
                                                  .fields = s->fields.data,
                                                  .fields_bytes = s->fields.len},
                                          .segments = s->segments.data,
                                          .fields = s->field_bytes.data,
                                          .n_segments = s->segments.len});
    p->samples++;
    s->tokens.len = s->labels.len = s->segments.len = s->fields.len = s->field_bytes.len = 0;
    p->filled = 0;
    return st;
}

/* Fields are of the first segment. */
static d9d_status add_segments(d9di_packer *p, uint32_t key, const d9di_shard_document *d)
{
    const uint32_t all = (uint32_t)d->n, *part = d->n_parts > 0 ? d->part : &all;
    const size_t n = d->n_parts > 0 ? d->n_parts : 1;

    if (p->sample.segments.len == 0)
        p->sample.key = key;
    D9D_TRY(append_document(&p->sample, d));
    for (size_t i = 0; i < n; i++) {
        D9D_TRY(D9D_VEC_PUSH(&p->sample.field_bytes, i == 0 ? d->fields_bytes : 0));
        D9D_TRY(D9D_VEC_PUSH(&p->sample.segments, part[i]));
    }
    return D9D_OK;
}

/* n tokens of a document from token `at` on, whose fields are of `whole` tokens.  Valid until the
 * next call. */
static d9d_status cut_document(d9di_packer *p, const d9di_shard_document *d, size_t whole,
                               size_t at, size_t n, d9di_shard_document *out)
{
    *out = (d9di_shard_document){.tokens = d->tokens ? d->tokens + at : NULL,
                                 .labels = d->labels ? d->labels + at : NULL,
                                 .n = n};
    if (d->fields_bytes == 0)
        return D9D_OK;
    p->part.len = 0;
    D9D_TRY(d9di_field_slice(p->opts.fields, d->fields, d->fields_bytes, (int64_t)whole,
                             (int64_t)at, (int64_t)n, &p->part));
    out->fields = p->part.data;
    out->fields_bytes = p->part.len;
    return D9D_OK;
}

/* --- concat -------------------------------------------------------------------------------- */

static d9d_status concatenate(d9di_packer *p, uint32_t key, const d9di_shard_document *d,
                              int64_t length)
{
    const size_t extra = d->labels ? 0 : 1; /* the last target is a token of its own */
    d9di_shard_document part;
    int64_t at = 0;

    while (at < length) {
        const int64_t space = p->opts.size - p->filled;
        const int64_t n = length - at < space ? length - at : space;

        D9D_TRY(cut_document(p, d, d->n, (size_t)at, (size_t)n + extra, &part));
        D9D_TRY(add_segments(p, key, &part));
        p->filled += n;
        at += n;
        if (p->filled == p->opts.size)
            D9D_TRY(write_sample(p));
    }
    return D9D_OK;
}

/* --- best fit ------------------------------------------------------------------------------ */

/* The least free space >= length of any bin; size + 1 if there is none. */
static size_t find_space(const d9di_packer *p, uint32_t length)
{
    size_t w = length / 64;
    uint64_t bits = p->has_space[w] & (UINT64_MAX << (length % 64));

    while (bits == 0 && ++w < p->words)
        bits = p->has_space[w];
    return bits ? w * 64 + (size_t)__builtin_ctzll(bits) : (size_t)p->opts.size + 1;
}

static void add_bin(d9di_packer *p, uint32_t bin)
{
    struct bin *b = &p->bins.data[bin];
    uint64_t *word = &p->has_space[b->space / 64], bit = UINT64_C(1) << (b->space % 64);

    b->other = *word & bit ? p->bin_by_space[b->space] : NONE;
    p->bin_by_space[b->space] = bin;
    *word |= bit;
}

static uint32_t remove_bin(d9di_packer *p, size_t space)
{
    const uint32_t bin = p->bin_by_space[space];

    p->bin_by_space[space] = p->bins.data[bin].other;
    if (p->bin_by_space[space] == NONE)
        p->has_space[space / 64] &= ~(UINT64_C(1) << (space % 64));
    return bin;
}

static d9d_status place_document(d9di_packer *p, struct document *d)
{
    const size_t space = find_space(p, d->length);

    if (space <= (size_t)p->opts.size) {
        d->bin = remove_bin(p, space);
    } else {
        d->bin = (uint32_t)p->bins.len;
        D9D_TRY(D9D_VEC_PUSH(&p->bins, (struct bin){(uint32_t)p->opts.size, NONE, NONE}));
    }
    p->bins.data[d->bin].space -= d->length;
    add_bin(p, d->bin);
    return D9D_OK;
}

struct by_length {
    uint32_t length, doc;
};

static int compare_lengths(const void *pa, const void *pb)
{
    const struct by_length *a = pa, *b = pb;

    if (a->length != b->length)
        return a->length > b->length ? -1 : 1;
    return a->doc < b->doc ? -1 : 1;
}

static d9d_status place_documents(d9di_packer *p)
{
    struct by_length *order = malloc((p->docs.len + 1) * sizeof(*order));
    d9d_status st = D9D_OK;
    size_t i;

    if (!order)
        return D9D_FAIL(D9D_ENOMEM, "no memory to pack %zu documents", p->docs.len);
    for (i = 0; i < p->docs.len; i++)
        order[i] = (struct by_length){p->docs.data[i].length, (uint32_t)i};
    qsort(order, p->docs.len, sizeof(*order), compare_lengths);
    p->bins.len = 0;
    memset(p->has_space, 0, p->words * sizeof(*p->has_space));
    for (i = 0; i < p->docs.len && st == D9D_OK; i++)
        st = place_document(p, &p->docs.data[order[i].doc]);
    free(order);
    return st;
}

static d9d_status window_add(d9di_packer *p, const d9di_shard_document *d)
{
    struct window *w = &p->window;

    p->window_tokens += d->n;
    if (p->opts.wide || !d->tokens)
        return append_document(&w->wide, d);
    D9D_TRY(D9D_VEC_RESERVE(&w->narrow, d->n));
    for (size_t i = 0; i < d->n; i++)
        w->narrow.data[w->narrow.len++] = (uint16_t)d->tokens[i];
    return append_others(&w->wide, d);
}

static d9d_status window_get(d9di_packer *p, const struct document *d, const uint32_t **tokens)
{
    struct window *w = &p->window;

    if (!p->unit)
        return D9D_OK;
    if (p->opts.wide) {
        *tokens = w->wide.tokens.data + d->offset;
        return D9D_OK;
    }
    w->one.len = 0;
    D9D_TRY(D9D_VEC_RESERVE(&w->one, d->n));
    for (size_t i = 0; i < d->n; i++)
        w->one.data[i] = w->narrow.data[d->offset + i];
    *tokens = w->one.data;
    return D9D_OK;
}

static void window_clear(d9di_packer *p)
{
    p->docs.len = p->parts.len = p->window_tokens = p->window.narrow.len = 0;
    p->window.wide.tokens.len = p->window.wide.labels.len = p->window.wide.fields.len = 0;
}

/* Writes the sample that begins with the document. */
static d9d_status write_bin(d9di_packer *p, uint32_t doc)
{
    const d9di_token_labels *labels = &p->window.wide.labels;

    for (; doc != NONE; doc = p->docs.data[doc].next) {
        const struct document *d = &p->docs.data[doc];
        d9di_shard_document whole = {.labels = labels->len ? labels->data + d->offset : NULL,
                                     .n = d->n,
                                     .fields_bytes = d->fields_bytes,
                                     .part = p->parts.data + d->first_part,
                                     .n_parts = d->n_parts};

        if (d->fields_bytes > 0)
            whole.fields = p->window.wide.fields.data + d->fields;
        D9D_TRY(window_get(p, d, &whole.tokens));
        D9D_TRY(add_segments(p, d->key, &whole));
    }
    return write_sample(p);
}

static d9d_status pack_window(d9di_packer *p)
{
    size_t i;

    D9D_TRY(place_documents(p));
    for (i = p->docs.len; i-- > 0;) {
        struct document *d = &p->docs.data[i];

        d->next = p->bins.data[d->bin].first;
        p->bins.data[d->bin].first = (uint32_t)i;
    }
    for (i = 0; i < p->docs.len; i++)
        if (p->bins.data[p->docs.data[i].bin].first == i)
            D9D_TRY(write_bin(p, (uint32_t)i));
    window_clear(p);
    return D9D_OK;
}

/* --- both modes
 * ------------------------------------------------------------------------------------
 */

d9d_status d9di_packer_add(d9di_packer *p, uint32_t key, const d9di_shard_document *d,
                           int64_t length)
{
    if (p->opts.size == 0) {
        D9D_TRY(add_segments(p, key, d));
        return write_sample(p);
    }
    if (p->opts.mode == D9D_SHARD_PACK_CONCAT)
        return concatenate(p, key, d, length);
    D9D_TRY(D9D_VEC_PUSH(&p->docs, (struct document){.offset = p->window_tokens,
                                                     .fields = p->window.wide.fields.len,
                                                     .fields_bytes = d->fields_bytes,
                                                     .key = key,
                                                     .n = (uint32_t)d->n,
                                                     .length = (uint32_t)length,
                                                     .first_part = (uint32_t)p->parts.len,
                                                     .n_parts = (uint32_t)d->n_parts}));
    for (size_t i = 0; i < d->n_parts; i++)
        D9D_TRY(D9D_VEC_PUSH(&p->parts, d->part[i]));
    D9D_TRY(window_add(p, d));
    return p->docs.len >= p->opts.window || p->window_tokens >= p->opts.window_tokens ||
                   p->window.wide.fields.len >= WINDOW_FIELD_BYTES
               ? pack_window(p)
               : D9D_OK;
}

d9d_status d9di_packer_add_part(d9di_packer *p, uint32_t key, const d9di_shard_document *d,
                                size_t whole, size_t at, size_t n, int64_t length)
{
    d9di_shard_document part;
    d9d_buf fields = {0};
    d9d_status st;

    if (at == 0 && n == whole)
        return d9di_packer_add(p, key, d, length);
    D9D_TRY(cut_document(p, d, whole, at, n, &part));
    fields = p->part; /* adding may cut again */
    p->part = (d9d_buf){0};
    st = d9di_packer_add(p, key, &part, length);
    d9d_buf_release(&fields);
    return st;
}

d9d_status d9di_packer_flush(d9di_packer *p)
{
    if (p->docs.len > 0)
        D9D_TRY(pack_window(p));
    return p->sample.segments.len > 0 ? write_sample(p) : D9D_OK;
}

int64_t d9di_packer_samples(const d9di_packer *p)
{
    return p->samples;
}
