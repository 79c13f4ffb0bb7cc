/* buf.c - growable bytes.  See d9d/base/mem.h. */
#include "d9d/base/mem.h"

#include <stdlib.h>
#include <string.h>

#include "d9d/base/num_format.h"

d9d_status d9d_buf_reserve(d9d_buf *b, size_t extra)
{
    if (extra == SIZE_MAX)
        return D9D_FAIL(D9D_ENOMEM, "buffer: %zu and %zu more bytes overflow", b->len, extra);
    D9D_TRY(d9d_vec_grow((void **)&b->data, &b->cap, b->len, extra + 1, 1));
    b->data[b->len] = '\0';
    return D9D_OK;
}

d9d_status d9d_buf_append(d9d_buf *b, const void *p, size_t n)
{
    D9D_TRY(d9d_buf_reserve(b, n));
    if (n > 0)
        memcpy(b->data + b->len, p, n);
    b->len += n;
    b->data[b->len] = '\0';
    return D9D_OK;
}

d9d_status d9d_buf_vprintf(d9d_buf *b, const char *fmt, va_list ap)
{
    va_list again;
    int n;

    va_copy(again, ap);
    n = d9d_num_vformat(NULL, 0, fmt, again);
    va_end(again);
    if (n < 0)
        return D9D_FAIL(D9D_EINVAL, "buffer: cannot format \"%s\"", fmt);
    D9D_TRY(d9d_buf_reserve(b, (size_t)n));
    (void)d9d_num_vformat(b->data + b->len, (size_t)n + 1, fmt, ap);
    b->len += (size_t)n;
    return D9D_OK;
}

d9d_status d9d_buf_printf(d9d_buf *b, const char *fmt, ...)
{
    d9d_status st;
    va_list ap;

    va_start(ap, fmt);
    st = d9d_buf_vprintf(b, fmt, ap);
    va_end(ap);
    return st;
}

void d9d_buf_release(d9d_buf *b)
{
    free(b->data);
    *b = (d9d_buf){0};
}
