/* contamination.c - see contamination.h. */
#include "data/filter/contamination.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "d9d/base/json.h"
#include "d9d/base/num_format.h"
#include "d9d/data/tokenizer/tokenizer.h"
#include "data/io/framing.h"
#include "data/io/input_stream.h"
#include "data/tokenizer/utf8.h"

enum { READ_BYTES = 1 << 20 };

/* --- the set --------------------------------------------------------------------------------- */

/* The slot of a hash, which is not 0, or the free one that it would have. */
static uint64_t *find_slot(const uint64_t *slots, size_t n, uint64_t key)
{
    size_t i = (size_t)(key ^ key >> 32) & (n - 1);

    while (slots[i] != 0 && slots[i] != key)
        i = (i + 1) & (n - 1);
    return (uint64_t *)(uintptr_t)&slots[i];
}

static d9d_status grow(d9di_contamination *c)
{
    const size_t n = c->n_slots ? 2 * c->n_slots : 1024;
    uint64_t *slots = calloc(n, sizeof(*slots));

    if (!slots)
        return D9D_FAIL(D9D_ENOMEM, "no memory for %zu n-grams of evaluations", n);
    for (size_t i = 0; i < c->n_slots; i++)
        if (c->slots[i] != 0)
            *find_slot(slots, n, c->slots[i]) = c->slots[i];
    free(c->slots);
    c->slots = slots;
    c->n_slots = n;
    return D9D_OK;
}

static uint64_t key_of(const d9di_contamination *c, const d9di_text_words *w, size_t i)
{
    const uint64_t key = d9di_text_words_hash(w, i, c->ngram);

    return key ? key : 1;
}

static d9d_status add_text(d9di_contamination *c, d9di_text_words *w, const char *text, size_t n)
{
    D9D_TRY(d9di_text_words_fold(w, text, n));
    c->texts++;
    c->too_short += w->n < c->ngram;
    for (size_t i = 0; i + c->ngram <= w->n; i++) {
        const uint64_t key = key_of(c, w, i);
        uint64_t *slot;

        if (2 * c->n >= c->n_slots)
            D9D_TRY(grow(c));
        slot = find_slot(c->slots, c->n_slots, key);
        c->n += *slot == 0;
        *slot = key;
    }
    return D9D_OK;
}

bool d9di_contamination_find(const d9di_contamination *c, const d9di_text_words *w)
{
    for (size_t i = 0; c->n > 0 && i + c->ngram <= w->n; i++)
        if (*find_slot(c->slots, c->n_slots, key_of(c, w, i)) != 0)
            return true;
    return false;
}

void d9di_contamination_release(d9di_contamination *c)
{
    free(c->slots);
    *c = (d9di_contamination){0};
}

/* --- files ----------------------------------------------------------------------------------- */

/* Adds every string in a value. */
static d9d_status add_strings(d9di_contamination *c, d9di_text_words *w, const json_t *v)
{
    const char *key;
    json_t *child;
    size_t i;

    if (json_is_string(v))
        return add_text(c, w, json_string_value(v), json_string_length(v));
    json_array_foreach(v, i, child)
    {
        D9D_TRY(add_strings(c, w, child));
    }
    json_object_foreach((json_t *)(uintptr_t)v, key, child)
    {
        D9D_TRY(add_strings(c, w, child));
    }
    return D9D_OK;
}

static d9d_status add_line(d9di_contamination *c, d9di_text_words *w, const char *where,
                           const char *line, size_t n)
{
    const size_t valid = d9d_utf8_valid_up_to(line, n);
    json_t *v;
    d9d_status st;

    if (valid != n)
        return D9D_FAIL(D9D_EFORMAT, "%s: byte %zu is not valid UTF-8", where, valid);
    while (n > 0 && (*line == ' ' || *line == '\t' || *line == '\r')) {
        line++;
        n--;
    }
    if (n == 0)
        return D9D_OK;
    if (*line != '{')
        return add_text(c, w, line, n);
    D9D_TRY(d9d_json_parse(where, line, n, &v));
    st = add_strings(c, w, v);
    json_decref(v);
    return st;
}

/* True if the first bracket of the text opens an array of objects. */
static bool is_array(const char *text, size_t n)
{
    const char *at = memchr(text, '[', n), *end = text + n;

    for (at++; at < end && d9di_text_words_is_space((unsigned char)*at);)
        at++;
    return at < end && *at == '{';
}

/* Adds every line; a row of a table may have line ends. */
static d9d_status add_lines(d9di_contamination *c, d9di_text_words *w, const char *path,
                            d9di_framing framing, const char *text, size_t n)
{
    int64_t number = 1;
    d9di_framing_span span;

    for (size_t at = 0; at < n; at += span.used) {
        d9di_framing_scan scan = {.at = 0};
        char where[320];

        (void)d9d_num_format(where, sizeof(where), "%.280s: line %lld", path, (long long)number);
        D9D_TRY(d9di_framing_find(framing, text + at, n - at, at == 0, true, &scan, &span));
        D9D_TRY(add_line(c, w, where, text + at + span.begin, span.len));
        number += d9di_framing_count_lines(text + at, span.used);
    }
    return D9D_OK;
}

static d9d_status add_file(d9di_contamination *c, d9di_text_words *w, const char *path,
                           const d9d_buf *all)
{
    const size_t bom = all->len > 0 ? d9di_utf8_bom(all->data, all->len) : 0;
    const char *text = all->len > 0 ? all->data + bom : "";
    const size_t n = all->len - bom;
    d9di_framing framing = d9di_framing_of(path, text, n);
    json_t *v;
    d9d_status st;

    if (d9di_framing_name_ends(path, ".txt") ||
        (framing == D9DI_FRAMING_ARRAY && !is_array(text, n)))
        framing = D9DI_FRAMING_LINES;
    if (framing != D9DI_FRAMING_ARRAY)
        return add_lines(c, w, path, framing, text, n);
    D9D_TRY(d9d_json_parse(path, text, n, &v));
    st = add_strings(c, w, v);
    json_decref(v);
    return st;
}

static d9d_status read_whole(const char *path, d9d_buf *out)
{
    d9di_input_stream *from;
    size_t got = 1;
    d9d_status st = D9D_OK;

    D9D_TRY(d9di_input_stream_open(path, NULL, &from));
    out->len = 0;
    while (got > 0 && st == D9D_OK) {
        st = d9d_buf_reserve(out, READ_BYTES);
        if (st == D9D_OK)
            st = d9di_input_stream_read(from, out->data + out->len, READ_BYTES, &got);
        out->len += st == D9D_OK ? got : 0;
    }
    d9di_input_stream_close(from);
    return st;
}

d9d_status d9di_contamination_read(const char *const *paths, size_t n_paths, size_t ngram,
                                   d9di_contamination *out)
{
    d9di_contamination c = {.ngram = ngram};
    d9di_text_words w = {.n = 0};
    d9d_buf text = {0};
    d9d_status st = D9D_OK;

    for (size_t i = 0; i < n_paths && st == D9D_OK; i++) {
        st = read_whole(paths[i], &text);
        if (st == D9D_OK)
            st = add_file(&c, &w, paths[i], &text);
    }
    if (st == D9D_OK) {
        *out = c;
        c = (d9di_contamination){0};
    }
    d9di_contamination_release(&c);
    d9di_text_words_release(&w);
    d9d_buf_release(&text);
    return st;
}
