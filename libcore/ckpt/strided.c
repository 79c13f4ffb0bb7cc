/* strided.c - see strided.h. */
#include "ckpt/strided.h"

#include <stdbool.h>
#include <string.h>

#include "d9d/base/dtype.h"

struct dim {
    int64_t n, src, dst;
};

/* Two inner dimensions: `row` in steps of its strides, `col` likewise. */
typedef void (*plane_fn)(const unsigned char *src, unsigned char *dst, struct dim row,
                         struct dim col);

enum { TILE = 32 };

#define PLANE(T, name)                                                                             \
    static void name(const unsigned char *src, unsigned char *dst, struct dim row, struct dim col) \
    {                                                                                              \
        const T *s = (const T *)(const void *)src;                                                 \
        T *d = (T *)(void *)dst;                                                                   \
                                                                                                   \
        for (int64_t i0 = 0; i0 < row.n; i0 += TILE)                                               \
            for (int64_t j0 = 0; j0 < col.n; j0 += TILE) {                                         \
                int64_t i1 = row.n - i0 < TILE ? row.n : i0 + TILE;                                \
                int64_t j1 = col.n - j0 < TILE ? col.n : j0 + TILE;                                \
                                                                                                   \
                for (int64_t i = i0; i < i1; i++)                                                  \
                    for (int64_t j = j0; j < j1; j++)                                              \
                        d[i * row.dst + j * col.dst] = s[i * row.src + j * col.src];               \
            }                                                                                      \
    }

PLANE(uint8_t, plane1)
PLANE(uint16_t, plane2)
PLANE(uint32_t, plane4)
PLANE(uint64_t, plane8)

/* Drop dimensions of one element, join neighbours that are one run on both sides. */
static int simplify(int ndim, const int64_t *size, const int64_t *src, const int64_t *dst,
                    struct dim *out)
{
    int n = 0;

    for (int d = 0; d < ndim; d++) {
        struct dim x = {size[d], src[d], dst[d]};
        struct dim *last = &out[n > 0 ? n - 1 : 0];

        if (x.n == 1)
            continue;
        if (n > 0 && last->src == x.src * x.n && last->dst == x.dst * x.n)
            *last = (struct dim){last->n * x.n, x.src, x.dst};
        else
            out[n++] = x;
    }
    return n;
}

/* Rows of contiguous elements, where the innermost dimension is one on both sides. */
static void copy_rows(const unsigned char *src, unsigned char *dst, struct dim row, struct dim col,
                      size_t width)
{
    for (int64_t i = 0; i < row.n; i++)
        memcpy(dst + (size_t)(i * row.dst) * width, src + (size_t)(i * row.src) * width,
               (size_t)col.n * width);
}

void d9di_strided_copy(int ndim, const int64_t *size, size_t width, const void *src,
                       const int64_t *src_stride, void *dst, const int64_t *dst_stride)
{
    plane_fn plane = width == 1 ? plane1 : width == 2 ? plane2 : width == 4 ? plane4 : plane8;
    struct dim dims[D9D_MAX_DIMS + 2] = {{1, 0, 0}}, row, col;
    int64_t index[D9D_MAX_DIMS + 2] = {0};
    const unsigned char *s = src;
    unsigned char *d = dst;
    int n = simplify(ndim, size, src_stride, dst_stride, dims), inner;
    bool rows;

    while (n < 2) { /* a plane has two dimensions */
        memmove(dims + 1, dims, (size_t)n * sizeof(*dims));
        dims[0] = (struct dim){1, 0, 0};
        n++;
    }
    col = dims[--n];
    rows = col.src == 1 && col.dst == 1;
    /* The other dimension of the plane: the innermost of the source, for tiles to pay. */
    inner = n - 1;
    for (int k = 0; k < n && !rows; k++)
        if (dims[k].n > 1 && dims[k].src < dims[inner].src)
            inner = k;
    row = dims[inner];
    memmove(dims + inner, dims + inner + 1, (size_t)(--n - inner) * sizeof(*dims));
    for (int k = 0; k >= 0;) {
        if (rows)
            copy_rows(s, d, row, col, width);
        else
            plane(s, d, row, col);
        for (k = n - 1; k >= 0; k--) { /* the next index of the outer dimensions */
            s += (size_t)dims[k].src * width;
            d += (size_t)dims[k].dst * width;
            if (++index[k] < dims[k].n)
                break;
            s -= (size_t)(dims[k].src * dims[k].n) * width;
            d -= (size_t)(dims[k].dst * dims[k].n) * width;
            index[k] = 0;
        }
    }
}
