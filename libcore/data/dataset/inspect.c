/* inspect.c - prints a dataset and its samples, as text and JSON. */
#include <stdio.h>
#include <stdlib.h>

#include "d9d/base/fs.h"
#include "d9d/base/json.h"
#include "d9d/base/num_format.h"
#include "d9d/data/tokenizer/tokenizer.h"
#include "data/dataset/dataset_private.h"
#include "data/tokenizer/utf8.h"

enum { BAR = 40 };

/* --- the dataset ----------------------------------------------------------------------------- */

static d9d_status print_lengths(const json_t *lengths, d9d_buf *out)
{
    json_int_t max_n = 1;
    size_t i;

    for (i = 0; i < json_array_size(lengths); i++)
        if (json_integer_value(json_array_get(lengths, i)) > max_n)
            max_n = json_integer_value(json_array_get(lengths, i));
    for (i = 0; i < json_array_size(lengths) && i < 31; i++) {
        const json_int_t n = json_integer_value(json_array_get(lengths, i));
        const int bar = (int)((double)n / (double)max_n * BAR + 0.5);

        D9D_TRY(d9d_buf_printf(out, "  %10lld - %-10lld %12lld  %.*s\n", 1LL << i, (2LL << i) - 1,
                               (long long)n, bar, "########################################"));
    }
    return D9D_OK;
}

d9d_status d9di_dataset_count_targets(d9d_dataset *ds, const d9di_dataset_split *split,
                                      int64_t *out)
{
    int64_t n = ds->manifest.labels ? 0 : split->positions;

    for (int64_t k = 0; ds->manifest.labels && k < split->samples; k++) {
        d9d_sample s;
        d9di_dataset_tokens t;

        D9D_TRY(d9di_dataset_sample(ds, split->first + k, &s));
        D9D_TRY(d9di_dataset_tokens_read(ds, &s, 0, s.stored, &t));
        for (uint32_t i = 0; i < s.stored; i++)
            n += t.labels[i] != -100;
        d9di_dataset_tokens_release(&t);
        D9D_TRY(d9di_sample_check_not_truncated(ds, &s));
    }
    *out = n;
    return D9D_OK;
}

/* Prints the number of trained positions, if not all are. */
static d9d_status print_targets(d9d_dataset *ds, const d9di_dataset_split *s, d9d_buf *out)
{
    int64_t n = 0;

    if (!ds->manifest.labels)
        return D9D_OK;
    D9D_TRY(d9di_dataset_count_targets(ds, s, &n));
    return d9d_buf_printf(out, "trained on %lld of %lld position%s (%.1f %%)\n", (long long)n,
                          (long long)s->positions, D9D_PLURAL(s->positions),
                          s->positions > 0 ? 100.0 * (double)n / (double)s->positions : 0.0);
}

static d9d_status print_split(d9d_dataset *ds, const d9di_dataset_split *s, d9d_buf *out)
{
    json_t *summary = NULL;
    const char *text;
    d9d_status st;
    size_t n;

    D9D_TRY(d9d_buf_printf(out, "\nsplit %s: %lld sample%s, %lld position%s, longest %lld\n",
                           s->name, (long long)s->samples, D9D_PLURAL(s->samples),
                           (long long)s->positions, D9D_PLURAL(s->positions),
                           (long long)s->longest));
    D9D_TRY(print_targets(ds, s, out));
    D9D_TRY(d9di_dataset_index_get_summary(ds->index, s->name, &text, &n));
    D9D_TRY(d9d_json_parse(ds->dir, text, n, &summary));
    st = print_lengths(json_object_get(summary, "lengths"), out);
    json_decref(summary);
    return st;
}

static const char *const specials[] = {
    [D9D_DATASET_SPECIAL_UNKNOWN] = "",
    [D9D_DATASET_SPECIAL_NONE] = ", no special tokens around texts",
    [D9D_DATASET_SPECIAL_ADDED] = ", its special tokens around texts",
};

d9d_status d9d_dataset_print(d9d_dataset *ds, d9d_buf *out)
{
    const d9di_dataset_manifest *m = &ds->manifest;
    char hex[D9D_HASH_HEX];
    size_t i;

    d9d_hash_hex(ds->hash, hex);
    D9D_TRY(d9d_buf_printf(
        out, "%s  %s\n%lld sample%s, %lld token%s in %u shard%s of %s, targets: %s\n", ds->dir, hex,
        (long long)m->samples, D9D_PLURAL(m->samples), (long long)m->tokens, D9D_PLURAL(m->tokens),
        m->n_shards, D9D_PLURAL(m->n_shards), m->wide ? "u32" : "u16",
        m->labels ? "labels" : "the next token"));
    d9d_hash_hex(m->tokenizer_hash, hex);
    D9D_TRY(d9d_buf_printf(out, "vocabulary %lld, tokenizer %s%s\n", (long long)m->vocab_size,
                           m->has_tokenizer ? hex : "none", specials[m->recipe.add_special]));
    if (m->recipe.pack)
        D9D_TRY(d9d_buf_printf(out, "packed to %lld position%s\n", (long long)m->recipe.pack,
                               D9D_PLURAL(m->recipe.pack)));
    D9D_TRY(d9di_dataset_print_fields(ds, out));
    for (i = 0; i < m->n_splits; i++)
        D9D_TRY(print_split(ds, &m->splits[i], out));
    return D9D_OK;
}

/* --- a sample --------------------------------------------------------------------------------- */

struct expanded {
    int32_t *ids, *labels, *positions;
};

/* Loads the tokenizer once; NULL if the dataset was made without one. */
static d9d_status load_tokenizer(d9d_dataset *ds)
{
    char *path = NULL;
    d9d_status st;

    if (!ds->manifest.has_tokenizer || ds->tokenizer)
        return D9D_OK;
    if (asprintf(&path, "%s/tokenizer.json", ds->dir) < 0)
        return D9D_FAIL(D9D_ENOMEM, "%s: no memory", ds->dir);
    st = d9d_dataset_check_tokenizer(ds, path);
    if (st == D9D_OK)
        st = d9d_tokenizer_load(path, &ds->tokenizer);
    free(path);
    return st;
}

d9d_status d9d_dataset_tokenizer(d9d_dataset *ds, const struct d9d_tokenizer **out)
{
    D9D_TRY(load_tokenizer(ds));
    *out = ds->tokenizer;
    return D9D_OK;
}

/* Appends bytes, with U+FFFD for each invalid byte. */
static d9d_status append_valid_utf8(const char *p, size_t n, d9d_buf *out)
{
    size_t at = 0;

    while (at < n) {
        const size_t good = d9d_utf8_valid_up_to(p + at, n - at);

        D9D_TRY(d9d_buf_append(out, p + at, good));
        at += good;
        if (at < n) {
            D9D_TRY(d9d_buf_append(out, "\xef\xbf\xbd", 3));
            at++;
        }
    }
    return D9D_OK;
}

/* Appends a token's text in quotes; part of a character becomes U+FFFD. */
static d9d_status append_token(const d9d_tokenizer *tok, uint32_t id, d9d_buf *scratch,
                               d9d_buf *out)
{
    d9d_buf text = {0};
    d9d_status st;

    scratch->len = 0;
    D9D_TRY(d9d_tokenizer_decode(tok, &id, 1, 0, scratch));
    st = append_valid_utf8(scratch->data, scratch->len, &text);
    if (st == D9D_OK)
        st = d9d_json_put_str(out, text.data ? text.data : "", text.len);
    d9d_buf_release(&text);
    return st;
}

static d9d_status print_table(const d9d_tokenizer *tok, const d9d_sample *s,
                              const struct expanded *x, d9d_buf *out)
{
    d9d_buf scratch = {0};
    d9d_status st = D9D_OK;
    int64_t i;

    D9D_TRY(d9d_buf_printf(out, "%10s %10s %10s  token\n", "position", "id", "target"));
    for (i = 0; i < s->length && st == D9D_OK; i++) {
        st = d9d_buf_printf(out, "%10d %10d %10d  ", x->positions[i], x->ids[i], x->labels[i]);
        if (st == D9D_OK && tok)
            st = append_token(tok, (uint32_t)x->ids[i], &scratch, out);
        if (st == D9D_OK)
            st = d9d_buf_append(out, "\n", 1);
    }
    d9d_buf_release(&scratch);
    return st;
}

static d9d_status print_json(const d9d_dataset *ds, const d9d_sample *s, const struct expanded *x,
                             d9d_buf *out)
{
    const struct {
        const char *name;
        const int32_t *v;
    } lists[] = {{"input_ids", x->ids}, {"labels", x->labels}, {"position_ids", x->positions}};
    size_t l;
    int64_t i;

    D9D_TRY(d9d_buf_printf(out,
                           "{\"sample\": %lld, \"length\": %lld, \"shard\": %u, \"offset\": %llu, "
                           "\"bucket\": %u, \"segments\": %u",
                           (long long)s->number, (long long)s->length, s->shard,
                           (unsigned long long)s->offset, s->bucket, s->n_segments));
    for (l = 0; l < 3; l++) {
        D9D_TRY(d9d_buf_printf(out, ", \"%s\": [", lists[l].name));
        for (i = 0; i < s->length; i++)
            D9D_TRY(d9d_buf_printf(out, "%s%d", i ? ", " : "", lists[l].v[i]));
        D9D_TRY(d9d_buf_append(out, "]", 1));
    }
    D9D_TRY(d9di_sample_print_fields(ds, s, true, out));
    return d9d_buf_append(out, "}\n", 2);
}

static d9d_status expand_sample(const d9d_dataset *ds, const d9d_sample *s, struct expanded *x)
{
    int32_t *positions = calloc((size_t)s->length, 3 * sizeof(*positions));
    d9d_status st;

    if (!positions)
        return D9D_FAIL(D9D_ENOMEM, "%s: no memory for a sample of %lld", ds->dir,
                        (long long)s->length);
    st =
        d9d_sample_expand(ds, s, positions, positions + s->length, positions + 2 * s->length, NULL);
    if (st == D9D_OK)
        *x = (struct expanded){positions, positions + s->length, positions + 2 * s->length};
    else
        free(positions);
    return st;
}

d9d_status d9d_sample_print(d9d_dataset *ds, int64_t k, bool json, d9d_buf *out)
{
    struct expanded x = {NULL, NULL, NULL};
    d9d_sample s;
    d9d_status st;

    D9D_TRY(d9d_dataset_sample(ds, k, &s));
    D9D_TRY(expand_sample(ds, &s, &x));
    if (json) {
        st = print_json(ds, &s, &x, out);
        goto out;
    }
    D9D_TRY_OR(st, load_tokenizer(ds), out);
    D9D_TRY_OR(
        st,
        d9d_buf_printf(out,
                       "sample %lld: %lld position%s in %u segments, shard %u at %llu, bucket %u\n",
                       (long long)s.number, (long long)s.length, D9D_PLURAL(s.length), s.n_segments,
                       s.shard, (unsigned long long)s.offset, s.bucket),
        out);
    D9D_TRY_OR(st, print_table(ds->tokenizer, &s, &x, out), out);
    st = d9di_sample_print_fields(ds, &s, false, out);
out:
    free(x.ids);
    return st;
}

/* --- a sample as text ---------------------------------------------------------------------- */

/* State of printing: consecutive tokens, all trained or all not, are decoded together. */
struct marking {
    const d9d_tokenizer *tok;
    d9d_token_ids run;
    bool trained;
    d9d_buf scratch;
    d9d_buf *out;
};

/* The symbol shown for a control character, which a terminal might execute; other characters are
 * unchanged. */
static uint32_t visible_char(uint32_t c)
{
    if (c < 0x20 && c != '\n' && c != '\t')
        return 0x2400 + c;
    return c == 0x7f ? 0x2421 : c > 0x7f && c < 0xa0 ? 0xfffd : c;
}

static d9d_status append_visible(const char *p, size_t n, d9d_buf *out)
{
    d9d_buf valid = {0};
    d9d_status st = append_valid_utf8(p, n, &valid);
    unsigned w;

    for (size_t i = 0; st == D9D_OK && i < valid.len; i += w) {
        const uint32_t c = visible_char(d9di_utf8_decode(valid.data + i, &w));
        char utf8[4];

        st = d9d_buf_append(out, utf8, d9di_utf8_encode(c, utf8));
    }
    d9d_buf_release(&valid);
    return st;
}

static d9d_status flush_run(struct marking *m)
{
    if (m->run.len == 0)
        return D9D_OK;
    m->scratch.len = 0;
    D9D_TRY(d9d_tokenizer_decode(m->tok, m->run.data, m->run.len, 0, &m->scratch));
    if (m->trained)
        D9D_TRY(d9d_buf_append(m->out, "\xe2\x9f\xa6", 3));
    D9D_TRY(append_visible(m->scratch.data, m->scratch.len, m->out));
    if (m->trained)
        D9D_TRY(d9d_buf_append(m->out, "\xe2\x9f\xa7", 3));
    m->run.len = 0;
    return D9D_OK;
}

static d9d_status mark_token(struct marking *m, int32_t id, bool trained)
{
    if (trained != m->trained)
        D9D_TRY(flush_run(m));
    m->trained = trained;
    return D9D_VEC_PUSH(&m->run, (uint32_t)id);
}

/* Prints positions [0, n) of a document.  A token is trained if the position before it has a
 * target. */
static d9d_status mark_document(struct marking *m, const int32_t *ids, const int32_t *labels,
                                int64_t n)
{
    int64_t i;

    D9D_TRY(mark_token(m, ids[0], false));
    for (i = 1; i < n; i++)
        D9D_TRY(mark_token(m, ids[i], labels[i - 1] == ids[i]));
    if (labels[n - 1] >= 0)
        D9D_TRY(mark_token(m, labels[n - 1], true));
    D9D_TRY(flush_run(m));
    return d9d_buf_append(m->out, "\n", 1);
}

/* The end of the document that begins at position `from` of a sample. */
static int64_t document_end(const d9d_sample *s, const struct expanded *x, int64_t from)
{
    int64_t to = from + 1;

    while (to < s->length && x->positions[to] > 0)
        to++;
    return to;
}

d9d_status d9d_sample_print_text(d9d_dataset *ds, int64_t k, d9d_buf *out)
{
    struct expanded x = {NULL, NULL, NULL};
    struct marking m = {.out = out};
    int64_t from = 0, to;
    d9d_sample s;
    d9d_status st;

    D9D_TRY(d9d_dataset_sample(ds, k, &s));
    D9D_TRY_OR(st, load_tokenizer(ds), out);
    if (!ds->tokenizer) {
        st = D9D_FAIL(D9D_ECONFIG, "%s: was made without a tokenizer: ids have no text", ds->dir);
        goto out;
    }
    D9D_TRY_OR(st, expand_sample(ds, &s, &x), out);
    m.tok = ds->tokenizer;
    for (; from < s.length; from = to) {
        to = document_end(&s, &x, from);
        if (from > 0)
            D9D_TRY_OR(st, d9d_buf_append(out, "--------\n", 9), out);
        D9D_TRY_OR(st, mark_document(&m, x.ids + from, x.labels + from, to - from), out);
    }
out:
    D9D_VEC_RELEASE(&m.run);
    d9d_buf_release(&m.scratch);
    free(x.ids);
    return st;
}

/* --- excerpts ------------------------------------------------------------- */

/* Appends whole characters, at most `bytes` bytes; line breaks become spaces. */
static d9d_status append_line(const d9d_buf *text, size_t bytes, d9d_buf *out)
{
    size_t n = text->len;

    for (size_t i = 0; i < n; i++)
        if (text->data[i] == '\n' || text->data[i] == '\t')
            text->data[i] = ' ';
    if (n <= bytes)
        return d9d_buf_append(out, text->data, n);
    for (n = bytes; n > 0 && ((unsigned char)text->data[n] & 0xc0) == 0x80;)
        n--;
    D9D_TRY(d9d_buf_append(out, text->data, n));
    return d9d_buf_append(out, "\xe2\x80\xa6", 3);
}

/* Nearly every token has at least one byte, so twice as many tokens are enough. */
static d9d_status decode_excerpt(const d9d_dataset *ds, const int32_t *ids, int64_t n, size_t bytes,
                                 d9d_buf *out)
{
    const size_t some = (uint64_t)n < 2 * bytes ? (size_t)n : 2 * bytes;
    d9d_buf text = {0}, visible = {0};
    d9d_token_ids few = {0};
    d9d_status st = D9D_VEC_RESERVE(&few, some);

    for (size_t i = 0; i < some && st == D9D_OK; i++)
        few.data[i] = (uint32_t)ids[i];
    if (st == D9D_OK)
        st = d9d_tokenizer_decode(ds->tokenizer, few.data, some, 0, &text);
    if (st == D9D_OK)
        st = append_visible(text.data, text.len, &visible);
    if (st == D9D_OK)
        st = append_line(&visible, bytes, out);
    D9D_VEC_RELEASE(&few);
    d9d_buf_release(&visible);
    d9d_buf_release(&text);
    return st;
}

d9d_status d9d_sample_print_excerpt(d9d_dataset *ds, int64_t k, int64_t place, size_t bytes,
                                    d9d_buf *out)
{
    struct expanded x = {NULL, NULL, NULL};
    int64_t from = 0;
    d9d_sample s;
    d9d_status st;

    D9D_TRY(load_tokenizer(ds));
    if (!ds->tokenizer)
        return D9D_OK;
    D9D_TRY(d9d_dataset_sample(ds, k, &s));
    D9D_TRY(expand_sample(ds, &s, &x));
    for (int64_t i = 0; i < place && from < s.length; i++)
        from = document_end(&s, &x, from);
    if (place < 0 || from >= s.length)
        st = D9D_FAIL(D9D_ECONFIG, "%s: sample %lld has no document %lld", ds->dir, (long long)k,
                      (long long)place);
    else
        st = decode_excerpt(ds, x.ids + from, document_end(&s, &x, from) - from, bytes, out);
    free(x.ids);
    return st;
}
