/* fuzz_tokenizer.c - any bytes as tokenizer.json; what loads must encode and decode, and do
 * so the same way twice. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "d9d/data/tokenizer/tokenizer.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static const char text[] = "Hello, world's  12345\n\n  <|e|> caf\xc3\xa9 e\xcc\x81\xcc\xa3 "
                           "\xec\x9d\xb4 \xf0\x9f\x98\x80 \xf0\x9e\x80\xb0 aaaaaaaaaaaaaaaaaaaaaa"
                           "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa\t x";

/* Special tokens are of the vocabulary, and as many as was said where the text stands once. */
static void add_special(const d9d_tokenizer *tok, const d9d_token_ids *ids, bool pair)
{
    d9d_token_ids all = {0};
    size_t n = 0;

    if (d9d_tokenizer_count_special(tok, pair, &n) == D9D_OK) {
        if (d9d_tokenizer_add_special(tok, ids, pair ? ids : NULL, &all) != D9D_OK || all.len < n)
            abort();
        for (size_t i = 0; i < all.len; i++)
            if (all.data[i] >= d9d_tokenizer_vocab_size(tok))
                abort();
    }
    D9D_VEC_RELEASE(&all);
}

static void use(const d9d_tokenizer *tok)
{
    d9d_tokenizer_scratch *s = NULL;
    d9d_token_ids ids = {0};
    d9d_buf back = {0};
    size_t n = 0;

    if (d9d_tokenizer_scratch_create(tok, &s) != D9D_OK)
        return;
    for (int turn = 0; turn < 2; turn++) {
        if (d9d_tokenizer_encode(tok, s, text, sizeof(text) - 1, &ids) != D9D_OK)
            break;
        for (size_t i = 0; i < ids.len; i++)
            if (ids.data[i] >= d9d_tokenizer_vocab_size(tok))
                abort();
        if (turn == 1 && (ids.len != 2 * n || memcmp(ids.data, ids.data + n, n * 4) != 0))
            abort();
        n = ids.len;
    }
    add_special(tok, &ids, false);
    add_special(tok, &ids, true);
    if (d9d_tokenizer_decode(tok, ids.data, ids.len, 0, &back) != D9D_OK)
        abort();
    D9D_VEC_RELEASE(&ids);
    d9d_buf_release(&back);
    d9d_tokenizer_scratch_free(s);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    d9d_tokenizer *tok;

    if (d9d_tokenizer_parse("t.json", (const char *)data, size, &tok) != D9D_OK)
        return 0;
    use(tok);
    d9d_tokenizer_free(tok);
    return 0;
}
