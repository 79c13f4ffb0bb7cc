/* bpe_load.c - reads the model of a tokenizer.json. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "data/tokenizer/bpe_private.h"
#include "data/tokenizer/bytelevel.h"
#include "data/tokenizer/tokenizer_component.h"
#include "data/tokenizer/utf8.h"

enum { MAX_MERGES = 0xffffff };

static uint64_t table_size(uint64_t n)
{
    uint64_t size = 16;

    while (size < n + n / 2)
        size *= 2;
    return size;
}

/* The slot of a text, or the free slot for it; *tag: its content without the id. */
static uint32_t *vocab_slot(const d9di_bpe *b, const char *text, size_t n, uint32_t *tag)
{
    const uint64_t hash = d9d_hash_u64(text, n);
    uint64_t at = hash & b->vocab_mask;

    *tag = (uint32_t)(hash >> 32) & 0xff000000;
    for (; b->vocab_table[at] != 0; at = (at + 1) & b->vocab_mask) {
        const struct d9di_bpe_token *t;

        if ((b->vocab_table[at] & 0xff000000) != *tag)
            continue;
        t = &b->tokens[(b->vocab_table[at] & 0xffffff) - 1];
        if (t->len == n && memcmp(t->text, text, n) == 0)
            break;
    }
    return &b->vocab_table[at];
}

uint32_t d9di_bpe_find_token(const d9di_bpe *b, const char *text, size_t n)
{
    uint32_t tag;

    return (*vocab_slot(b, text, n, &tag) & 0xffffff) - 1;
}

/* --- vocabulary ---------------------------------------------------------------- */

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

static d9d_status load_vocab(d9di_bpe *b, json_t *vocab, const char *where)
{
    const char *text;
    json_t *v;

    D9D_TRY(count_ids(vocab, where, &b->n_tokens));
    b->n_entries = (uint32_t)json_object_size(vocab);
    b->vocab_mask = table_size(b->n_entries) - 1;
    b->vocab_table = calloc(b->vocab_mask + 1, sizeof(*b->vocab_table));
    b->tokens = calloc((size_t)b->n_tokens + 1, sizeof(*b->tokens));
    if (!b->vocab_table || !b->tokens)
        return D9D_FAIL(D9D_ENOMEM, "%s: no memory for %u tokens", where, b->n_tokens);
    json_object_foreach(vocab, text, v)
    {
        const uint32_t id = (uint32_t)json_integer_value(v);
        struct d9di_bpe_token *t = &b->tokens[id];
        const size_t len = strlen(text);
        uint32_t tag, *slot;

        if (t->text)
            return D9D_FAIL(D9D_EFORMAT,
                            "%s: vocab: the id %u is that of \"%.80s\" and of \"%.80s\"", where, id,
                            t->text, text);
        t->len = (uint32_t)len;
        t->text = d9d_arena_strndup(&b->arena, text, len);
        if (!t->text)
            return D9D_FAIL(D9D_ENOMEM, "%s: no memory for %u tokens", where, b->n_tokens);
        slot = vocab_slot(b, text, len, &tag);
        *slot = tag | (id + 1);
    }
    return D9D_OK;
}

/* Writes the bytes of a token to `bytes`, which has space for its text; returns their number.  A
 * text that is not spelled in the byte alphabet stands for itself. */
static size_t decode_token_text(struct d9di_bpe_token *t, bool chars, char *bytes)
{
    size_t n = 0;
    uint32_t i = 0;

    t->spelled = !chars;
    if (chars) {
        memcpy(bytes, t->text, t->len);
        return t->len;
    }
    while (i < t->len) {
        unsigned w;
        const int byte = d9di_bytelevel_byte(d9di_utf8_decode(t->text + i, &w));

        if (byte < 0) {
            t->spelled = false;
            memcpy(bytes, t->text, t->len);
            return t->len;
        }
        bytes[n++] = (char)byte;
        i += w;
    }
    return n;
}

static d9d_status load_token_bytes(d9di_bpe *b, const char *where)
{
    size_t capacity = D9DI_BPE_SLACK, n = 0;

    for (uint32_t id = 0; id < b->n_tokens; id++)
        capacity += b->tokens[id].len;
    b->bytes = calloc(capacity, 1);
    b->byte_offset = calloc((size_t)b->n_tokens + 1, sizeof(*b->byte_offset));
    if (!b->bytes || !b->byte_offset)
        return D9D_FAIL(D9D_ENOMEM, "%s: no memory for %u tokens", where, b->n_tokens);
    for (uint32_t id = 0; id < b->n_tokens; id++) {
        b->byte_offset[id] = (uint32_t)n; /* a file has at most 64 MiB */
        if (b->tokens[id].text)
            n += decode_token_text(&b->tokens[id], b->chars, b->bytes + n);
    }
    b->byte_offset[b->n_tokens] = (uint32_t)n;
    return D9D_OK;
}

bool d9di_bpe_fallback_byte(const char *text, size_t n, unsigned char *byte)
{
    static const char hex[] = "0123456789ABCDEF";
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

static void find_byte_ids(d9di_bpe *b, bool *complete)
{
    *complete = true;
    for (int i = 0; i < 256; i++) {
        char text[8];
        const size_t n = b->chars ? (size_t)snprintf(text, sizeof(text), "<0x%02X>", (unsigned)i)
                                  : d9di_utf8_encode(d9di_bytelevel_char((unsigned char)i), text);

        b->byte_id[i] = d9di_bpe_find_token(b, text, n);
        *complete &= b->byte_id[i] != D9DI_NO_ID;
    }
}

/* --- merges -------------------------------------------------------------------- */

struct pair {
    const char *text[2];
    size_t len[2];
};

/* "a b" or ["a", "b"]; false when it is neither. */
static bool parse_pair(const json_t *v, struct pair *out)
{
    if (json_is_string(v)) {
        const char *s = json_string_value(v), *space = strchr(s, ' ');

        if (!space || strchr(space + 1, ' '))
            return false;
        *out = (struct pair){{s, space + 1}, {(size_t)(space - s), strlen(space + 1)}};
        return true;
    }
    if (!json_is_array(v) || json_array_size(v) != 2)
        return false;
    for (int i = 0; i < 2; i++) {
        const json_t *part = json_array_get(v, (size_t)i);

        if (!json_is_string(part))
            return false;
        out->text[i] = json_string_value(part);
        out->len[i] = json_string_length(part);
    }
    return true;
}

static d9d_status add_merge(d9di_bpe *b, const struct pair *pair, const char *where, size_t at,
                            d9d_buf *joined)
{
    uint32_t id[3], tag, *slot;

    joined->len = 0;
    D9D_TRY(d9d_buf_append(joined, pair->text[0], pair->len[0]));
    D9D_TRY(d9d_buf_append(joined, pair->text[1], pair->len[1]));
    for (int i = 0; i < 3; i++) {
        const char *text = i < 2 ? pair->text[i] : joined->data;
        const size_t len = i < 2 ? pair->len[i] : joined->len;

        id[i] = d9di_bpe_find_token(b, text, len);
        if (id[i] == D9DI_NO_ID)
            return D9D_FAIL(D9D_EFORMAT, "%s: merges[%zu]: \"%.*s\" is not in the vocabulary",
                            where, at, (int)(len < 80 ? len : 80), text);
    }
    slot = d9di_bpe_merge_slot(b, id[0], id[1], &tag);
    if (*slot != 0)
        b->merges[(*slot & 0xffffff) - 1].id = D9DI_NO_ID;
    *slot = tag | (b->n_merges + 1);
    b->merges[b->n_merges++] = (struct d9di_bpe_merge){id[0], id[1], id[2]};
    return D9D_OK;
}

static d9d_status load_merges(d9di_bpe *b, const json_t *merges, const char *where)
{
    const size_t n = json_array_size(merges);
    d9d_buf joined = {0};
    d9d_status st = D9D_OK;

    if (n >= MAX_MERGES)
        return D9D_FAIL(D9D_ENOTSUP, "%s: %zu merges; less than %d are read", where, n, MAX_MERGES);
    b->merge_mask = table_size(n) - 1;
    b->merge_table = calloc(b->merge_mask + 1, sizeof(*b->merge_table));
    b->merges = malloc((n + 1) * sizeof(*b->merges));
    if (!b->merge_table || !b->merges)
        return D9D_FAIL(D9D_ENOMEM, "%s: no memory for %zu merges", where, n);
    for (size_t i = 0; i < n && st == D9D_OK; i++) {
        const json_t *v = json_array_get(merges, i);
        struct pair pair;

        if (json_is_string(v) && strncmp(json_string_value(v), "#version", 8) == 0)
            continue;
        if (parse_pair(v, &pair))
            st = add_merge(b, &pair, where, i, &joined);
        else
            st = D9D_FAIL(D9D_EFORMAT, "%s: merges[%zu]: must be \"a b\" or [\"a\", \"b\"]", where,
                          i);
    }
    d9d_buf_release(&joined);
    return st;
}

/* --- the rest ------------------------------------------------------------------- */

static d9d_status check_unsupported(const json_t *m, const char *where)
{
    static const char *const empty[] = {"continuing_subword_prefix", "end_of_word_suffix"};
    const json_t *dropout = json_object_get(m, "dropout");
    size_t i;

    if (dropout && !json_is_null(dropout) && json_number_value(dropout) != 0.0)
        return D9D_FAIL(D9D_ENOTSUP,
                        "%s: dropout is %g; only 0 is supported, ids must be repeatable", where,
                        json_number_value(dropout));
    for (i = 0; i < 2; i++) {
        const json_t *v = json_object_get(m, empty[i]);

        if (v && !json_is_null(v) && (!json_is_string(v) || json_string_length(v) > 0))
            return D9D_FAIL(D9D_ENOTSUP, "%s: %s is not empty, which is not supported", where,
                            empty[i]);
    }
    return D9D_OK;
}

static d9d_status load_unk(d9di_bpe *b, const json_t *m, const char *where, bool complete)
{
    const json_t *unk = json_object_get(m, "unk_token");

    b->unk = D9DI_NO_ID;
    D9D_TRY(d9di_tokenizer_component_get_flag(m, where, "fuse_unk", false, &b->fuse_unk));
    D9D_TRY(d9di_tokenizer_component_get_flag(m, where, "byte_fallback", false, &b->byte_fallback));
    if (complete && (b->byte_fallback || !b->chars))
        return D9D_OK; /* no character is ever unknown */
    if (b->byte_fallback)
        return D9D_FAIL(D9D_ENOTSUP,
                        "%s: byte_fallback is set and the vocabulary lacks some of the 256 bytes",
                        where);
    if (!unk || json_is_null(unk))
        return D9D_OK;
    if (json_is_string(unk))
        b->unk = d9di_bpe_find_token(b, json_string_value(unk), json_string_length(unk));
    if (b->unk == D9DI_NO_ID)
        return D9D_FAIL(D9D_EFORMAT, "%s: unk_token is not in the vocabulary", where);
    return D9D_OK;
}

static d9d_status load_model(const json_t *m, const char *where, d9di_bpe *b)
{
    const json_t *type = json_object_get(m, "type");
    json_t *vocab, *merges;
    bool complete;

    if (type && (!json_is_string(type) || strcmp(json_string_value(type), "BPE") != 0))
        return D9D_FAIL(D9D_ENOTSUP, "%s: the type \"%.80s\" is not supported; it must be BPE",
                        where, json_is_string(type) ? json_string_value(type) : "?");
    D9D_TRY(d9di_tokenizer_component_check_keys(
        m, where,
        "type dropout unk_token continuing_subword_prefix "
        "end_of_word_suffix fuse_unk byte_fallback ignore_merges vocab "
        "merges"));
    D9D_TRY(check_unsupported(m, where));
    D9D_TRY(d9d_json_get_obj(m, where, "vocab", &vocab));
    D9D_TRY(d9d_json_get_arr(m, where, "merges", &merges));
    D9D_TRY(load_vocab(b, vocab, where));
    D9D_TRY(load_token_bytes(b, where));
    find_byte_ids(b, &complete);
    D9D_TRY(load_unk(b, m, where, complete));
    D9D_TRY(load_merges(b, merges, where));
    D9D_TRY(d9di_tokenizer_component_get_flag(m, where, "ignore_merges", false, &b->ignore_merges));
    return d9di_bpe_greedy_prepare(b);
}

d9d_status d9di_bpe_init(const json_t *model, const char *where, bool chars, d9di_bpe *out)
{
    d9d_status st;

    memset(out, 0, sizeof(*out));
    out->chars = chars;
    if (!json_is_object(model))
        return D9D_FAIL(D9D_EFORMAT, "%s: must be an object", where);
    st = load_model(model, where, out);
    if (st != D9D_OK)
        d9di_bpe_release(out);
    return st;
}

void d9di_bpe_release(d9di_bpe *b)
{
    free(b->tokens);
    free(b->vocab_table);
    free(b->merges);
    free(b->merge_table);
    free(b->bytes);
    free(b->byte_offset);
    free(b->derivation);
    d9di_trie_release(&b->trie);
    d9d_arena_release(&b->arena);
    memset(b, 0, sizeof(*b));
}
