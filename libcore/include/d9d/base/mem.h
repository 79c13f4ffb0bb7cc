/* mem.h - arenas, growable bytes, growable arrays, and a string map.
 *
 * Sizes are checked: a product or a sum that overflows is D9D_ENOMEM, never a
 * short block.
 */
#ifndef D9D_BASE_MEM_H
#define D9D_BASE_MEM_H

#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include "d9d/base/export.h"
#include "d9d/base/status.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Checked arithmetic: false on overflow. */
static inline bool d9d_checked_mul_u64(uint64_t a, uint64_t b, uint64_t *out)
{
    return !__builtin_mul_overflow(a, b, out);
}
static inline bool d9d_checked_add_u64(uint64_t a, uint64_t b, uint64_t *out)
{
    return !__builtin_add_overflow(a, b, out);
}

/* Bytes that this process may still allocate: what the host has available, bounded by the limits of
 * its control groups (cgroups).  Page cache does not count as used. */
D9D_API uint64_t d9d_mem_available(void);

/* --- arena: many small blocks, released together ----------------------- */

/* Blocks are aligned to 16 bytes and zeroed.  Not thread-safe. */
typedef struct d9d_arena {
    struct d9d_arena_chunk *head;
} d9d_arena; /* zero-initialised is ready to use */

/* n bytes, or NULL when memory is out (no error record is set). */
D9D_API void *d9d_arena_alloc(d9d_arena *a, size_t n);
D9D_API char *d9d_arena_strdup(d9d_arena *a, const char *s);
D9D_API char *d9d_arena_strndup(d9d_arena *a, const char *s, size_t n);
D9D_API char *d9d_arena_printf(d9d_arena *a, const char *fmt, ...) D9D_PRINTF(2, 3);
/* Release every block; the arena may be used again. */
D9D_API void d9d_arena_release(d9d_arena *a);

/* --- buf: bytes that grow; always NUL-terminated past len -------------- */

typedef struct d9d_buf {
    char *data; /* NULL until something is added */
    size_t len, cap;
} d9d_buf; /* zero-initialised is ready to use */

D9D_API D9D_MUST_USE d9d_status d9d_buf_reserve(d9d_buf *b, size_t extra);
D9D_API D9D_MUST_USE d9d_status d9d_buf_append(d9d_buf *b, const void *p, size_t n);
D9D_API D9D_MUST_USE d9d_status d9d_buf_printf(d9d_buf *b, const char *fmt, ...) D9D_PRINTF(2, 3);
D9D_API D9D_MUST_USE d9d_status d9d_buf_vprintf(d9d_buf *b, const char *fmt, va_list ap)
    D9D_PRINTF(2, 0);
D9D_API void d9d_buf_release(d9d_buf *b);

/* --- vec: a typed array that grows ------------------------------------- *
 *
 *     D9D_VEC(int64_t) v = {0};
 *     D9D_TRY(D9D_VEC_PUSH(&v, 7));
 *     for (size_t i = 0; i < v.len; i++) use(v.data[i]);
 *     D9D_VEC_RELEASE(&v);
 */
#define D9D_VEC(T)                                                                                 \
    struct {                                                                                       \
        T *data;                                                                                   \
        size_t len, cap;                                                                           \
    }
#define D9D_VEC_RESERVE(v, extra)                                                                  \
    d9d_vec_grow((void **)&(v)->data, &(v)->cap, (v)->len, (extra), sizeof(*(v)->data))
#define D9D_VEC_PUSH(v, ...)                                                                       \
    (D9D_VEC_RESERVE((v), 1) == D9D_OK ? ((v)->data[(v)->len++] = (__VA_ARGS__), D9D_OK)           \
                                       : D9D_ENOMEM)
#define D9D_VEC_RELEASE(v) (free((v)->data), (v)->data = NULL, (v)->len = (v)->cap = 0)

D9D_API D9D_MUST_USE d9d_status d9d_vec_grow(void **data, size_t *cap, size_t len, size_t extra,
                                             size_t elem);

/* --- map: string to pointer, iterated in order of insertion ------------ */

typedef struct d9d_map {
    struct d9d_map_entry {
        char *key; /* owned by the map */
        size_t key_len;
        void *value; /* borrowed */
    } * entries;
    size_t len, cap;
    uint32_t *slots; /* index + 1 into entries, 0 free; a power of two of them */
    size_t n_slots;
} d9d_map; /* zero-initialised is an empty map */

/* Insert; D9D_EINVAL when the key is there already (the old value stays). */
D9D_API D9D_MUST_USE d9d_status d9d_map_put(d9d_map *m, const char *key, size_t key_len,
                                            void *value);
/* The value, or NULL when the key is absent; d9d_map_has() tells a stored NULL. */
D9D_API void *d9d_map_get(const d9d_map *m, const char *key, size_t key_len);
D9D_API bool d9d_map_has(const d9d_map *m, const char *key, size_t key_len);
D9D_API void d9d_map_release(d9d_map *m);

#ifdef __cplusplus
}
#endif
#endif /* D9D_BASE_MEM_H */
