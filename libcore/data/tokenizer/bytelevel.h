/* bytelevel.h - the alphabet of byte-level BPE: a printable character for each byte.
 *
 * Bytes that are printable in Latin-1 stand for themselves; the other 68, in
 * ascending order, are U+0100, U+0101, ... (GPT-2's bytes_to_unicode). */
#ifndef D9DI_DATA_TOKENIZER_BYTELEVEL_H
#define D9DI_DATA_TOKENIZER_BYTELEVEL_H

#include <stddef.h>
#include <stdint.h>

/* The character of a byte; at most U+0143, so one or two bytes of UTF-8. */
static inline uint32_t d9di_bytelevel_char(unsigned char b)
{
    if (b <= 0x20)
        return 0x100u + b;
    if (b >= 0x7f && b <= 0xa0)
        return 0x121u + (b - 0x7fu);
    return b == 0xad ? 0x143u : b;
}

/* The byte of a character; -1 if it represents none. */
static inline int d9di_bytelevel_byte(uint32_t c)
{
    if (c >= 0x100 && c <= 0x120)
        return (int)(c - 0x100);
    if (c >= 0x121 && c <= 0x142)
        return (int)(c - 0x121 + 0x7f);
    if (c == 0x143)
        return 0xad;
    return (c > 0x20 && c < 0x7f) || (c > 0xa0 && c < 0x100 && c != 0xad) ? (int)c : -1;
}

#endif
