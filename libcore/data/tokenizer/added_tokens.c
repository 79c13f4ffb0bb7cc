/* added_tokens.c - see added_tokens.h. */
#include "data/tokenizer/added_tokens.h"

#include <stdlib.h>
#include <string.h>

#include "data/tokenizer/unicode_tables.h"
#include "data/tokenizer/utf8.h"

/* The child of `parent` (0: the root) for `byte`; 0 when there is none. */
static uint32_t find_child(const d9di_added_tokens *set, uint32_t parent, unsigned char byte)
{
    uint32_t at;

    if (parent == 0)
        return set->root[byte];
    for (at = set->nodes.data[parent - 1].child; at != 0; at = set->nodes.data[at - 1].sibling)
        if (set->nodes.data[at - 1].byte == byte)
            return at;
    return 0;
}

static d9d_status add_child(d9di_added_tokens *set, uint32_t parent, unsigned char byte,
                            uint32_t *out)
{
    const struct d9di_added_tokens_node node = {
        .byte = byte, .sibling = parent ? set->nodes.data[parent - 1].child : 0};

    if (set->nodes.len >= UINT32_MAX - 1)
        return D9D_FAIL(D9D_EFORMAT, "added tokens have more than %u bytes", UINT32_MAX - 1);
    D9D_TRY(D9D_VEC_PUSH(&set->nodes, node));
    *out = (uint32_t)set->nodes.len;
    if (parent) {
        set->nodes.data[parent - 1].child = *out;
    } else {
        set->root[byte] = *out;
        set->first = (char)byte;
        set->n_firsts++;
    }
    return D9D_OK;
}

d9d_status d9di_added_tokens_add(d9di_added_tokens *set, const char *text, size_t n,
                                 d9di_added_tokens_entry token)
{
    uint32_t at = 0;
    size_t i;

    if (n == 0)
        return D9D_OK;
    for (i = 0; i < n; i++) {
        uint32_t next = find_child(set, at, (unsigned char)text[i]);

        if (next == 0)
            D9D_TRY(add_child(set, at, (unsigned char)text[i], &next));
        at = next;
    }
    if (set->nodes.data[at - 1].token)
        return D9D_OK;
    D9D_TRY(D9D_VEC_PUSH(&set->tokens, token));
    set->nodes.data[at - 1].token = (uint32_t)set->tokens.len;
    return D9D_OK;
}

void d9di_added_tokens_release(d9di_added_tokens *set)
{
    D9D_VEC_RELEASE(&set->nodes);
    D9D_VEC_RELEASE(&set->tokens);
}

/* Length of the longest accepted token at the start of text[0, n); 0 if there is none. */
static size_t match_longest(const d9di_added_tokens *set, const char *text, size_t n,
                            d9di_added_tokens_filter accepts, const void *arg,
                            const d9di_added_tokens_entry **token)
{
    uint32_t at = 0;
    size_t i, best = 0;

    for (i = 0; i < n; i++) {
        const d9di_added_tokens_entry *found;

        at = find_child(set, at, (unsigned char)text[i]);
        if (at == 0)
            break;
        if (set->nodes.data[at - 1].token == 0)
            continue;
        found = &set->tokens.data[set->nodes.data[at - 1].token - 1];
        if (!accepts || accepts(arg, found, text, i + 1)) {
            *token = found;
            best = i + 1;
        }
    }
    return best;
}

static bool is_word_char(uint32_t c)
{
    return d9di_unicode_in(d9di_unicode_word, d9di_unicode_word_n, c);
}

static bool is_whole_word(const char *text, size_t n, size_t start, size_t end)
{
    unsigned w;

    return (start == 0 ||
            !is_word_char(d9di_utf8_decode(text + d9di_utf8_prev(text, start), &w))) &&
           (end == n || !is_word_char(d9di_utf8_decode(text + end, &w)));
}

/* The next place from `at` on where a token may begin; n if there is none. */
static size_t find_candidate(const d9di_added_tokens *set, const char *text, size_t n, size_t at)
{
    if (set->n_firsts == 1) {
        const char *p = memchr(text + at, set->first, n - at);

        return p ? (size_t)(p - text) : n;
    }
    while (at < n && set->root[(unsigned char)text[at]] == 0)
        at++;
    return at;
}

d9d_status d9di_added_tokens_split(const d9di_added_tokens *set, const char *text, size_t n,
                                   d9di_added_tokens_filter accepts, d9di_added_tokens_fn fn,
                                   void *arg)
{
    size_t at = 0, done = 0; /* `done` may be ahead of `at`, past stripped space */

    while (set->tokens.len > 0 && (at = find_candidate(set, text, n, at)) < n) {
        const d9di_added_tokens_entry *token = NULL;
        const size_t len = match_longest(set, text + at, n - at, accepts, arg, &token);
        size_t start = at, end = at + len;

        if (len == 0) {
            at++;
            continue;
        }
        at = end;
        if (token->single_word && !is_whole_word(text, n, start, end))
            continue;
        if (token->lstrip)
            start = start > done ? d9di_unicode_space_start(text, done, start) : done;
        if (token->rstrip)
            end = d9di_unicode_skip_space(text, n, end);
        if (done < start)
            D9D_TRY(fn(arg, NULL, text + done, start - done));
        if (start < end) /* otherwise the previous token has stripped all of it */
            D9D_TRY(fn(arg, token, text + end, 0));
        done = end;
    }
    return done < n ? fn(arg, NULL, text + done, n - done) : D9D_OK;
}
