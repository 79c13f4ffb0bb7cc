/* hash.h - XXH3 hashes, 128-bit (whole or streamed) and 64-bit. */
#ifndef D9D_BASE_HASH_H
#define D9D_BASE_HASH_H

#include <stddef.h>
#include <stdint.h>

#include "d9d/base/status.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct d9d_hash {
    uint64_t hi, lo;
} d9d_hash;

#define D9D_HASH_HEX 33 /* 32 lower-case digits, high half first, and a NUL */

D9D_API d9d_hash d9d_hash_bytes(const void *p, size_t n);
D9D_API uint64_t d9d_hash_u64(const void *p, size_t n);
D9D_API int d9d_hash_equal(d9d_hash a, d9d_hash b);
D9D_API void d9d_hash_hex(d9d_hash h, char out[D9D_HASH_HEX]);
/* EFORMAT unless `hex` is 32 hexadecimal digits. */
D9D_API D9D_MUST_USE d9d_status d9d_hash_parse(const char *hex, d9d_hash *out);

typedef struct d9d_hasher d9d_hasher;
D9D_API D9D_MUST_USE d9d_status d9d_hasher_create(d9d_hasher **out);
D9D_API void d9d_hasher_reset(d9d_hasher *h);
D9D_API void d9d_hasher_add(d9d_hasher *h, const void *p, size_t n);
D9D_API d9d_hash d9d_hasher_digest(const d9d_hasher *h);
D9D_API void d9d_hasher_free(d9d_hasher *h);

/* Hash and size of a file, read in blocks of 1 MiB. */
D9D_API D9D_MUST_USE d9d_status d9d_hash_file(const char *path, d9d_hash *out, uint64_t *size);

#ifdef __cplusplus
}
#endif
#endif /* D9D_BASE_HASH_H */
