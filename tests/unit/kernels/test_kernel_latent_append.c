/* Rotated queries and cache rows of MLA against formulas in double. */
#include "support/arrays.h"
#include "support/host_kernels.h"
#include "support/unit.h"

#include <math.h>
#include <stdlib.h>

enum { SLOTS = 40, FREQUENCIES = 64 };

typedef struct call {
    d9d_latent_append_args a;
    int32_t positions[SLOTS], slots[SLOTS];
    float inv_freq[FREQUENCIES];
    void *q, *latent, *key, *w, *query, *cache;
} call;

static int64_t wide(const call *c)
{
    return c->a.c + c->a.r;
}

/* Every third token has no slot; positions and slots go down while tokens go up. */
static void make(call *c)
{
    d9d_latent_append_args *a = &c->a;

    for (int64_t i = 0; i < a->m; i++) {
        c->positions[i] = (int32_t)(1000 - 37 * i);
        c->slots[i] = i % 3 == 1 ? -1 : (int32_t)(SLOTS - 1 - i);
    }
    for (int64_t i = 0; i < a->r / 2; i++)
        c->inv_freq[i] = (float)pow(10.0, -(double)i / 8.0);
    c->q = array_random(a->t, a->m * a->heads * a->q_cols, 1, 1.0);
    c->latent = array_random(a->t, a->m * a->c, 2, 1.0);
    c->key = array_random(a->t, a->m * a->r, 3, 1.0);
    c->w = array_random(a->t, a->c, 4, 1.0);
    c->query = array_random(a->t, a->m * a->heads * wide(c), 5, 1.0);
    c->cache = array_random(a->t, SLOTS * wide(c), 6, 1.0);
    a->positions = c->positions;
    a->row_index = c->slots;
    a->inv_freq = c->inv_freq;
    a->q = c->q;
    a->latent = c->latent;
    a->key = c->key;
    a->w = c->w;
    a->query = c->query;
    a->cache = c->cache;
}

static void release(call *c)
{
    void *all[] = {c->q, c->latent, c->key, c->w, c->query, c->cache};

    for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); i++)
        free(all[i]);
}

/* to[..] = the r features of x from `from` on, rotated by token i's position. */
static void twin_rotate(const call *c, int64_t i, const void *x, int64_t from, double *to)
{
    const d9d_latent_append_args *a = &c->a;

    for (int64_t j = 0; j < a->r / 2; j++) {
        const int64_t u = a->interleaved ? 2 * j : j, v = a->interleaved ? 2 * j + 1 : j + a->r / 2;
        const double p = array_get(a->t, x, from + u), q = array_get(a->t, x, from + v);
        const double angle = (double)((float)c->positions[i] * c->inv_freq[j]);
        const double co = cos(angle) * (double)a->mscale, si = sin(angle) * (double)a->mscale;

        to[u] = p * co - q * si;
        to[v] = q * co + p * si;
    }
}

static void twin(const call *c, double *query, double *cache)
{
    const d9d_latent_append_args *a = &c->a;

    for (int64_t i = 0; i < a->m; i++) {
        double *row = c->slots[i] < 0 ? NULL : cache + c->slots[i] * wide(c), sum = 0;

        for (int64_t h = i * a->heads; h < (i + 1) * a->heads; h++)
            twin_rotate(c, i, c->q, (h + 1) * a->q_cols - a->r, query + h * wide(c) + a->c);
        if (row == NULL)
            continue;
        for (int64_t f = 0; f < a->c; f++)
            sum += pow(array_get(a->t, c->latent, i * a->c + f), 2);
        for (int64_t f = 0; f < a->c; f++)
            row[f] = array_get(a->t, c->latent, i * a->c + f) * array_get(a->t, c->w, f) /
                     sqrt(sum / (double)a->c + (double)a->eps);
        twin_rotate(c, i, c->key, i * a->r, row + a->c);
    }
}

static void check(const d9d_latent_append_args *a)
{
    call *c = calloc(1, sizeof(*c));
    double *query, *cache;

    assert_non_null(c);
    c->a = *a;
    make(c);
    query = array_doubles(a->t, c->query, a->m * a->heads * wide(c));
    cache = array_doubles(a->t, c->cache, SLOTS * wide(c));
    twin(c, query, cache);
    assert_ok(host_kernels()->norm->latent_append(NULL, &c->a));
    array_close("query", a->t, c->query, query, a->m * a->heads * wide(c), 1e-5);
    array_close("cache", a->t, c->cache, cache, SLOTS * wide(c), 1e-5);
    free(query);
    free(cache);
    release(c);
    free(c);
}

static void test_latent_append(void **state)
{
    static const int64_t shapes[][5] = {/* m, heads, q_cols, c, r */
                                        {1, 1, 2, 1, 2},
                                        {0, 2, 24, 16, 8},
                                        {3, 16, 192, 512, 64},
                                        {17, 5, 20, 33, 6},
                                        {16, 40, 96, 128, 32}};

    (void)state;
    for (size_t i = 0; i < sizeof(shapes) / sizeof(shapes[0]); i++)
        for (int flags = 0; flags < 4; flags++) {
            const int64_t *s = shapes[i];
            const d9d_latent_append_args a = {.t = array_types[flags & 1],
                                              .m = s[0],
                                              .heads = s[1],
                                              .q_cols = s[2],
                                              .c = s[3],
                                              .r = s[4],
                                              .eps = 1e-5f,
                                              .mscale = 1.25f,
                                              .interleaved = (flags & 2) != 0};

            check(&a);
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_latent_append)};

    return cmocka_run_group_tests_name("kernel_latent_append", tests, NULL, NULL);
}
