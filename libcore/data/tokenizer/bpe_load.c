/* bpe_load.c - reads the model of a tokenizer.json. */
#include <stdlib.h>
#include <string.h>

#include "data/tokenizer/bpe_private.h"
#include "data/tokenizer/bytelevel.h"
#include "data/tokenizer/tokenizer_component.h"
#include "data/tokenizer/utf8.h"

enum { MAX_MERGES = 0xffffff };

/* Writes the bytes of a token to `bytes`, which has space for its text; returns their number.  A
 * text that is not spelled in the byte alphabet stands for itself. */
static size_t decode_token_text(struct d9di_vocab_token *t, bool chars, char *bytes)
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

    for (uint32_t id = 0; id < b->vocab.n_tokens; id++)
        capacity += b->vocab.tokens[id].len;
    b->bytes = calloc(capacity, 1);
    b->byte_offset = calloc((size_t)b->vocab.n_tokens + 1, sizeof(*b->byte_offset));
    if (!b->bytes || !b->byte_offset)
        return D9D_FAIL(D9D_ENOMEM, "%s: no memory for %u tokens", where, b->vocab.n_tokens);
    for (uint32_t id = 0; id < b->vocab.n_tokens; id++) {
        b->byte_offset[id] = (uint32_t)n; /* a file has at most 64 MiB */
        if (b->vocab.tokens[id].text)
            n += decode_token_text(&b->vocab.tokens[id], b->chars, b->bytes + n);
    }
    b->byte_offset[b->vocab.n_tokens] = (uint32_t)n;
    return D9D_OK;
}

static void find_byte_ids(d9di_bpe *b, bool *complete)
{
    *complete = !b->affixed;
    for (unsigned i = 0; i < 256; i++) {
        const unsigned char byte = (unsigned char)i;
        char text[4];

        b->byte_id[i] = b->chars
                            ? d9di_vocab_find_byte(&b->vocab, byte)
                            : d9di_vocab_find(&b->vocab, text,
                                              d9di_utf8_encode(d9di_bytelevel_char(byte), text));
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
    const size_t prefix = strlen(b->prefix);
    uint32_t id[3], tag, *slot;

    if (pair->len[1] < prefix)
        return D9D_FAIL(D9D_EFORMAT, "%s: merges[%zu]: \"%s\" lacks continuing_subword_prefix",
                        where, at, pair->text[1]);
    joined->len = 0;
    D9D_TRY(d9d_buf_append(joined, pair->text[0], pair->len[0]));
    D9D_TRY(d9d_buf_append(joined, pair->text[1] + prefix, pair->len[1] - prefix));
    for (int i = 0; i < 3; i++) {
        const char *text = i < 2 ? pair->text[i] : joined->data;
        const size_t len = i < 2 ? pair->len[i] : joined->len;

        id[i] = d9di_vocab_find(&b->vocab, text, len);
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
    b->merge_mask = d9di_vocab_table_size(n) - 1;
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

static d9d_status check_dropout(const json_t *m, const char *where)
{
    const json_t *dropout = json_object_get(m, "dropout");

    if (dropout && !json_is_null(dropout) && json_number_value(dropout) != 0.0)
        return D9D_FAIL(D9D_ENOTSUP,
                        "%s: dropout is %g; only 0 is supported, ids must be repeatable", where,
                        json_number_value(dropout));
    return D9D_OK;
}

static d9d_status load_affix(d9di_bpe *b, const json_t *m, const char *where, const char *key,
                             char *out)
{
    const json_t *v = json_object_get(m, key);

    if (!v || json_is_null(v))
        return D9D_OK;
    if (!json_is_string(v) || json_string_length(v) > D9DI_BPE_AFFIX)
        return D9D_FAIL(D9D_ENOTSUP, "%s: %s: must be a string of at most %d bytes", where, key,
                        D9DI_BPE_AFFIX);
    memcpy(out, json_string_value(v), json_string_length(v) + 1);
    b->affixed |= *out != '\0';
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
    if (b->byte_fallback && (b->affixed || !b->chars))
        return D9D_FAIL(
            D9D_ENOTSUP, "%s: byte_fallback is set beside %s, which is not supported", where,
            b->affixed ? "a prefix or suffix of symbols" : "an alphabet of bytes that lacks some");
    if (!unk || json_is_null(unk))
        return D9D_OK;
    if (json_is_string(unk))
        b->unk = d9di_vocab_find(&b->vocab, json_string_value(unk), json_string_length(unk));
    if (b->unk == D9DI_NO_ID)
        return D9D_FAIL(D9D_EFORMAT, "%s: unk_token is not in the vocabulary", where);
    return D9D_OK;
}

static d9d_status load_model(const json_t *m, const char *where, d9di_bpe *b)
{
    json_t *vocab, *merges;
    bool complete;

    D9D_TRY(check_dropout(m, where));
    D9D_TRY(load_affix(b, m, where, "continuing_subword_prefix", b->prefix));
    D9D_TRY(load_affix(b, m, where, "end_of_word_suffix", b->suffix));
    D9D_TRY(d9d_json_get_obj(m, where, "vocab", &vocab));
    D9D_TRY(d9d_json_get_arr(m, where, "merges", &merges));
    D9D_TRY(d9di_vocab_load(vocab, where, &b->vocab));
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
    st = load_model(model, where, out);
    if (st != D9D_OK)
        d9di_bpe_release(out);
    return st;
}

void d9di_bpe_release(d9di_bpe *b)
{
    d9di_vocab_release(&b->vocab);
    free(b->merges);
    free(b->merge_table);
    free(b->bytes);
    free(b->byte_offset);
    free(b->derivation);
    d9di_trie_release(&b->trie);
    memset(b, 0, sizeof(*b));
}
