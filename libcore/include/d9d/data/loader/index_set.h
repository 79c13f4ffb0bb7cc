/* index_set.h - a set of numbers from text: "3, 17, 100-200".
 *
 * Numbers and ranges, both ends meant, between commas or white space; in a file also comments
 * from "#" to the end of a line.  What d9d-train's --skip-samples and data.skip_samples take.
 */
#ifndef D9D_DATA_LOADER_INDEX_SET_H
#define D9D_DATA_LOADER_INDEX_SET_H

#include <stdbool.h>
#include <stdint.h>

#include "d9d/base/mem.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct d9d_index_set_range {
    int64_t first, last;
} d9d_index_set_range;

/* Ascending and apart; zero-initialised is empty. */
typedef struct d9d_index_set {
    D9D_VEC(d9d_index_set_range) ranges;
} d9d_index_set;

/* A list, where `text` begins with a digit and holds nothing but digits, commas, hyphens and
 * spaces; else the name of a file.  ECONFIG with the place of what is no number. */
D9D_API D9D_MUST_USE d9d_status d9d_index_set_read(const char *text, d9d_index_set *out);
D9D_API void d9d_index_set_release(d9d_index_set *s);

D9D_API bool d9d_index_set_has(const d9d_index_set *s, int64_t n);
D9D_API int64_t d9d_index_set_count(const d9d_index_set *s);
/* The largest; -1 where there are none. */
D9D_API int64_t d9d_index_set_max(const d9d_index_set *s);

#ifdef __cplusplus
}
#endif
#endif /* D9D_DATA_LOADER_INDEX_SET_H */
