/* A KV cache in 8 bits: codes and scales against their definition, and attention over it against
 * the definition of attention over the numbers that they stand for. */
#include "d9d/tensor/tensor.h"
#include "support/arrays.h"
#include "support/attention_call.h"
#include "support/host_kernels.h"
#include "support/unit.h"
#include "support/unit_device.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Rows of a cache [Z, KV, D]. */
typedef struct cached {
    uint8_t *codes;
    float *scale;
} cached;

static cached cached_make(int64_t z, int64_t kv, int64_t d)
{
    const cached c = {malloc((size_t)(z * kv * d) + 1), array_poison(D9D_F32, z * kv)};

    assert_non_null(c.codes);
    memset(c.codes, 0x7f, (size_t)(z * kv * d));
    return c;
}

static void cached_free(cached *c)
{
    free(c->codes);
    free(c->scale);
}

static double cached_get(const cached *c, int64_t d, int64_t i)
{
    float v;

    d9d_tensor_elements_to_f32(D9D_F8_E4M3, c->codes + i, 1, &v);
    return (double)v * (double)c->scale[i / d];
}

typedef struct append_call {
    d9d_dtype t;
    cached to;
    const int32_t *at;
    void *x;
    int64_t n, kv, d;
} append_call;

static void run_append(void *arg)
{
    append_call *p = arg;
    const d9d_attention_append_fp8 one = {p->x, p->to.codes, p->to.scale};

    assert_ok(
        host_kernels()->attention->kv_append_fp8(NULL, p->t, 1, &one, p->at, p->n, p->kv, p->d));
}

/* Within the bounds that attention.h states, with the smallest scale that holds the largest. */
static void check_head(const append_call *p, int64_t from, int64_t to)
{
    const double scale = (double)p->to.scale[to];
    double amax = 0;
    int e;

    for (int64_t j = 0; j < p->d; j++)
        amax = fmax(amax, fabs(array_get(p->t, p->x, from * p->d + j)));
    assert_true(frexp(scale, &e) == 0.5);
    assert_true(amax == 0 ? scale == 1 : amax <= 448 * scale);
    assert_true(amax == 0 || e - 1 == -100 || amax > 224 * scale);
    for (int64_t j = 0; j < p->d; j++) {
        const double x = array_get(p->t, p->x, from * p->d + j);
        const double y = cached_get(&p->to, p->d, to * p->d + j);

        assert_true(fabs(x - y) <= fmax(ldexp(fabs(x), -4), ldexp(scale, -10)));
    }
}

/* Slots in no order, one that is none, heads of zeros and of very different sizes. */
static void check_append(d9d_dtype t, int64_t kv, int64_t d)
{
    enum { N = 5, Z = 9 };
    static const int32_t at[N] = {7, 0, -1, 8, 3};
    append_call p = {t, cached_make(Z, kv, d), at, array_random(t, N * kv * d, 1, 1.0), N, kv, d};
    uint8_t *const before = malloc((size_t)(Z * kv * d));
    bool written[Z] = {false};

    assert_non_null(before);
    memcpy(before, p.to.codes, (size_t)(Z * kv * d));

    for (int64_t i = 0; i < N * kv * d; i++)
        array_set(t, p.x, i,
                  i / d == 0 ? 0 : ldexp(array_get(t, p.x, i), (int)(i / d * 37 % 90) - 45));
    array_same_for_threads(run_append, &p, p.to.codes, (size_t)(Z * kv * d), before);
    for (int64_t i = 0; i < N; i++)
        for (int64_t h = 0; h < kv && at[i] >= 0; h++) {
            check_head(&p, i * kv + h, at[i] * kv + h);
            written[at[i]] = true;
        }
    for (int64_t z = 0; z < Z; z++)
        for (int64_t j = 0; j < kv * d && !written[z]; j++) {
            assert_int_equal(p.to.codes[z * kv * d + j], 0x7f);
            assert_true(isnan(p.to.scale[z * kv + j / d]));
        }
    free(before);
    free(p.x);
    cached_free(&p.to);
}

static void test_append(void **state)
{
    static const int64_t shapes[][2] = {{1, 1}, {2, 7}, {3, 64}, {8, 128}, {2, 200}, {1, 576}};

    (void)state;
    for (size_t i = 0; i < sizeof(shapes) / sizeof(*shapes); i++)
        for (int t = 0; t < 2; t++)
            check_append(array_types[t], shapes[i][0], shapes[i][1]);
}

/* What is not finite becomes NaN, its neighbours do not; the next head has its own scale. */
static void test_nonfinite(void **state)
{
    static const int32_t at[] = {0};
    append_call p = {D9D_F32, cached_make(1, 2, 16), at, array_random(D9D_F32, 32, 1, 1.0), 1, 2,
                     16};

    (void)state;
    ((float *)p.x)[3] = INFINITY;
    ((float *)p.x)[9] = NAN;
    run_append(&p);
    for (int64_t j = 0; j < 32; j++)
        assert_true((j == 3 || j == 9) == (isnan(cached_get(&p.to, 16, j)) != 0));
    check_head(&p, 1, 1);
    free(p.x);
    cached_free(&p.to);
}

/* Two arrays have the bytes of each by itself. */
static void test_two(void **state)
{
    enum { N = 3, KV = 2, D = 40, ALL = N * KV * D };
    static const int32_t at[N] = {2, 0, 1};

    (void)state;
    for (int t = 0; t < 2; t++) {
        append_call p[2];
        d9d_attention_append_fp8 list[2];
        cached both[2];

        for (int i = 0; i < 2; i++) {
            p[i] = (append_call){array_types[t],
                                 cached_make(N, KV, D),
                                 at,
                                 array_random(array_types[t], ALL, 5 + (uint64_t)i, 1.0),
                                 N,
                                 KV,
                                 D};
            both[i] = cached_make(N, KV, D);
            list[i] = (d9d_attention_append_fp8){p[i].x, both[i].codes, both[i].scale};
            run_append(&p[i]);
        }
        assert_ok(
            host_kernels()->attention->kv_append_fp8(NULL, array_types[t], 2, list, at, N, KV, D));
        for (int i = 0; i < 2; i++) {
            assert_memory_equal(both[i].codes, p[i].to.codes, ALL);
            assert_memory_equal(both[i].scale, p[i].to.scale, N * KV * sizeof(float));
            cached_free(&both[i]);
            cached_free(&p[i].to);
            free(p[i].x);
        }
    }
    assert_fails_like(
        d9d_kernels_cpu()->attention->kv_append_fp8(NULL, D9D_F32, 3, NULL, at, N, KV, D),
        D9D_EINVAL, "kv_append_fp8: 3 arrays, of 0 to 2");
}

/* --- attention -------------------------------------------------------------------------------- */

/* All keys or values of a call to a cache; they become what it holds, which type t has exactly. */
static cached store(const d9d_attention_dims *n, void *x, int64_t d)
{
    const int64_t z = n->b * n->z;
    int32_t *at = calloc((size_t)z + 1, sizeof(*at));
    append_call p = {n->t, cached_make(z, n->kv, d), at, x, z, n->kv, d};

    assert_non_null(at);
    for (int64_t i = 0; i < z; i++)
        at[i] = (int32_t)i;
    run_append(&p);
    for (int64_t i = 0; i < z * n->kv * d; i++) {
        array_set(n->t, x, i, cached_get(&p.to, d, i));
        assert_true(array_get(n->t, x, i) == cached_get(&p.to, d, i));
    }
    free(at);
    return p.to;
}

/* On the CPU the bits of a cache of these numbers in type t. */
static void check_attention(const d9d_attention_dims *n)
{
    const int64_t no = attention_o_size(n), rows = n->b * n->a * n->s;
    attention_call p = attention_call_create(n);
    const int64_t dv = d9d_attention_dims_resolve(n).dv;
    cached k = store(n, p.k, n->d), v = store(n, p.v, dv);
    void *keys = p.k, *values = p.v, *plain = array_poison(n->t, no);
    double *o = calloc((size_t)no + 1, sizeof(*o)), *lse = calloc((size_t)rows + 1, sizeof(*lse));
    double *g = calloc((size_t)(attention_grads_size(n) + n->a) + 1, sizeof(*g));

    attention_naive(&p, o, lse, g);
    attention_call_fwd(&p);
    memcpy(plain, p.o, (size_t)no * d9d_dtype_size(n->t));
    p.k = k.codes;
    p.v = v.codes;
    p.n.k_scale = k.scale;
    p.n.v_scale = v.scale;
    array_same_for_threads(attention_call_fwd, &p, p.o, (size_t)no * d9d_dtype_size(n->t), NULL);
    array_close("o", n->t, p.o, o, no, n->t == D9D_F32 ? 5e-6 : unit_device_tolerance(5e-6, 1e-2));
    array_close("lse", D9D_F32, p.lse, lse, rows, 5e-6);
    if (unit_device_is_cpu())
        assert_memory_equal(p.o, plain, (size_t)no * d9d_dtype_size(n->t));
    p.k = keys;
    p.v = values;
    attention_call_release(&p);
    cached_free(&k);
    cached_free(&v);
    free(plain);
    free(o);
    free(lse);
    free(g);
}

/* One query of each of three sequences, a few of one, and more than decode's kernel takes. */
static const d9d_segment one_each[] = {{0, 1, 0, 5}, {1, 1, 70, 130}, {2, 1, 260, 1}};
static const d9d_segment few[] = {{0, 3, 40, 200}};
static const d9d_segment many[] = {{0, 150, 10, 280}};

static void test_attention(void **state)
{
    static const struct {
        int64_t s, n;
        const d9d_segment *list;
    } calls[] = {{3, 3, one_each}, {3, 1, few}, {150, 1, many}};
    static const int64_t heads[][3] = {/* A, KV, D */
                                       {4, 1, 128},
                                       {6, 2, 64},
                                       {2, 2, 80},
                                       {3, 1, 20},
                                       {2, 1, 256}};

    (void)state;
    for (size_t c = 0; c < sizeof(calls) / sizeof(*calls); c++)
        for (size_t i = 0; i < sizeof(heads) / sizeof(*heads); i++)
            for (int flags = 0; flags < 4; flags++) {
                const d9d_attention_dims n = {.t = array_types[flags & 1],
                                              .b = 1,
                                              .s = calls[c].s,
                                              .z = 300,
                                              .a = heads[i][0],
                                              .kv = heads[i][1],
                                              .d = heads[i][2],
                                              .scale = 0.1f,
                                              .softcap = flags & 2 ? 20.0f : 0,
                                              .window = flags & 2 ? 33 : 0,
                                              .causal = true,
                                              .segments = calls[c].n,
                                              .segment = calls[c].list,
                                              .decode = true};

                check_attention(&n);
            }
}

/* Against keys and values that are not quantised: with E the largest error of a score, a
 * probability changes by at most a factor of exp(2 E), so an output by at most
 * exp(2 E) max|dv| + (exp(2 E) - 1) max|v|. */
static void test_error(void **state)
{
    const d9d_attention_dims n = {.t = D9D_F32,
                                  .b = 1,
                                  .s = 3,
                                  .z = 300,
                                  .a = 4,
                                  .kv = 2,
                                  .d = 64,
                                  .scale = 0.125f,
                                  .causal = true,
                                  .segments = 3,
                                  .segment = one_each,
                                  .decode = true};
    attention_call p = attention_call_create(&n);
    const int64_t no = attention_o_size(&n), nk = attention_k_size(&n);
    double *k = array_doubles(n.t, p.k, nk), *v = array_doubles(n.t, p.v, nk), *o;
    double error = 0, dv = 0, most = 0;
    cached ck, cv;

    (void)state;
    attention_call_fwd(&p);
    o = array_doubles(n.t, p.o, no);
    ck = store(&n, p.k, n.d);
    cv = store(&n, p.v, n.d);
    for (int64_t i = 0; i < n.s * n.a; i++)
        for (int64_t z = 0; z < n.z; z++) {
            const int64_t row = z * n.kv + i % n.a / (n.a / n.kv);
            double sum = 0;

            for (int64_t j = 0; j < n.d; j++)
                sum += array_get(n.t, p.q, i * n.d + j) *
                       (array_get(n.t, p.k, row * n.d + j) - k[row * n.d + j]);
            error = fmax(error, fabs(sum) * (double)n.scale);
        }
    for (int64_t i = 0; i < nk; i++) {
        dv = fmax(dv, fabs(array_get(n.t, p.v, i) - v[i]));
        most = fmax(most, fabs(v[i]));
    }
    attention_call_fwd(&p);
    for (int64_t i = 0; i < no; i++)
        assert_true(fabs(array_get(n.t, p.o, i) - o[i]) <=
                    1e-5 + exp(2 * error) * dv + (exp(2 * error) - 1) * most);
    assert_true(error < 0.25 && error > 0 && dv > 0);
    attention_call_release(&p);
    cached_free(&ck);
    cached_free(&cv);
    free(k);
    free(v);
    free(o);
}

static void test_refused(void **state)
{
    float x[4] = {0};
    d9d_attention_dims n = {
        .t = D9D_F32, .b = 1, .s = 1, .z = 1, .a = 1, .kv = 1, .d = 1, .scale = 1, .k_scale = x};

    (void)state;
    assert_fails_like(host_kernels()->attention->fwd(NULL, &n, x, x, x, x, x), D9D_EINVAL,
                      "attention: keys and values in 8 bits need scales of both");
    n.v_scale = x;
    assert_fails_like(host_kernels()->attention->fwd(NULL, &n, x, x, x, x, x), D9D_EINVAL,
                      "attention: keys and values in 8 bits are those of a cache");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_append), cmocka_unit_test(test_nonfinite),
        cmocka_unit_test(test_two),    cmocka_unit_test(test_attention),
        cmocka_unit_test(test_error),  cmocka_unit_test(test_refused)};

    return cmocka_run_group_tests_name("kernel_kv_append_fp8", tests, NULL, NULL);
}
