/* strided.c - see strided.h. */
#include "ckpt/mapper/strided.h"

#include <stdbool.h>
#include <string.h>

#include "d9d/base/dtype.h"

struct stride_dim {
    int64_t n, src, dst;
};

/* --- square blocks in registers ----------------------------------------------------------- */

#if __has_builtin(__builtin_shufflevector)
#define SHUFFLE(a, b, ...) __builtin_shufflevector(a, b, __VA_ARGS__)
#else /* gcc 11 */
#define SHUFFLE(a, b, ...) __builtin_shuffle(a, b, (row){__VA_ARGS__})
#endif

/* Transposes a block of N x N elements from s (row stride ss) to d (row stride ds): vectors are
 * interleaved with those half a block away until rows are columns. */
#define BLOCK(name, T, N, PASSES, LOW, HIGH)                                                       \
    static inline void name(const T *s, int64_t ss, T *d, int64_t ds)                              \
    {                                                                                              \
        typedef T row __attribute__((vector_size(N * sizeof(T))));                                 \
        row a[N], b[N];                                                                            \
        for (int k = 0; k < (N); k++)                                                              \
            memcpy(&a[k], s + k * ss, sizeof(row));                                                \
        for (int pass = 0; pass < (PASSES); pass++) {                                              \
            for (int k = 0; k < (N) / 2; k++) {                                                    \
                b[2 * k] = SHUFFLE(a[k], a[k + (N) / 2], LOW);                                     \
                b[2 * k + 1] = SHUFFLE(a[k], a[k + (N) / 2], HIGH);                                \
            }                                                                                      \
            memcpy(a, b, sizeof(a));                                                               \
        }                                                                                          \
        for (int k = 0; k < (N); k++)                                                              \
            memcpy(d + k * ds, &a[k], sizeof(row));                                                \
    }

#define LOW8  0, 8, 1, 9, 2, 10, 3, 11
#define HIGH8 4, 12, 5, 13, 6, 14, 7, 15
#define LOW4  0, 4, 1, 5
#define HIGH4 2, 6, 3, 7
#define LOW2  0, 2
#define HIGH2 1, 3

BLOCK(block1, uint8_t, 8, 3, LOW8, HIGH8)
BLOCK(block2, uint16_t, 8, 3, LOW8, HIGH8)
BLOCK(block4, uint32_t, 4, 2, LOW4, HIGH4)
BLOCK(block8, uint64_t, 2, 1, LOW2, HIGH2)

/* --- planes ----------------------------------------------------------------------------------- */

/* Copies the two inner dimensions; `row` and `col` have their sizes and strides. */
typedef void (*plane_fn)(const unsigned char *src, unsigned char *dst, struct stride_dim row,
                         struct stride_dim col);

/* Copies element i, j from T s[] to d[], for [i, i1) x [j, j1). */
#define EACH(i, i1, j, j1)                                                                         \
    for (int64_t y = (i); y < (i1); y++)                                                           \
        for (int64_t x = (j); x < (j1); x++)                                                       \
    d[y * row.dst + x * col.dst] = s[y * row.src + x * col.src]

/* Transposes by tiles of one cache line on both sides, made of N x N blocks.  The remainder, and
 * other strides, are copied element by element. */
#define PLANE(name, T, N, block)                                                                   \
    static void name(const unsigned char *src, unsigned char *dst, struct stride_dim row,          \
                     struct stride_dim col)                                                        \
    {                                                                                              \
        enum { TILE = 64 / sizeof(T) };                                                            \
        const T *s = (const T *)(const void *)src;                                                 \
        T *d = (T *)(void *)dst;                                                                   \
        const bool blocks = row.src == 1 && col.dst == 1;                                          \
                                                                                                   \
        for (int64_t i0 = 0; i0 < row.n; i0 += TILE)                                               \
            for (int64_t j0 = 0; j0 < col.n; j0 += TILE) {                                         \
                const int64_t i1 = row.n - i0 < TILE ? row.n : i0 + TILE;                          \
                const int64_t j1 = col.n - j0 < TILE ? col.n : j0 + TILE;                          \
                const int64_t ib = blocks ? i1 - (i1 - i0) % (N) : i0;                             \
                const int64_t jb = blocks ? j1 - (j1 - j0) % (N) : j0;                             \
                                                                                                   \
                for (int64_t i = i0; i < ib; i += (N))                                             \
                    for (int64_t j = j0; j < jb; j += (N))                                         \
                        block(s + i + j * col.src, col.src, d + i * row.dst + j, row.dst);         \
                EACH(i0, ib, jb, j1);                                                              \
                EACH(ib, i1, j0, j1);                                                              \
            }                                                                                      \
    }

PLANE(plane1, uint8_t, 8, block1)
PLANE(plane2, uint16_t, 8, block2)
PLANE(plane4, uint32_t, 4, block4)
PLANE(plane8, uint64_t, 2, block8)

/* Drops dimensions of size 1 and merges dimensions that are contiguous on both sides. */
static int simplify_dims(int ndim, const int64_t *size, const int64_t *src, const int64_t *dst,
                         struct stride_dim *out)
{
    int n = 0;

    for (int d = 0; d < ndim; d++) {
        struct stride_dim x = {size[d], src[d], dst[d]};
        struct stride_dim *last = &out[n > 0 ? n - 1 : 0];

        if (x.n == 1)
            continue;
        if (n > 0 && last->src == x.src * x.n && last->dst == x.dst * x.n)
            *last = (struct stride_dim){last->n * x.n, x.src, x.dst};
        else
            out[n++] = x;
    }
    return n;
}

/* Copies rows of contiguous elements, if the innermost dimension has stride 1 on both sides. */
static void copy_rows(const unsigned char *src, unsigned char *dst, struct stride_dim row,
                      struct stride_dim col, size_t width)
{
    for (int64_t i = 0; i < row.n; i++)
        memcpy(dst + (size_t)(i * row.dst) * width, src + (size_t)(i * row.src) * width,
               (size_t)col.n * width);
}

void d9di_strided_copy(int ndim, const int64_t *size, size_t width, const void *src,
                       const int64_t *src_stride, void *dst, const int64_t *dst_stride)
{
    plane_fn plane = width == 1 ? plane1 : width == 2 ? plane2 : width == 4 ? plane4 : plane8;
    struct stride_dim dims[D9D_MAX_DIMS + 2] = {{1, 0, 0}}, row, col;
    int64_t index[D9D_MAX_DIMS + 2] = {0};
    const unsigned char *s = src;
    unsigned char *d = dst;
    int n = simplify_dims(ndim, size, src_stride, dst_stride, dims), inner;
    bool rows;

    while (n < 2) { /* a plane has two dimensions */
        memmove(dims + 1, dims, (size_t)n * sizeof(*dims));
        dims[0] = (struct stride_dim){1, 0, 0};
        n++;
    }
    col = dims[--n];
    rows = col.src == 1 && col.dst == 1;
    /* The plane's other dimension: the innermost of the source, so that tiles pay off. */
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
