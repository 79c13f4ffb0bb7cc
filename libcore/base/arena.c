/* arena.c - the arena allocator: many small blocks in a few chunks.  See d9d/base/mem.h. */
#include "d9d/base/mem.h"

#include <stdlib.h>
#include <string.h>

#include "d9d/base/num_format.h"

enum { ALIGN = 16, FIRST_CHUNK = 4096, LAST_CHUNK = 1 << 20 };

/* Under AddressSanitizer every block is a chunk of its own, with poisoned ends. */
#if defined(__has_feature)
#if __has_feature(address_sanitizer)
#define WATCHED 1
#endif
#endif
#if !defined(WATCHED) && defined(__SANITIZE_ADDRESS__)
#define WATCHED 1
#elif !defined(WATCHED)
#define WATCHED 0
#endif

struct d9d_arena_chunk {
    struct d9d_arena_chunk *next;
    size_t used, cap;
    _Alignas(ALIGN) unsigned char bytes[];
};

static struct d9d_arena_chunk *new_chunk(size_t cap)
{
    struct d9d_arena_chunk *c;

    if (cap > (size_t)PTRDIFF_MAX - sizeof(*c))
        return NULL;
    c = calloc(1, sizeof(*c) + cap);
    if (c != NULL)
        c->cap = cap;
    return c;
}

/* A chunk for one large block, linked after the head so that the head's free space stays in use. */
static void *alloc_large(d9d_arena *a, size_t n)
{
    struct d9d_arena_chunk *c = new_chunk(n);

    if (c == NULL)
        return NULL;
    c->used = n;
    if (a->head == NULL) {
        a->head = c;
    } else {
        c->next = a->head->next;
        a->head->next = c;
    }
    return c->bytes;
}

/* A new head of twice the size of the last one. */
static bool push_head(d9d_arena *a)
{
    const size_t last = a->head != NULL ? a->head->cap : 0;
    struct d9d_arena_chunk *c;

    c = new_chunk(last < FIRST_CHUNK ? FIRST_CHUNK : last < LAST_CHUNK ? 2 * last : LAST_CHUNK);
    if (c == NULL)
        return false;
    c->next = a->head;
    a->head = c;
    return true;
}

void *d9d_arena_alloc(d9d_arena *a, size_t n)
{
    void *p;

    if (n > (size_t)PTRDIFF_MAX - ALIGN)
        return NULL;
    if (WATCHED)
        return alloc_large(a, n);
    n = n == 0 ? ALIGN : (n + ALIGN - 1) / ALIGN * ALIGN;
    if (a->head == NULL || a->head->cap - a->head->used < n) {
        if (n > FIRST_CHUNK / 2)
            return alloc_large(a, n);
        if (!push_head(a))
            return NULL;
    }
    p = a->head->bytes + a->head->used;
    a->head->used += n;
    return p;
}

char *d9d_arena_strndup(d9d_arena *a, const char *s, size_t n)
{
    char *copy = n < SIZE_MAX ? d9d_arena_alloc(a, n + 1) : NULL;

    if (copy != NULL && n > 0)
        memcpy(copy, s, n);
    return copy;
}

char *d9d_arena_strdup(d9d_arena *a, const char *s)
{
    return d9d_arena_strndup(a, s, strlen(s));
}

char *d9d_arena_printf(d9d_arena *a, const char *fmt, ...)
{
    char *text = NULL;
    va_list ap;
    int n;

    va_start(ap, fmt);
    n = d9d_num_vformat(NULL, 0, fmt, ap);
    va_end(ap);
    if (n >= 0)
        text = d9d_arena_alloc(a, (size_t)n + 1);
    if (text != NULL) {
        va_start(ap, fmt);
        (void)d9d_num_vformat(text, (size_t)n + 1, fmt, ap);
        va_end(ap);
    }
    return text;
}

void d9d_arena_release(d9d_arena *a)
{
    struct d9d_arena_chunk *c = a->head, *next;

    for (; c != NULL; c = next) {
        next = c->next;
        free(c);
    }
    a->head = NULL;
}
