/* cache_dir.h - where the choices of a GPU's libraries are kept between runs.
 *
 *     D9D_CACHE_DIR               this directory; "" keeps nothing
 *     $XDG_CACHE_HOME/d9d         else, of the XDG Base Directory Specification
 *     $HOME/.cache/d9d            else
 *
 * One process of a host writes: the first of those that a launcher numbers.
 */
#ifndef D9D_DEVICE_CACHE_DIR_H
#define D9D_DEVICE_CACHE_DIR_H

#include <stdbool.h>

#include "d9d/base/mem.h"

typedef struct d9di_cache_dir {
    const char *path; /* NULL: nothing is kept */
    bool read_only;
} d9di_cache_dir;

/* `get` is getenv(), or a test's.  The path is in the arena. */
d9di_cache_dir d9di_cache_dir_find(char *(*get)(const char *name), d9d_arena *a);

#endif /* D9D_DEVICE_CACHE_DIR_H */
