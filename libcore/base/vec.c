/* vec.c - growable typed arrays.  See d9d/base/mem.h. */
#include "d9d/base/mem.h"

#include <stdlib.h>
#include <string.h>

/* Large arrays grow by a quarter instead of doubling, which would waste up to half. */
enum { FIRST_CAP = 8, DOUBLING_LIMIT = 1 << 20 };

static size_t next_cap(size_t cap, size_t elem)
{
    if (cap > SIZE_MAX / 2)
        return SIZE_MAX;
    return cap < DOUBLING_LIMIT / elem ? 2 * cap : cap + cap / 4;
}

d9d_status d9d_vec_grow(void **data, size_t *cap, size_t len, size_t extra, size_t elem)
{
    size_t need, capacity, bytes;
    void *p;

    if (extra <= *cap - len)
        return D9D_OK;
    if (__builtin_add_overflow(len, extra, &need))
        return D9D_FAIL(D9D_ENOMEM, "array: %zu and %zu more elements overflow", len, extra);
    capacity = next_cap(*cap, elem);
    if (capacity < FIRST_CAP)
        capacity = FIRST_CAP;
    if (capacity < need)
        capacity = need;
    if (__builtin_mul_overflow(capacity, elem, &bytes) || bytes > (size_t)PTRDIFF_MAX)
        return D9D_FAIL(D9D_ENOMEM, "array: %zu elements of %zu bytes overflow", need, elem);

    /* The caller's pointer is a T *: access it by its bytes (aliasing). */
    memcpy(&p, data, sizeof(p));
    p = realloc(p, bytes);
    if (p == NULL)
        return D9D_FAIL(D9D_ENOMEM, "array: cannot allocate %zu elements of %zu bytes", capacity,
                        elem);
    memcpy(data, &p, sizeof(p));
    *cap = capacity;
    return D9D_OK;
}
