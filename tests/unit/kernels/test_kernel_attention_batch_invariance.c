/* A packed document has the same bits alone and beside others, whatever those hold. */
#include "support/attention_call.h"
#include "support/unit.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { ARRAYS = 9, LSE = 8 }; /* q dout o dq | k v dk dv | lse */

/* Arrays of a call, in the order above. */
static void arrays_of(const attention_call *p, void *out[ARRAYS])
{
    int64_t nq = attention_q_size(&p->n), nk = attention_k_size(&p->n);
    void *all[ARRAYS] = {p->q,
                         p->dout,
                         p->o,
                         attention_call_grad(p, 0),
                         p->k,
                         p->v,
                         attention_call_grad(p, nq),
                         attention_call_grad(p, nq + nk),
                         p->lse};

    memcpy(out, all, sizeof(all));
}

/* Elements of a token in array i. */
static int64_t token_size(const attention_call *p, int i)
{
    const bool of_values = i == 1 || i == 2 || i == 5 || i == 7;

    return (i < 4 ? p->n.a : p->n.kv) * (of_values ? d9d_attention_dims_resolve(&p->n).dv : p->n.d);
}
/* Where a token's part of array i begins. */
static void *token_at(const attention_call *p, void *const *all, int i, int64_t token)
{
    return (char *)all[i] + (size_t)(token * token_size(p, i)) * d9d_dtype_size(p->n.t);
}

/* Where the first token of a segment has its part of array i, and how much is the segment's. */
static void *segment_at(const attention_call *p, int i, const d9d_segment *x, size_t *bytes)
{
    const bool query = i < 4;
    void *all[ARRAYS];

    arrays_of(p, all);
    *bytes = (size_t)((query ? x->nq : x->nk) * token_size(p, i)) * d9d_dtype_size(p->n.t);
    return token_at(p, all, i, query ? x->q : x->k);
}

/* What a segment gives by itself must be what it gave in the pack; the arrays that differ are
 * counted.  Where a library is likely, by itself is a pack of one; of chunks one with a key more,
 * as rows with as many keys as queries may differ. */
static void same_alone(const attention_call *pack, const d9d_segment *x, int different[ARRAYS])
{
    const d9d_segment one = {0, x->nq, 0, x->nk};
    const int32_t prefix = (int32_t)attention_prefix_of(&pack->n, x->q);
    const int64_t row = x->q / pack->n.s;
    d9d_attention_dims n = pack->n;
    size_t bytes;
    attention_call p;

    n.b = 1;
    n.s = x->nq;
    n.segments = 1;
    n.segment = n.d >= 64 || n.prefix != NULL ? &one : NULL;
    n.prefix = n.prefix != NULL ? &prefix : NULL;
    n.chunks = n.chunks > 0 && n.segment != NULL;
    n.z = x->nk + n.chunks;
    p = attention_call_create(&n);
    for (int i = 0; i < LSE; i++)
        if (i % 4 < 2) {
            void *alone = segment_at(&p, i, &one, &bytes);

            memcpy(alone, segment_at(pack, i, x, &bytes), bytes);
        }
    attention_call_fwd(&p);
    attention_call_bwd(&p);
    for (int i = 0; i < LSE; i++) {
        const void *alone = segment_at(&p, i, &one, &bytes);

        different[i] += memcmp(alone, segment_at(pack, i, x, &bytes), bytes) != 0;
    }
    for (int64_t h = 0; h < n.a; h++)
        different[LSE] +=
            memcmp(p.lse + h * n.s, pack->lse + (row * n.a + h) * pack->n.s + x->q % pack->n.s,
                   (size_t)n.s * sizeof(float)) != 0;
    attention_call_release(&p);
}

static const struct {
    d9d_dtype t;
    int64_t d, window;
    bool causal;
    float softcap;
    int64_t dv; /* 0: d */
} alone_cases[] = {
    {D9D_F32, 20, 0, false, 0, 0},      {D9D_BF16, 20, 0, false, 0, 0},
    {D9D_F32, 20, 0, true, 0, 0},       {D9D_BF16, 20, 0, true, 0, 0},
    {D9D_F32, 64, 0, false, 0, 0},      {D9D_BF16, 64, 0, false, 0, 0},
    {D9D_F32, 64, 0, true, 0, 0},       {D9D_BF16, 64, 0, true, 0, 0},
    {D9D_F32, 20, 60, true, 0, 0},      {D9D_BF16, 64, 60, true, 0, 0},
    {D9D_BF16, 256, 0, true, 0, 0},     {D9D_BF16, 200, 60, true, 0, 0},
    {D9D_BF16, 64, 60, false, 2.0f, 0}, {D9D_F32, 20, 60, false, 2.0f, 0},
    {D9D_BF16, 64, 0, true, 2.0f, 0},   {D9D_BF16, 192, 0, true, 0, 128},
    {D9D_BF16, 64, 60, true, 0, 96},
};

/* Makes the segment's part of x, array i, NaN. */
static void spoil(const attention_call *p, void *x, int i, const d9d_segment *of)
{
    const int64_t each = token_size(p, i);

    for (int64_t j = of->k * each; j < (of->k + of->nk) * each; j++)
        array_set(p->n.t, x, j, NAN);
}

/* To the bit, wherever a segment lies, and with NaN in segment `spoilt`. */
static void check_alone(int64_t s, int64_t z, int64_t chunks, const d9d_segment *list,
                        const int32_t *prefix, int segments, int spoilt)
{
    static const char *const names[ARRAYS] = {"q", "dout", "o", "dq", "k", "v", "dk", "dv", "lse"};

    for (size_t flags = 0; flags < sizeof(alone_cases) / sizeof(*alone_cases);
         flags += (size_t)unit_step(3)) {
        d9d_attention_dims n = {.t = alone_cases[flags].t,
                                .b = 2,
                                .s = s,
                                .z = z,
                                .a = 4,
                                .kv = 2,
                                .d = alone_cases[flags].d,
                                .dv = alone_cases[flags].dv,
                                .causal = alone_cases[flags].causal,
                                .window = alone_cases[flags].window,
                                .softcap = alone_cases[flags].softcap,
                                .scale = 0.3f,
                                .segments = segments,
                                .segment = list,
                                .prefix = alone_cases[flags].causal ? prefix : NULL,
                                .chunks = chunks};
        int different[ARRAYS] = {0};
        attention_call p = attention_call_create(&n);

        spoil(&p, p.k, 4, &list[spoilt]);
        spoil(&p, p.v, 5, &list[spoilt]);
        attention_call_fwd(&p);
        attention_call_bwd(&p);
        for (int i = 0; i < segments && getenv("D9D_TEST_ONCE") == NULL; i++)
            if (i != spoilt)
                same_alone(&p, &list[i], different);
        for (int i = 0; i < ARRAYS; i++)
            if (different[i] > 0)
                fail_msg("%s, %lld features: %d segments have other bits of %s alone",
                         d9d_dtype_name(n.t), (long long)n.d, different[i], names[i]);
        attention_call_release(&p);
    }
}

static void test_alone(void **state)
{
    enum { S = 413, N = 9 };
    static const int32_t bounds[N + 1] = {0, 3, 4, 137, 200, 264, 400, S, S + 129, 2 * S};
    static const int32_t prefix[N] = {2, 1, 133, 40, 0, 70, 13, 129, 100};
    static const d9d_segment more_keys[] = {
        {0, 3, 0, 50},      {3, 1, 50, 2},       {4, 100, 60, 200},   {104, 65, 300, 66},
        {169, 30, 400, 97}, {199, 70, 500, 170}, {269, 129, 670, 280}};
    static const d9d_segment halves[] = {
        {0, 30, 0, 130},    {30, 3, 130, 3},    {33, 67, 133, 67},
        {100, 60, 240, 90}, {160, 40, 330, 40}, {200, 100, 500, 200},
        {300, 5, 720, 155}, {305, 1, 875, 1},   {306, 94, 876, 94}};
    d9d_segment list[N];

    (void)state;
    attention_segments(bounds, N, list);
    check_alone(S, S, 0, list, NULL, N, 3);
    check_alone(S, S, 0, list, prefix, N, 3);
    check_alone(199, 500, 0, more_keys, NULL, 7, 3);
    check_alone(200, 500, 2, halves, NULL, 9, 3);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_alone),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
