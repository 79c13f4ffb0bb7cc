/* utf8.h - iteration over valid UTF-8, and fast paths for ASCII. */
#ifndef D9DI_DATA_TOKENIZER_UTF8_H
#define D9DI_DATA_TOKENIZER_UTF8_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

/* Length of the byte order mark at the start of a text, which is not part of the text; 0 without
 * one. */
static inline size_t d9di_utf8_bom(const char *text, size_t n)
{
    return n >= 3 && memcmp(text, "\xef\xbb\xbf", 3) == 0 ? 3 : 0;
}

/* Width of the character that begins with `lead`. */
static inline unsigned d9di_utf8_width(unsigned char lead)
{
    return lead < 0x80 ? 1u : lead < 0xe0 ? 2u : lead < 0xf0 ? 3u : 4u;
}

/* The character at s, its width in *w. */
static inline uint32_t d9di_utf8_decode(const char *text, unsigned *w)
{
    const unsigned char *s = (const unsigned char *)text;

    *w = d9di_utf8_width(s[0]);
    switch (*w) {
    case 1: return s[0];
    case 2: return (s[0] & 0x1fu) << 6 | (s[1] & 0x3fu);
    case 3: return (s[0] & 0x0fu) << 12 | (s[1] & 0x3fu) << 6 | (s[2] & 0x3fu);
    default:
        return (s[0] & 0x07u) << 18 | (s[1] & 0x3fu) << 12 | (s[2] & 0x3fu) << 6 | (s[3] & 0x3fu);
    }
}

/* Number of leading ASCII bytes. */
static inline size_t d9di_utf8_ascii_prefix(const char *text, size_t n)
{
    const uint64_t high = UINT64_C(0x8080808080808080);
    uint64_t word[4];
    size_t i = 0;

    for (; n - i >= sizeof(word); i += sizeof(word)) {
        memcpy(word, text + i, sizeof(word));
        if (((word[0] | word[1] | word[2] | word[3]) & high) != 0)
            break;
    }
    while (i < n && (unsigned char)text[i] < 0x80)
        i++;
    return i;
}

/* Writes `c`; returns the number of bytes, 1 to 4. */
static inline unsigned d9di_utf8_encode(uint32_t c, char *text)
{
    unsigned char *s = (unsigned char *)text;

    if (c < 0x80) {
        s[0] = (unsigned char)c;
        return 1;
    }
    if (c < 0x800) {
        s[0] = (unsigned char)(0xc0 | c >> 6);
        s[1] = (unsigned char)(0x80 | (c & 0x3f));
        return 2;
    }
    if (c < 0x10000) {
        s[0] = (unsigned char)(0xe0 | c >> 12);
        s[1] = (unsigned char)(0x80 | (c >> 6 & 0x3f));
        s[2] = (unsigned char)(0x80 | (c & 0x3f));
        return 3;
    }
    s[0] = (unsigned char)(0xf0 | c >> 18);
    s[1] = (unsigned char)(0x80 | (c >> 12 & 0x3f));
    s[2] = (unsigned char)(0x80 | (c >> 6 & 0x3f));
    s[3] = (unsigned char)(0x80 | (c & 0x3f));
    return 4;
}

/* The start of the character that ends before `at` > 0. */
static inline size_t d9di_utf8_prev(const char *text, size_t at)
{
    do
        at--;
    while (((unsigned char)text[at] & 0xc0) == 0x80);
    return at;
}

#endif
