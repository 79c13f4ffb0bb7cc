/* RMSNorm and rotary embedding against loops in double. */
#include "support/arrays.h"
#include "support/host_kernels.h"
#include "support/unit_device.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

typedef struct norm {
    d9d_dtype t, gt;
    int64_t m, n;
    bool zero_centred;
    float beta;
    void *x, *w, *dy, *y, *dx, *dw;
    float *inv;
} norm;

static void run_norm(void *arg)
{
    norm *p = arg;

    assert_int_equal(host_kernels()->norm->rms_norm(NULL, p->t, p->y, p->inv, p->x, p->w, p->m,
                                                    p->n, 1e-3f, p->zero_centred),
                     D9D_OK);
}
static d9d_status norm_grad(norm *p, void *dx, const void *plus, void *dw)
{
    return host_kernels()->norm->rms_norm_bwd(NULL, p->t, dx, plus, p->gt, dw, p->beta, p->dy, p->x,
                                              p->w, p->inv, p->m, p->n, p->zero_centred);
}
static void run_norm_bwd(void *arg)
{
    norm *p = arg;

    assert_int_equal(norm_grad(p, p->dx, NULL, NULL), D9D_OK);
}
static void run_norm_wgrad(void *arg)
{
    norm *p = arg;

    assert_int_equal(norm_grad(p, NULL, NULL, p->dw), D9D_OK);
}

/* Both at once are the bits of each alone; what is added to dx may lie in it. */
static void check_together(norm *p, const double *want, const void *before)
{
    const int64_t all = p->m * p->n;
    const size_t bytes = (size_t)all * d9d_dtype_size(p->t),
                 bytes_w = (size_t)p->n * d9d_dtype_size(p->gt);
    void *dx = array_poison(p->t, all), *dw = array_poison(p->gt, p->n),
         *plus = array_random(p->t, all, 6, 1.0);
    double *sum = array_doubles(p->t, plus, all);

    if (before != NULL)
        memcpy(dw, before, bytes_w);
    assert_int_equal(norm_grad(p, dx, NULL, dw), D9D_OK);
    assert_memory_equal(dx, p->dx, bytes);
    assert_memory_equal(dw, p->dw, bytes_w);
    for (int64_t i = 0; i < all; i++)
        sum[i] += want[i];
    assert_int_equal(norm_grad(p, dx, plus, NULL), D9D_OK);
    array_close("dx added", p->t, dx, sum, all, 1e-5);
    assert_int_equal(norm_grad(p, plus, plus, NULL), D9D_OK);
    assert_memory_equal(plus, dx, bytes);
    free(dx);
    free(dw);
    free(plus);
    free(sum);
}

static void naive_norm(const norm *p, double *y, double *dx, double *dw)
{
    for (int64_t r = 0; r < p->m; r++) {
        double square = 0.0, dot = 0.0, inv;

        for (int64_t i = 0; i < p->n; i++)
            square += pow(array_get(p->t, p->x, r * p->n + i), 2.0);
        inv = 1.0 / sqrt(square / (double)p->n + 1e-3);
        for (int64_t i = 0; i < p->n; i++) {
            double x = array_get(p->t, p->x, r * p->n + i),
                   d = array_get(p->t, p->dy, r * p->n + i);
            double w = array_get(p->t, p->w, i) + (p->zero_centred ? 1.0 : 0.0);

            y[r * p->n + i] = x * inv * w;
            dot += d * w * x * inv;
            dw[i] += d * x * inv;
        }
        for (int64_t i = 0; i < p->n; i++) {
            double x = array_get(p->t, p->x, r * p->n + i),
                   d = array_get(p->t, p->dy, r * p->n + i);
            double w = array_get(p->t, p->w, i) + (p->zero_centred ? 1.0 : 0.0);

            dx[r * p->n + i] = inv * (d * w - x * inv * dot / (double)p->n);
        }
    }
}

static void check_norm(norm *p)
{
    int64_t all = p->m * p->n;
    size_t bytes = (size_t)all * d9d_dtype_size(p->t);
    void *before = p->beta == 0.0f ? NULL : array_random(p->gt, p->n, 4, 1.0);
    double *y = calloc((size_t)all + 1, sizeof(*y)), *dx = calloc((size_t)all + 1, sizeof(*dx));
    double *dw = calloc((size_t)p->n + 1, sizeof(*dw));

    p->x = array_random(p->t, all, 1, 1.0);
    p->w = array_random(p->t, p->n, 2, 1.0);
    p->dy = array_random(p->t, all, 3, 1.0);
    p->y = array_poison(p->t, all);
    p->dx = array_poison(p->t, all);
    p->dw = array_poison(p->gt, p->n);
    p->inv = array_poison(D9D_F32, p->m);
    naive_norm(p, y, dx, dw);
    for (int64_t i = 0; i < p->n && before != NULL; i++)
        dw[i] += array_get(p->gt, before, i);
    array_same_for_threads(run_norm, p, p->y, bytes, NULL);
    array_same_for_threads(run_norm_bwd, p, p->dx, bytes, NULL);
    array_same_for_threads(run_norm_wgrad, p, p->dw, (size_t)p->n * d9d_dtype_size(p->gt), before);
    array_close("y", p->t, p->y, y, all, 3e-6);
    array_close("dx", p->t, p->dx, dx, all, 1e-5);
    array_close("dw", p->gt, p->dw, dw, p->n, 1e-4);
    check_together(p, dx, before);
    void *parts[] = {p->x, p->w, p->dy, p->y, p->dx, p->dw, p->inv, before, y, dx, dw};
    for (size_t i = 0; i < sizeof(parts) / sizeof(*parts); i++)
        free(parts[i]);
}

static void test_rms_norm(void **state)
{
    const int64_t shapes[][2] = {{0, 5},     {1, 1},     {3, 17},    {1, 1030}, {129, 33},
                                 {70, 1024}, {17000, 4}, {7000, 20}, {9, 1300}, {400, 2048},
                                 {5, 4000},  {3, 5128},  {2, 8192},  {3, 8201}};

    (void)state;
    for (size_t i = 0; i < sizeof(shapes) / sizeof(*shapes); i++)
        for (int flags = 0; flags < 8; flags++) {
            norm p = {.t = array_types[flags & 1],
                      .gt = array_types[flags >> 1 & 1],
                      .m = shapes[i][0],
                      .n = shapes[i][1],
                      .zero_centred = (flags & 4) != 0,
                      .beta = flags % 3 == 0 ? 1.0f : 0.0f};

            check_norm(&p);
        }
}

/* --- position_scale ------------------------------------------------------------- */

typedef struct position_scale {
    d9d_dtype t;
    int64_t m, n;
    void *x, *y;
    int32_t *positions;
} position_scale;

static void run_position_scale(void *arg)
{
    position_scale *p = arg;

    assert_int_equal(host_kernels()->norm->position_scale(NULL, p->t, p->y, p->x, p->positions,
                                                          p->m, p->n, 0.1f, 7),
                     D9D_OK);
}

static void test_position_scale(void **state)
{
    const int64_t shapes[][2] = {{1, 1}, {3, 17}, {33, 8}, {5, 1030}, {77, 640}};

    (void)state;
    for (size_t i = 0; i < 10; i++) {
        const int64_t m = shapes[i / 2][0], n = shapes[i / 2][1];
        position_scale p = {.t = array_types[i % 2], .m = m, .n = n};
        double *want = calloc((size_t)(m * n), sizeof(*want));

        p.x = array_random(p.t, m * n, 1, 1.0);
        p.y = array_poison(p.t, m * n);
        p.positions = calloc((size_t)m, sizeof(*p.positions));
        for (int64_t r = 0; r < m; r++) {
            p.positions[r] = (int32_t)(r * r * 3);
            for (int64_t j = 0; j < n; j++)
                want[r * n + j] = array_get(p.t, p.x, r * n + j) *
                                  (1 + 0.1 * log(1 + floor((double)p.positions[r] / 7)));
        }
        array_same_for_threads(run_position_scale, &p, p.y, (size_t)(m * n) * d9d_dtype_size(p.t),
                               NULL);
        array_close("y", p.t, p.y, want, m * n, 1e-6);
        free(want);
        free(p.x);
        free(p.y);
        free(p.positions);
    }
}

/* --- rope ----------------------------------------------------------------------- */

typedef struct rope {
    d9d_dtype t;
    int64_t m, heads, d, r;
    bool interleaved;
    float sign;
    void *x, *y;
    int32_t *positions;
    float *inv_freq;
} rope;

static void run_rope(void *arg)
{
    rope *p = arg;

    assert_int_equal(host_kernels()->norm->rope(NULL, p->t, p->y, p->x, p->positions, p->inv_freq,
                                                p->m, p->heads, p->d, p->r, p->interleaved, 1.25f,
                                                p->sign),
                     D9D_OK);
}

static void naive_rope(const rope *p, double *y)
{
    for (int64_t i = 0; i < p->m * p->heads * p->d; i++)
        y[i] = array_get(p->t, p->x, i);
    for (int64_t i = 0; i < p->m * p->heads; i++)
        for (int64_t f = 0; f < p->r / 2; f++) {
            int64_t at = i * p->d + (p->interleaved ? 2 * f : f);
            int64_t other = p->interleaved ? at + 1 : at + p->r / 2;
            /* The angle is a float32 product, as it is where models are trained. */
            double angle = (double)((float)p->positions[i / p->heads] * p->inv_freq[f]);
            double c = 1.25 * cos(angle), s = 1.25 * sin(angle) * (double)p->sign;
            double a = array_get(p->t, p->x, at), b = array_get(p->t, p->x, other);

            y[at] = a * c - b * s;
            y[other] = b * c + a * s;
        }
}

static void test_rope(void **state)
{
    const int64_t shapes[][4] = {
        {0, 1, 4, 4},       {1, 1, 2, 2},     {3, 3, 10, 6},   {17, 5, 66, 66},  {33, 8, 64, 0},
        {5, 1, 1100, 1100}, {90, 12, 40, 32}, {40, 3, 96, 24}, {9, 40, 128, 64}, {7, 2, 576, 544}};

    (void)state;
    for (size_t i = 0; i < sizeof(shapes) / sizeof(*shapes); i++)
        for (int flags = 0; flags < 8; flags++) {
            rope p = {.t = array_types[flags & 1],
                      .m = shapes[i][0],
                      .heads = shapes[i][1],
                      .d = shapes[i][2],
                      .r = shapes[i][3],
                      .interleaved = (flags & 2) != 0,
                      .sign = flags & 4 ? -1.0f : 1.0f};
            int64_t n = p.m * p.heads * p.d;
            double *y = calloc((size_t)n + 1, sizeof(*y));

            p.x = array_random(p.t, n, 1, 1.0);
            p.y = array_poison(p.t, n);
            p.positions = calloc((size_t)p.m + 1, sizeof(*p.positions));
            p.inv_freq = calloc((size_t)p.r + 1, sizeof(*p.inv_freq));
            for (int64_t j = 0; j < p.m; j++)
                p.positions[j] = (int32_t)(j * 7919 % 131072);
            for (int64_t f = 0; f < p.r / 2; f++)
                p.inv_freq[f] = (float)pow(1e6, -2.0 * (double)f / (double)p.r);
            naive_rope(&p, y);
            array_same_for_threads(run_rope, &p, p.y, (size_t)n * d9d_dtype_size(p.t), NULL);
            array_close("y", p.t, p.y, y, n, 2e-6);
            free(p.x);
            free(p.y);
            free(p.positions);
            free(p.inv_freq);
            free(y);
        }
}

/* --- both ----------------------------------------------------------------------- */

typedef struct both {
    d9d_qk_norm_rope_dims n;
    d9d_dtype gt;
    float beta;
    void *x, *w, *dy, *y, *dx, *dw;
    float *inv;
} both;

static void run_both(void *arg)
{
    both *p = arg;

    assert_int_equal(host_kernels()->norm->norm_rope(NULL, &p->n, p->y, p->inv, p->x, p->w),
                     D9D_OK);
}
static d9d_status both_grad(both *p, void *dx, void *dw)
{
    return host_kernels()->norm->norm_rope_bwd(NULL, &p->n, dx, p->gt, dw, p->beta, p->dy, p->x,
                                               p->w, p->inv);
}
static void run_both_bwd(void *arg)
{
    both *p = arg;

    assert_int_equal(both_grad(p, p->dx, NULL), D9D_OK);
}
static void run_both_wgrad(void *arg)
{
    both *p = arg;

    assert_int_equal(both_grad(p, NULL, p->dw), D9D_OK);
}

/* A head of doubles turned by its token's angles, forward or back. */
static void naive_turn(const d9d_qk_norm_rope_dims *n, int64_t token, double sign, double *v)
{
    for (int64_t f = 0; f < n->r / 2; f++) {
        double *a = v + (n->interleaved ? 2 * f : f), *b = a + (n->interleaved ? 1 : n->r / 2);
        double angle = (double)((float)n->positions[token] * n->inv_freq[f]), old = *a;
        double c = (double)n->mscale * cos(angle), s = (double)n->mscale * sin(angle) * sign;

        *a = *a * c - *b * s;
        *b = *b * c + old * s;
    }
}

static void naive_both(const both *p, double *y, double *dx, double *dw)
{
    const int64_t d = p->n.d;

    for (int64_t r = 0; r < p->n.m * p->n.heads; r++) {
        double square = 0.0, dot = 0.0, inv, *g = dx + r * d, *o = y + r * d;

        for (int64_t i = 0; i < d; i++) {
            square += pow(array_get(p->n.t, p->x, r * d + i), 2.0);
            g[i] = array_get(p->n.t, p->dy, r * d + i);
        }
        inv = 1.0 / sqrt(square / (double)d + 1e-3);
        naive_turn(&p->n, r / p->n.heads, -1.0, g);
        for (int64_t i = 0; i < d; i++) {
            double x = array_get(p->n.t, p->x, r * d + i);
            double w = array_get(p->n.t, p->w, i) + (p->n.zero_centred ? 1.0 : 0.0);

            o[i] = x * inv * w;
            dw[i] += g[i] * x * inv;
            g[i] *= w;
            dot += g[i] * x;
        }
        for (int64_t i = 0; i < d; i++)
            g[i] = inv * (g[i] - array_get(p->n.t, p->x, r * d + i) * inv * inv * dot / (double)d);
        naive_turn(&p->n, r / p->n.heads, 1.0, o);
    }
}

/* Where the device has no kernel for both at once what lies between is rounded. */
static void check_both(both *p, double tolerance)
{
    const int64_t d = p->n.d, all = p->n.m * p->n.heads * d;
    const size_t bytes = (size_t)all * d9d_dtype_size(p->n.t),
                 bytes_w = (size_t)d * d9d_dtype_size(p->gt);
    void *before = p->beta == 0.0f ? NULL : array_random(p->gt, d, 4, 1.0);
    double *y = calloc((size_t)all + 1, sizeof(*y)), *dx = calloc((size_t)all + 1, sizeof(*dx));
    double *dw = calloc((size_t)d + 1, sizeof(*dw));
    void *once, *once_w = array_poison(p->gt, d);

    p->x = array_random(p->n.t, all, 1, 1.0);
    p->w = array_random(p->n.t, d, 2, 1.0);
    p->dy = array_random(p->n.t, all, 3, 1.0);
    p->y = array_poison(p->n.t, all);
    p->dx = array_poison(p->n.t, all);
    p->dw = array_poison(p->gt, d);
    p->inv = array_poison(D9D_F32, p->n.m * p->n.heads);
    once = array_poison(p->n.t, all);
    naive_both(p, y, dx, dw);
    for (int64_t i = 0; i < d && before != NULL; i++)
        dw[i] += array_get(p->gt, before, i);
    array_same_for_threads(run_both, p, p->y, bytes, NULL);
    array_same_for_threads(run_both_bwd, p, p->dx, bytes, NULL);
    array_same_for_threads(run_both_wgrad, p, p->dw, bytes_w, before);
    array_close("y", p->n.t, p->y, y, all, tolerance);
    array_close("dx", p->n.t, p->dx, dx, all, 2 * tolerance);
    array_close("dw", p->gt, p->dw, dw, d, 20 * tolerance);
    if (before != NULL)
        memcpy(once_w, before, bytes_w);
    assert_int_equal(both_grad(p, once, once_w), D9D_OK);
    assert_memory_equal(once, p->dx, bytes);
    assert_memory_equal(once_w, p->dw, bytes_w);
    void *parts[] = {p->x,   p->w, p->dy, p->y, p->dx, p->dw, p->inv,
                     before, y,    dx,    dw,   once,  once_w};
    for (size_t i = 0; i < sizeof(parts) / sizeof(*parts); i++)
        free(parts[i]);
}

static void test_norm_rope(void **state)
{
    static const int64_t shapes[][4] = {
        {0, 1, 16, 16},    {1, 1, 16, 16},    {3, 3, 10, 6},    {33, 5, 128, 128}, {17, 4, 64, 64},
        {9, 2, 96, 96},    {13, 3, 256, 256}, {5, 2, 272, 272}, {6200, 1, 16, 16}, {21, 3, 128, 64},
        {300, 2, 256, 64}, {7, 3, 64, 16},    {5, 1, 8, 8},     {33, 5, 40, 40},   {9, 2, 120, 120},
        {13, 3, 248, 248}, {21, 3, 72, 24},   {7, 2, 136, 40},
    };

    (void)state;
    for (size_t i = 0; i < sizeof(shapes) / sizeof(*shapes); i++)
        for (int flags = 0; flags < 8; flags++) {
            const int64_t *s = shapes[i];
            both p = {.n = {.t = array_types[flags & 1],
                            .m = s[0],
                            .heads = s[1],
                            .d = s[2],
                            .r = s[3],
                            .eps = 1e-3f,
                            .mscale = 1.25f,
                            .zero_centred = (flags & 2) != 0,
                            .interleaved = (flags & 4) != 0},
                      .gt = array_types[flags >> 1 & 1],
                      .beta = flags % 3 == 0 ? 1.0f : 0.0f};
            int32_t *positions = calloc((size_t)s[0] + 1, sizeof(*positions));
            float *inv_freq = calloc((size_t)s[3] + 1, sizeof(*inv_freq));

            for (int64_t j = 0; j < s[0]; j++)
                positions[j] = (int32_t)(j * 7919 % 131072);
            for (int64_t f = 0; f < s[3] / 2; f++)
                inv_freq[f] = (float)pow(1e6, -2.0 * (double)f / (double)s[3]);
            p.n.positions = positions;
            p.n.inv_freq = inv_freq;
            check_both(&p, p.n.t == D9D_F32 ? 1e-5 : unit_device_tolerance(1e-5, 2e-2));
            free(positions);
            free(inv_freq);
        }
}

/* --- heads on their way to attention ------------------------------------------------- */

enum { ARRAYS = 3, SLOTS = 11 };

/* As the kernels by themselves, which give other rows than scatter_rows sends them to; or as is. */
static void expect(const d9d_qk_norm_rope_dims *d, const d9d_qk_norm_rope_heads *h, void *y)
{
    const int64_t row = h->heads * d->d;
    d9d_qk_norm_rope_dims n = *d;
    void *turned = array_poison(d->t, d->m * row), *inv = array_poison(D9D_F32, d->m * h->heads);

    n.heads = h->heads;
    if (h->w != NULL && h->all_heads) {
        void *normed = array_poison(d->t, d->m * row);

        assert_int_equal(host_kernels()->norm->rms_norm(NULL, d->t, normed, inv, h->x, h->w, d->m,
                                                        row, d->eps, d->zero_centred),
                         D9D_OK);
        assert_int_equal(host_kernels()->norm->rope(
                             NULL, d->t, turned, normed, d->positions, d->inv_freq, d->m, h->heads,
                             d->d, h->rotates ? d->r : 0, d->interleaved, d->mscale, 1.0f),
                         D9D_OK);
        free(normed);
    } else if (h->w != NULL && h->rotates)
        assert_int_equal(host_kernels()->norm->norm_rope(NULL, &n, turned, inv, h->x, h->w),
                         D9D_OK);
    else if (h->w != NULL)
        assert_int_equal(host_kernels()->norm->rms_norm(NULL, d->t, turned, inv, h->x, h->w,
                                                        d->m * h->heads, d->d, d->eps, false),
                         D9D_OK);
    else if (h->rotates)
        assert_int_equal(host_kernels()->norm->rope(NULL, d->t, turned, h->x, d->positions,
                                                    d->inv_freq, d->m, h->heads, d->d, d->r,
                                                    d->interleaved, d->mscale, 1.0f),
                         D9D_OK);
    assert_int_equal(host_kernels()->elementwise->scatter_rows(
                         NULL, d->t, y, row, 0, h->row_index,
                         h->w != NULL || h->rotates ? turned : h->x, d->m, row),
                     D9D_OK);
    free(turned);
    free(inv);
}

/* How queries and keys become new heads; values are copied. */
typedef struct new_heads {
    int64_t d, r, heads;
    bool interleaved, all_heads;
} new_heads;

static void check_new_heads(d9d_dtype t, const new_heads *of, int64_t m, bool normed, bool rotated)
{
    static const int32_t positions[] = {0, 7, 3, 4000, 5}, at[] = {7, 0, -1, 3, 10};
    const int64_t d = of->d;
    float freq[64];
    d9d_qk_norm_rope_dims n = {.t = t,
                               .m = m,
                               .d = d,
                               .r = of->r,
                               .eps = 1e-3f,
                               .mscale = 1.0f,
                               .zero_centred = of->all_heads && normed && rotated,
                               .interleaved = of->interleaved,
                               .positions = positions,
                               .inv_freq = freq};
    d9d_qk_norm_rope_heads list[ARRAYS] = {{.heads = 2 * of->heads},
                                           {.heads = of->heads, .row_index = at},
                                           {.heads = of->heads, .row_index = at}};
    void *w = array_random(t, 2 * of->heads * d, 9, 1.0), *want[ARRAYS], *x[ARRAYS];

    for (int i = 0; i < 64; i++)
        freq[i] = powf(1e4f, -(float)i / 64.0f);
    for (int j = 0; j < ARRAYS; j++) {
        const int64_t all = SLOTS * list[j].heads * d;

        x[j] = array_random(t, m * list[j].heads * d, 1 + (uint64_t)j, 1.0);
        list[j].x = x[j];
        list[j].w = normed && j < ARRAYS - 1 ? w : NULL;
        list[j].rotates = rotated && j < ARRAYS - 1;
        list[j].all_heads = of->all_heads && list[j].w != NULL;
        list[j].y = array_random(t, all, 5, 1.0);
        want[j] = array_random(t, all, 5, 1.0);
        expect(&n, &list[j], want[j]);
    }
    if (!normed && !rotated)
        n.r = 0, n.positions = NULL, n.inv_freq = NULL;
    assert_int_equal(host_kernels()->norm->qk_norm_rope_append(NULL, &n, ARRAYS, list), D9D_OK);
    for (int j = 0; j < ARRAYS; j++) {
        assert_memory_equal(want[j], list[j].y,
                            (size_t)(SLOTS * list[j].heads * d) * d9d_dtype_size(t));
        free(x[j]);
        free(list[j].y);
        free(want[j]);
    }
    free(w);
}

static void test_new_heads(void **state)
{
    static const new_heads shapes[] = {
        {128, 128, 2, false, false}, {64, 32, 2, false, false}, {96, 24, 2, false, false},
        {10, 6, 2, true, false},     {64, 64, 1, false, true},  {128, 128, 4, false, true},
        {128, 64, 16, false, true},  {80, 40, 17, false, true}, {128, 128, 24, false, true},
        {128, 96, 40, false, true},  {10, 6, 2, true, true},
    };

    (void)state;
    for (size_t i = 0; i < sizeof(shapes) / sizeof(*shapes); i++)
        for (int t = 0; t < 2; t++)
            for (int64_t m = 1; m <= 5; m += 2)
                for (int k = 0; k < 4; k++)
                    check_new_heads(array_types[t], &shapes[i], m, k / 2, k % 2);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_rms_norm),  cmocka_unit_test(test_position_scale),
        cmocka_unit_test(test_rope),      cmocka_unit_test(test_norm_rope),
        cmocka_unit_test(test_new_heads),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
