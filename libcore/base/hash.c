/* hash.c - XXH3 over bytes, streams and files.  See d9d/base/hash.h. */
#include "d9d/base/hash.h"

#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#include "d9d/base/fs.h"
#include "d9d/base/hex.h"

enum { READ_BLOCK = 1 << 20 };

struct d9d_hasher {
    XXH3_state_t *state;
};

static d9d_hash from_xxh(XXH128_hash_t x)
{
    return (d9d_hash){.hi = x.high64, .lo = x.low64};
}

d9d_hash d9d_hash_bytes(const void *p, size_t n)
{
    return from_xxh(XXH3_128bits(n > 0 ? p : "", n));
}

uint64_t d9d_hash_u64(const void *p, size_t n)
{
    return XXH3_64bits(n > 0 ? p : "", n);
}

int d9d_hash_equal(d9d_hash a, d9d_hash b)
{
    return a.hi == b.hi && a.lo == b.lo;
}

void d9d_hash_hex(d9d_hash h, char out[D9D_HASH_HEX])
{
    XXH128_canonical_t c;

    XXH128_canonicalFromHash(&c, (XXH128_hash_t){.high64 = h.hi, .low64 = h.lo});
    d9d_hex_format(c.digest, sizeof(c.digest), out);
}

d9d_status d9d_hash_parse(const char *hex, d9d_hash *out)
{
    const size_t want = D9D_HASH_HEX - 1;
    XXH128_canonical_t c;
    size_t digits;

    if (strnlen(hex, want + 1) != want)
        return D9D_FAIL(D9D_EFORMAT, "hash \"%.64s\" has %zu characters, must have %zu", hex,
                        strlen(hex), want);
    digits = d9d_hex_parse(hex, sizeof(c.digest), c.digest);
    if (digits < want)
        return D9D_FAIL(D9D_EFORMAT, "hash \"%s\": character %zu is not a hexadecimal digit", hex,
                        digits + 1);
    *out = from_xxh(XXH128_hashFromCanonical(&c));
    return D9D_OK;
}

d9d_status d9d_hasher_create(d9d_hasher **out)
{
    d9d_hasher *h = calloc(1, sizeof(*h));

    if (h != NULL)
        h->state = XXH3_createState();
    if (h == NULL || h->state == NULL) {
        d9d_hasher_free(h);
        return D9D_FAIL(D9D_ENOMEM, "hash: cannot allocate a state");
    }
    d9d_hasher_reset(h);
    *out = h;
    return D9D_OK;
}

void d9d_hasher_reset(d9d_hasher *h)
{
    (void)XXH3_128bits_reset(h->state);
}

void d9d_hasher_add(d9d_hasher *h, const void *p, size_t n)
{
    if (n > 0)
        (void)XXH3_128bits_update(h->state, p, n);
}

d9d_hash d9d_hasher_digest(const d9d_hasher *h)
{
    return from_xxh(XXH3_128bits_digest(h->state));
}

void d9d_hasher_free(d9d_hasher *h)
{
    if (h == NULL)
        return;
    (void)XXH3_freeState(h->state);
    free(h);
}

static d9d_status add_file(d9d_hasher *h, const d9d_file *f, uint64_t size, void *block)
{
    for (uint64_t at = 0; at < size;) {
        const size_t n = size - at < READ_BLOCK ? (size_t)(size - at) : READ_BLOCK;

        D9D_TRY(d9d_file_read_at(f, block, n, at));
        d9d_hasher_add(h, block, n);
        at += n;
    }
    return D9D_OK;
}

d9d_status d9d_hash_file(const char *path, d9d_hash *out, uint64_t *size)
{
    d9d_file f = {.fd = -1};
    d9d_hasher *h = NULL;
    void *block = NULL;
    uint64_t bytes = 0;
    d9d_status st;

    D9D_TRY_OR(st, d9d_file_open(path, &f), out);
    D9D_TRY_OR(st, d9d_fs_size(path, &bytes), out);
    D9D_TRY_OR(st, d9d_hasher_create(&h), out);
    block = malloc(READ_BLOCK);
    if (block == NULL) {
        st = D9D_FAIL(D9D_ENOMEM, "%s: cannot allocate %d bytes to hash it", path, READ_BLOCK);
        goto out;
    }
    D9D_TRY_OR(st, add_file(h, &f, bytes, block), out);
    *out = d9d_hasher_digest(h);
    if (size != NULL)
        *size = bytes;
out:
    free(block);
    d9d_hasher_free(h);
    d9d_file_release(&f);
    return st;
}
