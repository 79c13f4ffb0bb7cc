/* charsmap.c - see charsmap.h. */
#include "data/tokenizer/charsmap.h"

#include <stdlib.h>
#include <string.h>

#include "d9d/data/tokenizer/tokenizer.h"

/* --- loading -------------------------------------------------------------------- */

static int base64_value(char c)
{
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    const char *p = c ? strchr(digits, c) : NULL;

    return p ? (int)(p - digits) : -1;
}

static d9d_status decode_base64(const char *text, size_t n, const char *where, d9d_buf *out)
{
    uint32_t bits = 0;

    while (n > 0 && text[n - 1] == '=')
        n--;
    D9D_TRY(d9d_buf_reserve(out, n));
    for (size_t i = 0; i < n; i++) {
        const int value = base64_value(text[i]);

        if (value < 0)
            return D9D_FAIL(D9D_EFORMAT, "%s: precompiled_charsmap: byte %zu is no base64", where,
                            i);
        bits = bits << 6 | (uint32_t)value;
        if (i % 4 != 0)
            out->data[out->len++] = (char)(bits >> (6 - 2 * (i % 4)));
    }
    return D9D_OK;
}

static uint32_t read_u32(const char *at)
{
    const unsigned char *b = (const unsigned char *)at;

    return b[0] | (uint32_t)b[1] << 8 | (uint32_t)b[2] << 16 | (uint32_t)b[3] << 24;
}

static d9d_status load_blob(d9di_charsmap *m, const d9d_buf *blob, const char *where)
{
    const uint32_t size = blob->len >= 4 ? read_u32(blob->data) : 0;

    if (size == 0 || size % 4 != 0 || size > blob->len - 4)
        return D9D_FAIL(
            D9D_EFORMAT,
            "%s: precompiled_charsmap: its trie has %u bytes, of the %zu that are there", where,
            size, blob->len);
    m->n_units = size / 4;
    m->n_texts = blob->len - 4 - size;
    m->trie = calloc(1, size);
    m->texts = malloc(m->n_texts + 1);
    if (!m->trie || !m->texts)
        return D9D_FAIL(D9D_ENOMEM, "%s: no memory", where);
    for (size_t i = 0; i < m->n_units; i++)
        m->trie[i] = read_u32(blob->data + 4 + 4 * i);
    memcpy(m->texts, blob->data + 4 + size, m->n_texts);
    m->texts[m->n_texts] = '\0';
    if (d9d_utf8_valid_up_to(m->texts, m->n_texts) != m->n_texts)
        return D9D_FAIL(D9D_EFORMAT, "%s: precompiled_charsmap: its texts are not UTF-8", where);
    return D9D_OK;
}

d9d_status d9di_charsmap_init(const char *base64, size_t n, const char *where, d9di_charsmap *out)
{
    d9d_buf blob = {0};
    d9d_status st;

    D9D_TRY_OR(st, decode_base64(base64, n, where, &blob), out);
    D9D_TRY_OR(st, load_blob(out, &blob, where), out);
    for (unsigned i = 0; i < 128; i++) {
        const char c = (char)i;

        out->ascii[i] = d9di_charsmap_find(out, &c, 1) != NULL;
    }
out:
    d9d_buf_release(&blob);
    return st;
}

void d9di_charsmap_release(d9di_charsmap *m)
{
    free(m->trie);
    free(m->texts);
    *m = (d9di_charsmap){0};
}

/* --- the double array, as the library Darts-clone writes it -------------------------- *
 *
 *     node     label (8 bits) | has a value (1) | offset times 256 (1) | offset (22)
 *     value    value (31 bits) | 1
 *
 * The children of a node at `at` are at (at ^ offset) ^ label, its value at at ^ offset.
 */

static size_t unit_offset(uint32_t unit)
{
    return (size_t)(unit >> 10) << (unit >> 6 & 8);
}

const char *d9di_charsmap_find(const d9di_charsmap *m, const char *text, size_t n)
{
    size_t at = unit_offset(m->trie[0]);

    for (size_t i = 0; i < n && text[i] != '\0'; i++) {
        const unsigned char c = (unsigned char)text[i];
        uint32_t unit, value;

        at ^= c;
        if (at >= m->n_units)
            return NULL;
        unit = m->trie[at];
        if ((unit & 0x800000ff) != c)
            return NULL;
        at ^= unit_offset(unit);
        if (!(unit >> 8 & 1))
            continue;
        value = at < m->n_units ? m->trie[at] & 0x7fffffff : UINT32_MAX;
        return value <= m->n_texts && ((unsigned char)m->texts[value] & 0xc0) != 0x80
                   ? m->texts + value
                   : NULL;
    }
    return NULL;
}
