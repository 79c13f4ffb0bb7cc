/* size.h - amounts of bytes as people write them: 4096, 512kB, 4GB, 1.5GiB. */
#ifndef D9D_BASE_SIZE_H
#define D9D_BASE_SIZE_H

#include <stdbool.h>
#include <stdint.h>

#include "d9d/base/export.h"

#ifdef __cplusplus
extern "C" {
#endif

/* A number below 2^62 and, of powers of 1000, one of "kB MB GB TB" with or without the B, or, of
 * powers of 1024, of "KiB MiB GiB TiB". */
D9D_API bool d9d_size_parse(const char *text, uint64_t *out);

#ifdef __cplusplus
}
#endif
#endif /* D9D_BASE_SIZE_H */
