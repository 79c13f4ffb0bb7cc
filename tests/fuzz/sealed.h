/* sealed.h - an input with the line that makes it believable: its own hash (d9d/base/json.h). */
#ifndef D9D_TESTS_FUZZ_SEALED_H
#define D9D_TESTS_FUZZ_SEALED_H

#include "d9d/base/hash.h"
#include "d9d/base/json.h"

/* The input is what stands before that line. */
static inline d9d_buf sealed(const uint8_t *data, size_t size)
{
    char hex[D9D_HASH_HEX];
    d9d_buf b = {0};

    d9d_hash_hex(d9d_hash_bytes(data, size), hex);
    if (d9d_buf_append(&b, data, size) != D9D_OK ||
        d9d_buf_printf(&b, "  \"xxh3\": \"%s\"\n}\n", hex) != D9D_OK)
        abort();
    return b;
}

#endif
