/* json_seal.c - documents with a checksum of their own.  See d9d/base/json.h. */
#include <stdio.h>
#include <string.h>

#include "d9d/base/hash.h"
#include "d9d/base/json.h"

enum { CHECKSUM_SIZE = sizeof("  \"xxh3\": \"\"\n}\n") - 1 + D9D_HASH_HEX - 1 };

/* The last two lines of a document whose text so far is these n bytes. */
static void make_checksum_line(const void *text, size_t n, char seal[CHECKSUM_SIZE + 1])
{
    char hex[D9D_HASH_HEX];

    d9d_hash_hex(d9d_hash_bytes(text, n), hex);
    (void)snprintf(seal, CHECKSUM_SIZE + 1, "  \"xxh3\": \"%s\"\n}\n", hex);
}

d9d_status d9d_json_checksum_append(d9d_buf *b)
{
    static const char end[] = "\n}\n";
    char seal[CHECKSUM_SIZE + 1];

    if (b->len < sizeof(end) - 1 ||
        memcmp(b->data + b->len - sizeof(end) + 1, end, sizeof(end) - 1) != 0)
        return D9D_FAIL(D9D_EINVAL, "seal: not the text of an object, a member a line");
    b->len -= sizeof(end) - 1;
    D9D_TRY(d9d_buf_append(b, ",\n", 2));
    make_checksum_line(b->data, b->len, seal);
    return d9d_buf_append(b, seal, CHECKSUM_SIZE);
}

d9d_status d9d_json_checksum_verify(const char *name, const char *text, size_t n)
{
    char seal[CHECKSUM_SIZE + 1];

    if (n >= CHECKSUM_SIZE) {
        make_checksum_line(text, n - CHECKSUM_SIZE, seal);
        if (memcmp(seal, text + n - CHECKSUM_SIZE, CHECKSUM_SIZE) == 0)
            return D9D_OK;
    }
    return D9D_FAIL(D9D_EFORMAT, "%s: it was changed: its own hash does not agree", name);
}
