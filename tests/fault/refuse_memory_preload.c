/* refuse_memory_preload.c - LD_PRELOAD library: refuses a process's n-th request for host memory,
 * D9D_POOR_AT=n; 0: none.  Only requests of at least D9D_POOR_BYTES count, of any size without it.
 * Writes the number of requests and of refusals to the file D9D_POOR_COUNT.  Jansson's parser,
 * which does not check its allocations, is exempt. */
#include <dlfcn.h>
#include <errno.h>
#include <jansson.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>

extern void *__libc_malloc(size_t n);
extern void *__libc_calloc(size_t n, size_t size);
extern void *__libc_realloc(void *p, size_t n);

static atomic_long calls, refused_at, refused, least;

__attribute__((constructor)) static void begin(void)
{
    const char *at = getenv("D9D_POOR_AT"), *bytes = getenv("D9D_POOR_BYTES");

    atomic_store(&least, bytes != NULL ? atol(bytes) : 0);
    atomic_store(&calls, 0);
    atomic_store(&refused_at, at != NULL ? atol(at) : 0);
}

__attribute__((destructor)) static void end(void)
{
    const char *path = getenv("D9D_POOR_COUNT");
    const long n = atomic_load(&calls);
    FILE *f = path != NULL ? fopen(path, "w") : NULL;

    if (f != NULL) {
        fprintf(f, "%ld %ld\n", n, atomic_load(&refused));
        fclose(f);
    }
}

static _Thread_local int parsing;

json_t *json_loadb(const char *text, size_t n, size_t flags, json_error_t *error)
{
    json_t *(*load)(const char *, size_t, size_t, json_error_t *);
    json_t *v;

    parsing++;
    *(void **)&load = dlsym(RTLD_NEXT, "json_loadb");
    v = load(text, n, flags, error);
    parsing--;
    return v;
}

static int refuse(size_t bytes)
{
    if (parsing > 0 || bytes < (size_t)atomic_load(&least))
        return 0;
    if (atomic_fetch_add(&calls, 1) + 1 != atomic_load(&refused_at))
        return 0;
    atomic_fetch_add(&refused, 1);
    errno = ENOMEM;
    return 1;
}

void *malloc(size_t n)
{
    return refuse(n) ? NULL : __libc_malloc(n);
}

void *calloc(size_t n, size_t size)
{
    return refuse(n * size) ? NULL : __libc_calloc(n, size);
}

void *realloc(void *p, size_t n)
{
    return refuse(n) ? NULL : __libc_realloc(p, n);
}
