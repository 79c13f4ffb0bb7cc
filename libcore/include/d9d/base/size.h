/* size.h - parsing of byte sizes: 4096, 512kB, 4GB, 1.5GiB. */
#ifndef D9D_BASE_SIZE_H
#define D9D_BASE_SIZE_H

#include <stdbool.h>
#include <stdint.h>

#include "d9d/base/export.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Parse a number below 2^62 with an optional unit: "kB MB GB TB", with or without the B (powers of
 * 1000), or "KiB MiB GiB TiB" (powers of 1024).  False for anything else. */
D9D_API bool d9d_size_parse(const char *text, uint64_t *out);

#ifdef __cplusplus
}
#endif
#endif /* D9D_BASE_SIZE_H */
