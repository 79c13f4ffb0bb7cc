/* Sorting tokens by expert: the permutation, permute and unpermute. */
#include "support/arrays.h"
#include "support/host_kernels.h"
#include "support/unit_device.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

typedef struct call {
    d9d_dtype t;
    int64_t rows, e, k, h;
    void *x, *y, *z, *dy, *dx;
    float *prob, *dprob_x;
    int32_t *expert, *order; /* order: offset, row, source in one block */
} call;

static int32_t *offset_of(const call *c)
{
    return c->order;
}
static int32_t *row_of(const call *c)
{
    return c->order + c->e + 1;
}
static int32_t *source_of(const call *c)
{
    return row_of(c) + c->rows * c->k;
}

static void run_route(void *arg)
{
    call *c = arg;

    assert_int_equal(host_kernels()->moe->sort_by_expert(NULL, offset_of(c), row_of(c),
                                                         source_of(c), c->expert, c->rows, c->e,
                                                         c->k),
                     D9D_OK);
}
static int64_t rows_used(const call *c)
{
    return offset_of(c)[c->e];
}
static d9d_moe_permute_dims dims(const call *c)
{
    return (d9d_moe_permute_dims){c->t, c->rows, c->k, rows_used(c), c->h};
}
static void run_permute(void *arg)
{
    call *c = arg;
    const d9d_moe_permute_dims n = dims(c);

    assert_int_equal(host_kernels()->moe->permute(NULL, &n, c->y, c->x, row_of(c)), D9D_OK);
}
static void run_permute_bwd(void *arg)
{
    call *c = arg;
    const d9d_moe_permute_dims n = dims(c);

    assert_int_equal(host_kernels()->moe->permute_bwd(NULL, &n, c->z, c->y, row_of(c)), D9D_OK);
}
static void run_unpermute(void *arg)
{
    call *c = arg;
    const d9d_moe_permute_dims n = dims(c);

    assert_int_equal(host_kernels()->moe->unpermute(NULL, &n, c->z, c->y, c->prob, row_of(c), NULL),
                     D9D_OK);
}
static void run_unpermute_bwd(void *arg)
{
    call *c = arg;
    const d9d_moe_permute_dims n = dims(c);

    assert_int_equal(host_kernels()->moe->unpermute_bwd(NULL, &n, c->dx, c->dprob_x, c->dy, c->y,
                                                        c->prob, row_of(c)),
                     D9D_OK);
}

/* k experts of a token, no two the same. */
static void choose(call *c)
{
    for (int64_t r = 0; r < c->rows; r++)
        for (int64_t j = 0; j < c->k; j++)
            c->expert[r * c->k + j] = (int32_t)((r * r + j) % c->e);
}

static void make(call *c)
{
    int64_t n = c->rows * c->k;

    c->prob = array_random(D9D_F32, n, 3, 1.0);
    c->x = array_random(c->t, c->rows * c->h, 4, 1.0);
    c->dy = array_random(c->t, c->rows * c->h, 5, 1.0);
    c->dprob_x = array_poison(D9D_F32, n);
    c->expert = array_poison(D9D_F32, n);
    c->order = array_poison(D9D_F32, c->e + 1 + 2 * n);
    c->y = array_poison(c->t, n * c->h);
    c->dx = array_poison(c->t, n * c->h);
    c->z = array_poison(c->t, c->rows * c->h);
    choose(c);
}

static void release(call *c)
{
    void *parts[] = {c->prob, c->dprob_x, c->expert, c->order, c->x, c->y, c->z, c->dy, c->dx};

    for (size_t i = 0; i < sizeof(parts) / sizeof(*parts); i++)
        free(parts[i]);
}

static void check_order(call *c)
{
    int64_t n = c->rows * c->k, at = 0;

    array_same_for_threads(run_route, c, c->order, (size_t)(c->e + 1 + 2 * n) * 4, NULL);
    for (int64_t x = 0; x < c->e; x++) {
        assert_int_equal(offset_of(c)[x], at);
        for (int64_t i = 0; i < n; i++)
            if (c->expert[i] == x) {
                assert_int_equal(source_of(c)[at], i);
                assert_int_equal(row_of(c)[i], at++);
            }
    }
    assert_int_equal(offset_of(c)[c->e], at);
    for (int64_t i = 0; i < n; i++)
        assert_true(row_of(c)[i] >= 0 || c->expert[i] == -1);
    for (; at < n; at++)
        assert_int_equal(source_of(c)[at], -1);
}

static void check_rows(call *c)
{
    int64_t n = c->rows * c->k, h = c->h, used = rows_used(c);
    size_t size = d9d_dtype_size(c->t);
    double *y = calloc((size_t)(n * h) + 1, sizeof(*y)),
           *z = calloc((size_t)(n * h) + 1, sizeof(*z));
    double *back = calloc((size_t)(n * h) + 1, sizeof(*back));
    double *dx = calloc((size_t)(n * h) + 1, sizeof(*dx)), *dp = calloc((size_t)n + 1, sizeof(*dp));

    for (int64_t i = 0; i < n; i++)
        for (int64_t f = 0; f < h && row_of(c)[i] >= 0; f++) {
            double x = array_get(c->t, c->x, i / c->k * h + f);
            double d = array_get(c->t, c->dy, i / c->k * h + f);

            y[row_of(c)[i] * h + f] = x;
            back[i / c->k * h + f] += x;
            z[i / c->k * h + f] += x * (double)c->prob[i];
            dx[row_of(c)[i] * h + f] = d * (double)c->prob[i];
            dp[i] += d * x;
        }
    array_same_for_threads(run_permute, c, c->y, (size_t)(used * h) * size, NULL);
    array_close("permute", c->t, c->y, y, used * h, 0.0);
    array_same_for_threads(run_permute_bwd, c, c->z, (size_t)(c->rows * h) * size, NULL);
    array_close("permute_bwd", c->t, c->z, back, c->rows * h, 1e-6);
    array_same_for_threads(run_unpermute, c, c->z, (size_t)(c->rows * h) * size, NULL);
    array_close("unpermute", c->t, c->z, z, c->rows * h, 1e-6);
    array_same_for_threads(run_unpermute_bwd, c, c->dx, (size_t)(used * h) * size, NULL);
    array_close("unpermute_bwd dx", c->t, c->dx, dx, used * h, 1e-6);
    array_close("unpermute_bwd dprob", D9D_F32, c->dprob_x, dp, n, 1e-4);
    free(y);
    free(z);
    free(back);
    free(dx);
    free(dp);
}

static void test_moe(void **state)
{
    const int64_t shapes[][4] = {{0, 4, 2, 3},   {1, 1, 1, 1},    {17, 5, 3, 33},
                                 {33, 8, 8, 17}, {600, 64, 6, 5}, {40, 130, 1, 1030}};

    (void)state;
    for (size_t i = 0; i < sizeof(shapes) / sizeof(*shapes); i++)
        for (int flags = 0; flags < 2; flags++) {
            call c = {.t = array_types[flags],
                      .rows = shapes[i][0],
                      .e = shapes[i][1],
                      .k = shapes[i][2],
                      .h = shapes[i][3]};

            make(&c);
            check_order(&c);
            check_rows(&c);
            for (int64_t j = 0; j < c.rows * c.k; j++)
                c.expert[j] = (j / 3 + flags) % 3 != 0 ? -1 : c.expert[j];
            check_order(&c);
            check_rows(&c);
            release(&c);
        }
}

/* Three ranks of two experts each; a token goes once to a rank. */
static void test_ranks(void **state)
{
    const int32_t expert[] = {5, 4, 0, 2, 3, 1, 0, 1, 5};
    const int32_t to[] = {0, -1, 2, 0, 1, -1, 0, -1, 2};
    const int32_t local[] = {-1, -1, 0, -1, -1, 1,  0, 1,  -1, 0, 1,
                             -1, 1,  0, -1, -1, -1, 1, -1, -1, -1}; /* the place that is left */
    int32_t rank[9], offset[4], row[9], source[9], there[21];
    const d9d_kernels *k = host_kernels();

    (void)state;
    assert_int_equal(k->moe->expert_ranks(NULL, rank, expert, 3, 3, 3, 2), D9D_OK);
    assert_memory_equal(rank, to, sizeof(to));
    assert_int_equal(k->moe->sort_by_expert(NULL, offset, row, source, rank, 3, 3, 3), D9D_OK);
    assert_memory_equal(offset, ((int32_t[]){0, 3, 4, 6}), sizeof(offset));
    assert_int_equal(k->moe->expert_local_ids(NULL, there, source, expert, 7, 3, 3, 3, 2), D9D_OK);
    assert_memory_equal(there, local, sizeof(local));
    assert_int_equal(k->moe->expert_ranks(NULL, rank, expert, 0, 3, 3, 2), D9D_OK);
    assert_int_equal(k->moe->expert_local_ids(NULL, there, source, expert, 0, 0, 3, 3, 2), D9D_OK);
}

/* Choices of other ranks' experts, -1, send a token nowhere. */
static void test_ranks_of_some_choices(void **state)
{
    const int32_t expert[] = {-1, 4, 0, -1, -1, -1, 3, -1, 2},
                  to[] = {0, -1, 2, -1, -1, -1, -1, 1, -1};
    int32_t rank[9];

    (void)state;
    assert_int_equal(host_kernels()->moe->expert_ranks(NULL, rank, expert, 3, 3, 3, 2), D9D_OK);
    assert_memory_equal(rank, to, sizeof(to));
}

/* A row is its token and its expert, counted over all ranks; numbers are of 64 bits. */
static void test_numbers(void **state)
{
    const int32_t expert[] = {-1, 1, 0, -1, 1, 0}, source[] = {2, 5, 1, 4, -1};
    const int64_t token[] = {7, INT64_C(1) << 40, 3},
                  to[] = {(INT64_C(1) << 40) * 6 + 4, 22, 47, 23, 0};
    int64_t number[5];
    const d9d_kernels *k = host_kernels();

    (void)state;
    assert_int_equal(k->moe->expert_numbers(NULL, number, token, source, expert, 5, 3, 2, 4, 6),
                     D9D_OK);
    assert_memory_equal(number, to, sizeof(to));
    assert_int_equal(k->moe->expert_numbers(NULL, number, token, source, expert, 0, 0, 2, 4, 6),
                     D9D_OK);
}

static void test_bad_calls(void **state)
{
    const int32_t outside[] = {0, 3, 1, 2}, negative[] = {0, -2, 1, 2};
    const d9d_kernels *k = host_kernels();
    int32_t out[16];

    (void)state;
    if (unit_device_is_cpu()) {
        assert_int_equal(k->moe->sort_by_expert(NULL, out, out + 4, out + 8, outside, 2, 3, 2),
                         D9D_EINVAL);
        assert_non_null(strstr(d9d_err_message(), "token 0 goes to expert 3 of 3"));
        assert_int_equal(k->moe->sort_by_expert(NULL, out, out + 4, out + 8, negative, 2, 3, 2),
                         D9D_EINVAL);
        assert_int_equal(k->moe->expert_ranks(NULL, out, outside, 2, 2, 3, 1), D9D_EINVAL);
        assert_int_equal(k->moe->expert_ranks(NULL, out, negative, 2, 2, 3, 1), D9D_EINVAL);
    } else {
        /* As if they were 2 and -1. */
        assert_int_equal(k->moe->sort_by_expert(NULL, out, out + 4, out + 8, outside, 2, 3, 2),
                         D9D_OK);
        assert_memory_equal(out + 8, ((int32_t[]){0, 2, 1, 3}), 16);
        assert_int_equal(k->moe->sort_by_expert(NULL, out, out + 4, out + 8, negative, 2, 3, 2),
                         D9D_OK);
        assert_memory_equal(out + 8, ((int32_t[]){0, 2, 3, -1}), 16);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_moe),
        cmocka_unit_test(test_ranks),
        cmocka_unit_test(test_ranks_of_some_choices),
        cmocka_unit_test(test_numbers),
        cmocka_unit_test(test_bad_calls),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
