/* vocab.c - see vocab.h. */
#include "data/tokenizer/vocab.h"

#include <stdlib.h>
#include <string.h>

#include "d9d/base/hash.h"

uint64_t d9di_vocab_table_size(uint64_t n)
{
    uint64_t size = 16;

    while (size < n + n / 2)
        size *= 2;
    return size;
}

/* The slot of a text, or the free slot for it; *tag: its content without the id. */
static uint32_t *find_slot(const d9di_vocab *v, const char *text, size_t n, uint32_t *tag)
{
    const uint64_t hash = d9d_hash_u64(text, n);
    uint64_t at = hash & v->mask;

    *tag = (uint32_t)(hash >> 32) & 0xff000000;
    for (; v->table[at] != 0; at = (at + 1) & v->mask) {
        const struct d9di_vocab_token *t;

        if ((v->table[at] & 0xff000000) != *tag)
            continue;
        t = &v->tokens[(v->table[at] & 0xffffff) - 1];
        if (t->len == n && memcmp(t->text, text, n) == 0)
            break;
    }
    return &v->table[at];
}

uint32_t d9di_vocab_find(const d9di_vocab *v, const char *text, size_t n)
{
    uint32_t tag;

    return (*find_slot(v, text, n, &tag) & 0xffffff) - 1;
}

static const char hex[] = "0123456789ABCDEF";

uint32_t d9di_vocab_find_byte(const d9di_vocab *v, unsigned char byte)
{
    const char text[] = {'<', '0', 'x', hex[byte >> 4], hex[byte & 15], '>'};

    return d9di_vocab_find(v, text, sizeof(text));
}

bool d9di_vocab_is_byte(const char *text, size_t n, unsigned char *byte)
{
    const char *high, *low;

    if (n != 6 || memcmp(text, "<0x", 3) != 0 || text[5] != '>')
        return false;
    high = memchr(hex, text[3], 16);
    low = memchr(hex, text[4], 16);
    if (!high || !low)
        return false;
    *byte = (unsigned char)((high - hex) * 16 + (low - hex));
    return true;
}

/* --- loading ---------------------------------------------------------------------- */

static d9d_status alloc_tokens(d9di_vocab *v, const char *where, size_t n_tokens, size_t n_entries)
{
    v->n_tokens = (uint32_t)n_tokens;
    v->n_entries = (uint32_t)n_entries;
    v->mask = d9di_vocab_table_size(n_entries) - 1;
    v->table = calloc(v->mask + 1, sizeof(*v->table));
    v->tokens = calloc(n_tokens + 1, sizeof(*v->tokens));
    if (!v->table || !v->tokens)
        return D9D_FAIL(D9D_ENOMEM, "%s: no memory for %zu tokens", where, n_tokens);
    return D9D_OK;
}

static d9d_status set_token(d9di_vocab *v, const char *where, uint32_t id, const char *text,
                            size_t n)
{
    struct d9di_vocab_token *t = &v->tokens[id];
    uint32_t tag, *slot;

    t->len = (uint32_t)n;
    t->text = d9d_arena_strndup(&v->arena, text, n);
    if (!t->text)
        return D9D_FAIL(D9D_ENOMEM, "%s: no memory for %u tokens", where, v->n_tokens);
    slot = find_slot(v, text, n, &tag);
    *slot = tag | (id + 1);
    return D9D_OK;
}

/* The largest id plus one; checks every id. */
static d9d_status count_ids(json_t *vocab, const char *where, uint32_t *out)
{
    const char *text;
    json_t *id;

    *out = 0;
    json_object_foreach(vocab, text, id)
    {
        const json_int_t v = json_integer_value(id);

        if (!json_is_integer(id) || v < 0 || v >= D9DI_MAX_VOCAB)
            return D9D_FAIL(D9D_EFORMAT, "%s: vocab: \"%.80s\" must have an id from 0 to %u", where,
                            text, D9DI_MAX_VOCAB - 1);
        if ((uint32_t)v >= *out)
            *out = (uint32_t)v + 1;
    }
    return D9D_OK;
}

d9d_status d9di_vocab_load(json_t *vocab, const char *where, d9di_vocab *out)
{
    uint32_t n_tokens;
    const char *text;
    json_t *v;

    D9D_TRY(count_ids(vocab, where, &n_tokens));
    D9D_TRY(alloc_tokens(out, where, n_tokens, json_object_size(vocab)));
    json_object_foreach(vocab, text, v)
    {
        const uint32_t id = (uint32_t)json_integer_value(v);

        if (out->tokens[id].text)
            return D9D_FAIL(D9D_EFORMAT,
                            "%s: vocab: the id %u is that of \"%.80s\" and of \"%.80s\"", where, id,
                            out->tokens[id].text, text);
        D9D_TRY(set_token(out, where, id, text, strlen(text)));
    }
    return D9D_OK;
}

/* The value that HF's reader (serde_json) gives a number: its digits as an integer, over a power of
 * ten.  The last bit may differ from the nearest double's, which is `score`; HF writes the shortest
 * text that gives it. */
static d9d_status read_as_hf(double *score, d9d_buf *text)
{
    uint64_t digits = 0;
    long exponent = 0;
    bool fraction = false;
    double power = 1;
    const char *s;

    text->len = 0;
    D9D_TRY(d9d_json_put_f64(text, *score));
    for (s = text->data + (*text->data == '-'); *s == '.' || (*s >= '0' && *s <= '9'); s++) {
        fraction |= *s == '.';
        if (*s == '.')
            continue;
        digits = digits * 10 + (uint64_t)(*s - '0');
        exponent -= fraction;
    }
    if (*s == 'e')
        exponent += strtol(s + 1, NULL, 10);
    if (exponent < -22 || exponent >= 0) /* 10^22 is the last that is exact */
        return D9D_OK;
    for (; exponent < 0; exponent++)
        power *= 10;
    *score = (double)digits / power * (*text->data == '-' ? -1 : 1);
    return D9D_OK;
}

static d9d_status set_scored(d9di_vocab *out, const char *where, uint32_t id, const json_t *v,
                             double *score, d9d_buf *buf)
{
    const json_t *text = json_array_get(v, 0), *number = json_array_get(v, 1);

    if (json_array_size(v) != 2 || !json_is_string(text) || !json_is_number(number))
        return D9D_FAIL(D9D_EFORMAT, "%s: vocab[%u]: must be [\"token\", score]", where, id);
    *score = json_number_value(number);
    D9D_TRY(read_as_hf(score, buf));
    return set_token(out, where, id, json_string_value(text), json_string_length(text));
}

d9d_status d9di_vocab_load_scored(const json_t *vocab, const char *where, d9di_vocab *out,
                                  double **scores)
{
    const size_t n = json_array_size(vocab);
    d9d_status st = D9D_OK;
    d9d_buf buf = {0};

    if (n >= D9DI_MAX_VOCAB)
        return D9D_FAIL(D9D_ENOTSUP, "%s: vocab: %zu tokens; less than %u are read", where, n,
                        D9DI_MAX_VOCAB);
    D9D_TRY(alloc_tokens(out, where, n, n));
    *scores = calloc(n + 1, sizeof(**scores));
    if (!*scores)
        return D9D_FAIL(D9D_ENOMEM, "%s: no memory for %zu tokens", where, n);
    for (size_t id = 0; id < n && st == D9D_OK; id++)
        st = set_scored(out, where, (uint32_t)id, json_array_get(vocab, id), *scores + id, &buf);
    d9d_buf_release(&buf);
    return st;
}

void d9di_vocab_release(d9di_vocab *v)
{
    free(v->tokens);
    free(v->table);
    d9d_arena_release(&v->arena);
    *v = (d9di_vocab){0};
}
