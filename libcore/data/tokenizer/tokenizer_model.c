/* tokenizer_model.c - see tokenizer_model.h. */
#include "data/tokenizer/tokenizer_model.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "data/tokenizer/bytelevel.h"
#include "data/tokenizer/tokenizer_component.h"
#include "data/tokenizer/utf8.h"

/* The kinds, and how a file without "type" shows which it is, as older ones are: the first row
 * whose member is there. */
static const struct {
    const d9di_tokenizer_model_kind *kind;
    const char *shown_by;
} kinds[] = {
    {&d9di_bpe_kind, "merges"},
    {&d9di_wordpiece_kind, "max_input_chars_per_word"},
    {&d9di_unigram_kind, "unk_id"},
    {&d9di_wordlevel_kind, "vocab"},
};

enum { N_KINDS = sizeof(kinds) / sizeof(kinds[0]) };

static d9d_status find_kind(const json_t *v, const char *where,
                            const d9di_tokenizer_model_kind **out)
{
    const json_t *type = json_object_get(v, "type");

    for (size_t i = 0; i < N_KINDS; i++)
        if (type ? json_is_string(type) && strcmp(json_string_value(type), kinds[i].kind->type) == 0
                 : json_object_get(v, kinds[i].shown_by) != NULL) {
            *out = kinds[i].kind;
            return D9D_OK;
        }
    if (!type)
        return D9D_FAIL(D9D_EFORMAT, "%s: has no type", where);
    return D9D_FAIL(D9D_ENOTSUP,
                    "%s: the type \"%.80s\" is not supported; it must be BPE, WordPiece, Unigram "
                    "or WordLevel",
                    where, json_is_string(type) ? json_string_value(type) : "?");
}

d9d_status d9di_tokenizer_model_init(const json_t *v, const char *where, bool chars,
                                     d9di_tokenizer_model *out)
{
    const d9di_tokenizer_model_kind *kind = NULL;
    char keys[256];
    void *of_kind;

    if (!json_is_object(v))
        return D9D_FAIL(D9D_EFORMAT, "%s: must be an object", where);
    D9D_TRY(find_kind(v, where, &kind));
    snprintf(keys, sizeof(keys), "type %s", kind->keys);
    D9D_TRY(d9di_tokenizer_component_check_keys(v, where, keys));
    D9D_TRY(kind->create(v, where, chars, &of_kind));
    *out = (d9di_tokenizer_model){kind, of_kind, kind->vocab(of_kind)};
    return D9D_OK;
}

void d9di_tokenizer_model_release(d9di_tokenizer_model *m)
{
    if (m->kind)
        m->kind->free(m->of_kind);
    *m = (d9di_tokenizer_model){0};
}

/* --- what the kinds share ---------------------------------------------------------- */

d9d_status d9di_tokenizer_model_push(uint32_t id, size_t from, size_t to, d9d_token_ids *out,
                                     d9di_alignments *spans)
{
    D9D_TRY(D9D_VEC_PUSH(out, id));
    return spans ? D9D_VEC_PUSH(spans, ((d9di_alignment){(uint32_t)from, (uint32_t)to})) : D9D_OK;
}

d9d_status d9di_tokenizer_model_buf_create(void **out)
{
    *out = calloc(1, sizeof(d9d_buf));
    return *out ? D9D_OK : D9D_FAIL(D9D_ENOMEM, "no memory to tokenise with");
}

void d9di_tokenizer_model_buf_free(void *scratch)
{
    if (scratch)
        d9d_buf_release(scratch);
    free(scratch);
}

static d9d_status spell_bytes(const d9di_pretoken *pretoken, d9d_buf *spelled)
{
    spelled->len = 0;
    D9D_TRY(d9d_buf_reserve(spelled, 2 * pretoken->n));
    for (size_t i = 0; i < pretoken->n; i++)
        spelled->len += d9di_utf8_encode(d9di_bytelevel_char((unsigned char)pretoken->text[i]),
                                         spelled->data + spelled->len);
    return D9D_OK;
}

/* Number of characters in text[0, n). */
static uint32_t count_chars(const char *text, size_t n)
{
    uint32_t count = 0;

    for (size_t i = 0; i < n; i++)
        count += ((unsigned char)text[i] & 0xc0) != 0x80;
    return count;
}

/* Spans of the spelling become spans of the bytes: a character is a byte. */
static void unspell_spans(const d9d_buf *spelled, d9di_alignment *spans, size_t n)
{
    for (size_t i = 0; i < n; i++)
        spans[i] = (d9di_alignment){count_chars(spelled->data, spans[i].from),
                                    count_chars(spelled->data, spans[i].to)};
}

d9d_status d9di_tokenizer_model_each(const d9di_pretoken *pretokens, size_t n, bool chars,
                                     d9d_buf *spelled, d9di_tokenizer_model_fn fn,
                                     const void *model, void *scratch, d9d_token_ids *out,
                                     d9di_alignments *spans)
{
    for (size_t i = 0; i < n; i++) {
        const size_t before = spans ? spans->len : 0;
        d9di_pretoken pretoken = pretokens[i];

        if (!chars) {
            D9D_TRY(spell_bytes(&pretokens[i], spelled));
            pretoken = (d9di_pretoken){spelled->data, spelled->len};
        }
        D9D_TRY(fn(model, scratch, &pretoken, out, spans));
        if (!chars && spans)
            unspell_spans(spelled, spans->data + before, spans->len - before);
    }
    return D9D_OK;
}
