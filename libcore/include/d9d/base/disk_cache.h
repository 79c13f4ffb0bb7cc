/* disk_cache.h - a map of byte strings that a file keeps between runs: results that take time to
 * find again and that nothing but time depends on.
 *
 *     d9d_disk_cache c;
 *     d9d_disk_cache_open(&c, dir, "cublaslt", "cuBLASLt 130100, driver 580.95, H200", false);
 *     p = d9d_disk_cache_get(&c, key, n, &size);
 *     if (p == NULL)
 *         d9d_disk_cache_put(&c, key, n, found, found_size);
 *     d9d_disk_cache_flush_idle(&c, 2.0);
 *     d9d_disk_cache_close(&c);
 *
 * `environment` says what the results depend on; each environment has a file of its own,
 * "DIR/NAME-HASH.cache".  It is read at the first get.  Flushing adds what other processes have
 * written since, and replaces the file whole.
 *
 * No call fails, as the caller can always do without.  A file that is damaged, of another version,
 * or another user's is as good as none; one that cannot be written is left alone.  Not thread-safe;
 * any number of processes may share a file.
 */
#ifndef D9D_BASE_DISK_CACHE_H
#define D9D_BASE_DISK_CACHE_H

#include "d9d/base/mem.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct d9d_disk_cache {
    char *path;        /* NULL: nothing is read or written */
    char *environment; /* in the arena, as path is */
    bool read_only;
    bool is_read, changed;
    int64_t put_ns; /* d9d_clock_ns() of the last put */
    d9d_map entries;
    d9d_arena arena;
} d9d_disk_cache;

/* dir NULL: the map is in memory alone. */
D9D_API void d9d_disk_cache_open(d9d_disk_cache *c, const char *dir, const char *name,
                                 const char *environment, bool read_only);
/* Flush and release. */
D9D_API void d9d_disk_cache_close(d9d_disk_cache *c);

/* The value of a key, borrowed until the key is put or the cache closed; NULL if it has none. */
D9D_API const void *d9d_disk_cache_get(d9d_disk_cache *c, const void *key, size_t n, size_t *size);
/* Copies both; replaces the value that a key has. */
D9D_API void d9d_disk_cache_put(d9d_disk_cache *c, const void *key, size_t n, const void *value,
                                size_t size);

/* Write what was put.  Beyond 64 MiB the file keeps only what this process has put or got. */
D9D_API void d9d_disk_cache_flush(d9d_disk_cache *c);
/* The same if nothing was put for so many seconds: cheap, to be called often. */
D9D_API void d9d_disk_cache_flush_idle(d9d_disk_cache *c, double seconds);

#ifdef __cplusplus
}
#endif
#endif /* D9D_BASE_DISK_CACHE_H */
