/* test_kernel_attention_decode.c - decode attention over a KV cache, several sequences at a time,
 * compared with the kernels that see whole sequences; and the per-head product. */
#include "support/arrays.h"
#include "support/host_kernels.h"
#include "support/unit_device.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { ROWS = 3, CALLS = 7, ALL = 181 };

/* Tokens of each row in each call; a row has 100, 11 and 70 in all, in slots 2, 0 and 1. */
static const int64_t n_new[CALLS][ROWS] = {{5, 0, 3}, {2, 1, 65}, {90, 0, 0}, {1, 1, 1},
                                           {1, 0, 1}, {0, 7, 0},  {1, 2, 0}};
static const int64_t lengths[ROWS] = {100, 11, 70}, starts[ROWS] = {0, 100, 111};
static const int32_t slots[ROWS] = {2, 0, 1};

/* One call: tokens of the whole that it has, and what they are of. */
typedef struct part {
    int64_t n, of[ALL]; /* place in the whole of each token */
    d9d_segment list[ROWS];
    d9d_varlen documents;
} part;

static void part_make(int call, part *p)
{
    *p = (part){0};
    for (int r = 0; r < ROWS; r++) {
        int64_t before = 0;

        for (int i = 0; i < call; i++)
            before += n_new[i][r];
        p->list[r] = (d9d_segment){(int32_t)p->n, (int32_t)n_new[call][r], 0,
                                   (int32_t)(before + n_new[call][r])};
        for (int64_t i = 0; i < n_new[call][r]; i++)
            p->of[p->n++] = starts[r] + before + i;
    }
    p->documents = (d9d_varlen){1, p->n, ROWS, p->list};
}

/* The part's tokens of an array [ALL, width], and back. */
static void *take(const part *p, d9d_dtype t, const void *x, int64_t width)
{
    const size_t row = (size_t)width * d9d_dtype_size(t);
    char *y = malloc((size_t)p->n * row + 1);

    assert_non_null(y);
    for (int64_t i = 0; i < p->n; i++)
        memcpy(y + (size_t)i * row, (const char *)x + (size_t)p->of[i] * row, row);
    return y;
}
static void put(const part *p, d9d_dtype t, void *x, const void *y, int64_t width)
{
    const size_t row = (size_t)width * d9d_dtype_size(t);

    for (int64_t i = 0; i < p->n; i++)
        memcpy((char *)x + (size_t)p->of[i] * row, (const char *)y + (size_t)i * row, row);
}

static d9d_varlen whole(d9d_segment list[ROWS])
{
    for (int r = 0; r < ROWS; r++)
        list[r] = (d9d_segment){(int32_t)starts[r], (int32_t)lengths[r], (int32_t)starts[r],
                                (int32_t)lengths[r]};
    return (d9d_varlen){1, ALL, ROWS, list};
}

/* Both may have been rounded to bfloat16, to either side. */
static void close_to(d9d_dtype t, const void *got, const void *want, int64_t n, double tolerance)
{
    for (int64_t i = 0; i < n; i++) {
        const double g = array_get(t, got, i), w = array_get(t, want, i);

        if (!(fabs(g - w) <= tolerance * (1 + fabs(w)) + (t == D9D_BF16 ? fabs(w) / 127 : 0)))
            fail_msg("y[%lld] of %lld, %s: got %.9g, expected %.9g", (long long)i, (long long)n,
                     d9d_dtype_name(t), g, w);
    }
}

/* --- convolution ------------------------------------------------------------------------------ */

enum { PAIR = 2 };

/* Arrays of n and of more channels, in one call. */
typedef struct conv_array {
    int64_t n;
    void *x, *w, *want, *got, *past;
} conv_array;

static void conv_arrays_make(conv_array of[PAIR], d9d_dtype t, int64_t n, int64_t width)
{
    d9d_segment list[ROWS];

    for (int a = 0; a < PAIR; a++) {
        const int64_t c = n + a * (2 * n + 3);
        const d9d_causal_conv1d_dims all = {t, whole(list), c, width};

        of[a] = (conv_array){c,
                             array_random(t, ALL * c, 1 + (uint64_t)a, 1.0),
                             array_random(t, c * width, 3 + (uint64_t)a, 1.0),
                             array_poison(t, ALL * c),
                             array_poison(t, ALL * c),
                             array_poison(t, ROWS * (width - 1) * c)};
        assert_int_equal(
            host_kernels()->gdn->causal_conv1d(NULL, &all, of[a].want, of[a].x, of[a].w), D9D_OK);
    }
}

/* On the CPU to the bit, whatever the past held of another row. */
static void check_conv(d9d_dtype t, int64_t n, int64_t width)
{
    conv_array of[PAIR];

    conv_arrays_make(of, t, n, width);
    for (int i = 0; i < CALLS; i++) {
        d9d_causal_conv1d_array list[PAIR];
        void *in[PAIR];
        part p;

        part_make(i, &p);
        const d9d_causal_conv1d_dims dims = {t, p.documents, 0, width};

        for (int a = 0; a < PAIR; a++) {
            in[a] = take(&p, t, of[a].x, of[a].n);
            list[a] = (d9d_causal_conv1d_array){
                of[a].n, {of[a].past, slots}, array_poison(t, p.n * of[a].n), in[a], of[a].w};
        }
        assert_int_equal(host_kernels()->gdn->causal_conv1d_update(NULL, &dims, PAIR, list),
                         D9D_OK);
        for (int a = 0; a < PAIR; a++) {
            put(&p, t, of[a].got, list[a].y, of[a].n);
            free(in[a]);
            free(list[a].y);
        }
    }
    for (int a = 0; a < PAIR; a++) {
        void *parts[] = {of[a].x, of[a].w, of[a].want, of[a].got, of[a].past};

        if (unit_device_is_cpu())
            assert_memory_equal(of[a].got, of[a].want, (size_t)(ALL * of[a].n) * d9d_dtype_size(t));
        close_to(t, of[a].got, of[a].want, ALL * of[a].n, 3e-6);
        for (size_t i = 0; i < sizeof(parts) / sizeof(*parts); i++)
            free(parts[i]);
    }
}

static void test_conv(void **state)
{
    (void)state;
    for (int flags = 0; flags < 2; flags++) {
        check_conv(array_types[flags], 33, 4);
        check_conv(array_types[flags], 300, 8);
        check_conv(array_types[flags], 5, 1);
    }
}

/* --- delta rule ---------------------------------------------------------------------------- */

typedef struct delta {
    d9d_gated_delta_dims n;
    void *q, *k, *v, *b, *g;
} delta;

static void on_parts(const delta *d, const d9d_state_slots *past, void *got)
{
    const d9d_gated_delta_dims *n = &d->n;
    const int64_t keys = n->k * n->d, values = n->a * n->f;

    for (int i = 0; i < CALLS; i++) {
        d9d_gated_delta_dims dims = *n;
        part p;

        part_make(i, &p);
        dims.docs = p.documents;
        void *in[] = {take(&p, n->t, d->q, keys), take(&p, n->t, d->k, keys),
                      take(&p, n->t, d->v, values), take(&p, D9D_F32, d->g, n->a),
                      take(&p, n->t, d->b, n->a)};
        void *out = array_poison(n->t, p.n * values);

        assert_int_equal(host_kernels()->gdn->gated_delta_step(NULL, &dims, past, out, in[0], in[1],
                                                               in[2], in[3], in[4]),
                         D9D_OK);
        put(&p, n->t, got, out, values);
        free(out);
        for (int j = 0; j < 5; j++)
            free(in[j]);
    }
}

static void check_delta(d9d_dtype t, int64_t k, int64_t a, int64_t d, int64_t f)
{
    d9d_segment list[ROWS];
    delta c = {.n = {t, whole(list), k, a, d, f, 1.0f / sqrtf((float)d)}};
    const int64_t values = ALL * a * f;
    const double exact = t == D9D_F32 ? 5e-6 : unit_device_tolerance(5e-6, 1e-2);
    void *states = array_poison(D9D_F32, d9d_gated_delta_states(&c.n.docs) * a * d * f);
    void *want = array_poison(t, values), *got = array_poison(t, values);
    const d9d_state_slots past = {array_poison(D9D_F32, ROWS * a * d * f), slots};
    float *g;

    c.q = array_random(t, ALL * k * d, 1, 1.0);
    c.k = array_random(t, ALL * k * d, 2, 1.0);
    c.v = array_random(t, values, 3, 1.0);
    c.b = array_random(t, ALL * a, 4, 1.0);
    c.g = g = array_random(D9D_F32, ALL * a, 5, 0.1);
    for (int64_t i = 0; i < ALL * a; i++)
        g[i] = -fabsf(g[i]);
    assert_int_equal(
        host_kernels()->gdn->gated_delta(NULL, &c.n, want, states, c.q, c.k, c.v, c.g, c.b),
        D9D_OK);
    on_parts(&c, &past, got);
    close_to(t, got, want, values, exact);
    void *parts[] = {states, want, got, past.slots, c.q, c.k, c.v, c.b, c.g};
    for (size_t i = 0; i < sizeof(parts) / sizeof(*parts); i++)
        free(parts[i]);
}

static void test_delta(void **state)
{
    (void)state;
    for (int flags = 0; flags < 2; flags++) {
        check_delta(array_types[flags], 2, 4, 16, 9);
        check_delta(array_types[flags], 1, 2, 128, 128);
        check_delta(array_types[flags], 1, 1, 5, 70);
        check_delta(array_types[flags], 1, 3, 200, 33);
    }
}

/* A list is needed, and one that is none is refused. */
static void test_refused(void **state)
{
    const d9d_segment bad[] = {{0, 1, 0, 1}, {2, 1, 0, 1}};
    float x[4] = {0}, y[4];
    const d9d_state_slots past = {y, slots};
    d9d_causal_conv1d_dims n = {D9D_F32, {1, 2, 0, NULL}, 1, 1};
    const d9d_causal_conv1d_array one = {1, past, y, x, x};
    d9d_gated_delta_dims d = {D9D_F32, {1, 2, 2, bad}, 1, 1, 1, 1, 1};

    (void)state;
    if (!unit_device_is_cpu())
        skip();
    assert_int_equal(host_kernels()->gdn->causal_conv1d_update(NULL, &n, 1, &one), D9D_EINVAL);
    assert_int_equal(host_kernels()->gdn->gated_delta_step(NULL, &d, &past, y, x, x, x, x, x),
                     D9D_EINVAL);
}

/* --- heads --------------------------------------------------------------------------------- */

/* Columns of x from x_first on; those of y from `out` on stay as they are. */
static void check_heads(d9d_gemm_per_head_dims n)
{
    const int64_t wide = n.trans_w ? n.in : n.out, ny = n.m * n.heads * n.y_cols;
    void *x = array_random(n.t, n.m * n.heads * n.x_cols, 1, 1.0);
    void *w = array_random(n.t, n.heads * n.w_head_rows * wide, 2, 1.0);
    void *y = array_random(n.t, ny, 3, 1.0);
    double *want = calloc((size_t)ny + 1, sizeof(*want));

    assert_non_null(want);
    for (int64_t i = 0; i < ny; i++) {
        const int64_t row = i / n.y_cols, j = i % n.y_cols;
        const int64_t first = row % n.heads * n.w_head_rows + n.w_first;

        if (j >= n.out)
            want[i] = array_get(n.t, y, i);
        for (int64_t k = 0; k < n.in && j < n.out; k++)
            want[i] +=
                array_get(n.t, x, row * n.x_cols + n.x_first + k) *
                array_get(n.t, w, n.trans_w ? (first + j) * wide + k : (first + k) * wide + j);
    }
    assert_int_equal(host_kernels()->gemm->per_head(NULL, &n, y, x, w), D9D_OK);
    array_close("y", n.t, y, want, ny, n.t == D9D_F32 ? 5e-5 : unit_device_tolerance(1e-5, 2e-2));
    void *parts[] = {x, w, y, want};
    for (size_t i = 0; i < sizeof(parts) / sizeof(*parts); i++)
        free(parts[i]);
}

static void test_heads(void **state)
{
    static const int64_t shapes[][6] = {/* m, heads, in, out, step, first */
                                        {1, 1, 1, 1, 1, 0},       {3, 2, 5, 9, 12, 1},
                                        {70, 3, 16, 130, 48, 16}, {2, 2, 128, 65, 256, 128},
                                        {1, 3, 64, 72, 160, 16},  {13, 2, 512, 128, 648, 8},
                                        {0, 2, 4, 4, 8, 4}};

    (void)state;
    for (size_t i = 0; i < sizeof(shapes) / sizeof(*shapes); i++)
        for (int flags = 0; flags < 4; flags++) {
            const int64_t *s = shapes[i];
            const bool turned = flags & 2;
            const int64_t in = turned ? s[3] : s[2], out = turned ? s[2] : s[3];
            d9d_gemm_per_head_dims n = {
                array_types[flags & 1], s[0], s[1], in, out, s[4], s[5], turned, in, 0, out};

            check_heads(n);
            n.x_cols += 24;
            n.x_first = i % 2 == 0 ? 16 : 3;
            n.y_cols += 8;
            check_heads(n);
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_conv), cmocka_unit_test(test_delta),
                                       cmocka_unit_test(test_refused),
                                       cmocka_unit_test(test_heads)};

    return cmocka_run_group_tests_name("kernel_past", tests, NULL, NULL);
}
