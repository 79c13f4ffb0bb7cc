/* text_words.c - see text_words.h. */
#include "data/filter/text_words.h"

#include "d9d/base/hash.h"
#include "data/tokenizer/unicode_tables.h"
#include "data/tokenizer/utf8.h"

bool d9di_text_words_is_space(uint32_t c)
{
    return c < 0x80 ? c == ' ' || (c >= 0x09 && c <= 0x0d) || (c >= 0x1c && c <= 0x1f)
                    : d9di_unicode_space(c);
}

static bool is_word(uint32_t c)
{
    if (c < 0x80)
        return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
               c == '_';
    return d9di_unicode_in(d9di_unicode_word, d9di_unicode_word_n, c);
}

static uint32_t fold(uint32_t c)
{
    if (c < 0x80)
        return c >= 'A' && c <= 'Z' ? c + 32 : c;
    return d9di_unicode_to_lower(c);
}

size_t d9di_text_words_chars(const char *text, size_t n)
{
    size_t chars = 0;

    for (size_t i = 0; i < n; i++)
        chars += ((unsigned char)text[i] & 0xc0) != 0x80;
    return chars;
}

static d9d_status begin_word(d9di_text_words *w, uint32_t chars)
{
    return D9D_VEC_PUSH(
        &w->at, (struct d9di_text_word){(uint32_t)w->spaced.len, (uint32_t)w->tight.len, chars});
}

/* Makes room for all words, which fold to three bytes for two at most. */
static d9d_status begin_words(d9di_text_words *w, size_t n)
{
    w->spaced.len = w->tight.len = w->at.len = w->n = 0;
    D9D_TRY(d9d_buf_reserve(&w->tight, n + 8));
    return d9d_buf_reserve(&w->spaced, n * 2 + 8);
}

static d9d_status end_words(d9di_text_words *w, uint32_t chars)
{
    w->n = w->at.len;
    return begin_word(w, chars);
}

d9d_status d9di_text_words_split(d9di_text_words *w, const char *text, size_t n)
{
    bool inside = false;
    uint32_t chars = 0;
    unsigned width;

    D9D_TRY(begin_words(w, n));
    for (size_t i = 0; i < n; i += width) {
        if (d9di_text_words_is_space(d9di_utf8_decode(text + i, &width))) {
            if (inside)
                w->spaced.data[w->spaced.len++] = ' ';
            inside = false;
            continue;
        }
        if (!inside)
            D9D_TRY(begin_word(w, chars));
        inside = true;
        chars++;
        memcpy(w->spaced.data + w->spaced.len, text + i, width);
        memcpy(w->tight.data + w->tight.len, text + i, width);
        w->spaced.len += width;
        w->tight.len += width;
    }
    if (inside)
        w->spaced.data[w->spaced.len++] = ' ';
    return end_words(w, chars);
}

d9d_status d9di_text_words_fold(d9di_text_words *w, const char *text, size_t n)
{
    bool inside = false;
    unsigned width;

    D9D_TRY(begin_words(w, n));
    for (size_t i = 0; i < n; i += width) {
        const uint32_t c = d9di_utf8_decode(text + i, &width);

        if (is_word(c)) {
            if (!inside)
                D9D_TRY(begin_word(w, 0));
            w->spaced.len += d9di_utf8_encode(fold(c), w->spaced.data + w->spaced.len);
        } else if (inside) {
            w->spaced.data[w->spaced.len++] = ' ';
        }
        inside = is_word(c);
    }
    if (inside)
        w->spaced.data[w->spaced.len++] = ' ';
    return end_words(w, 0);
}

uint64_t d9di_text_words_hash(const d9di_text_words *w, size_t i, size_t n)
{
    const uint32_t from = w->at.data[i].spaced, upto = w->at.data[i + n].spaced;

    return d9d_hash_u64(w->spaced.data + from, upto - from - 1);
}

uint64_t d9di_text_words_hash_tight(const d9di_text_words *w, size_t i, size_t n)
{
    const uint32_t from = w->at.data[i].tight, upto = w->at.data[i + n].tight;

    return d9d_hash_u64(w->tight.data + from, upto - from);
}

void d9di_text_words_release(d9di_text_words *w)
{
    d9d_buf_release(&w->spaced);
    d9d_buf_release(&w->tight);
    D9D_VEC_RELEASE(&w->at);
}
