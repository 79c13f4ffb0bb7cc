/* index_set.h - a set of integers from text: "3, 17, 100-200".
 *
 * Numbers and inclusive ranges, separated by commas or white space; a file may also have comments
 * from "#" to the end of a line. d9d-train's --skip-samples and data.skip_samples use it.
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

/* Ascending, disjoint ranges; zero-initialised is empty. */
typedef struct d9d_index_set {
    D9D_VEC(d9d_index_set_range) ranges;
} d9d_index_set;

/* Reads a list if `text` begins with a digit and has only digits, commas, hyphens and spaces;
 * otherwise `text` is a file name.  ECONFIG names the place of what is not a number. */
D9D_API D9D_MUST_USE d9d_status d9d_index_set_read(const char *text, d9d_index_set *out);
D9D_API void d9d_index_set_release(d9d_index_set *s);

D9D_API bool d9d_index_set_has(const d9d_index_set *s, int64_t n);
D9D_API int64_t d9d_index_set_count(const d9d_index_set *s);
/* The largest member; -1 if the set is empty. */
D9D_API int64_t d9d_index_set_max(const d9d_index_set *s);

#ifdef __cplusplus
}
#endif
#endif /* D9D_DATA_LOADER_INDEX_SET_H */
