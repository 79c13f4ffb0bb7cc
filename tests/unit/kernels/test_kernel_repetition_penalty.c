/* Logits of tokens that sequences have. */
#include "support/arrays.h"
#include "support/host_kernels.h"
#include "support/unit.h"

#include <stdlib.h>
#include <string.h>

enum { M = 3, N = 1037, SLOTS = 40, TOKENS = 4 };

typedef struct call {
    int32_t history[SLOTS], ids[TOKENS], slots[TOKENS];
    d9d_segment segment[M];
    float *x, *y;
} call;

/* Sequences of 7, 12 and 0 tokens in slots 0.., 20.. and 39; the last tokens of the first two are
 * the call's, and one is of another sequence. */
static call call_make(void)
{
    static const int32_t ids[TOKENS] = {9, N - 1, 3, 5}, slots[TOKENS] = {6, 31, 30, 38};
    call c = {.segment = {{.k = 0, .nk = 7}, {.k = 20, .nk = 12}, {.k = 39, .nk = 0}},
              .x = array_random(D9D_F32, M * N, 7, 3),
              .y = array_poison(D9D_F32, M * N)};

    memcpy(c.ids, ids, sizeof(ids));
    memcpy(c.slots, slots, sizeof(slots));
    for (int i = 0; i < SLOTS; i++)
        c.history[i] = i % 5 == 2 ? 4 : i % 5 == 3 ? N + i : i % 11 * 13;
    return c;
}

static void run(call *c, float penalty)
{
    const d9d_repetition_penalty_args a = {.penalty = penalty,
                                           .history = c->history,
                                           .ids = c->ids,
                                           .slots = c->slots,
                                           .segment = c->segment,
                                           .tokens = TOKENS,
                                           .m = M,
                                           .n = N,
                                           .x = c->x,
                                           .y = c->y};

    assert_ok(host_kernels()->elementwise->repetition_penalty(NULL, &a));
}

static bool has(const int32_t *ids, int64_t n, int32_t token)
{
    bool found = false;

    for (int64_t i = 0; i < n; i++)
        found = found || ids[i] == token;
    return found;
}

static void tokens_that_are_there_are_penalised_once(void **state)
{
    static const float penalties[] = {1.3f, 2.0f, 0.5f, 1.0f};

    (void)state;
    for (size_t p = 0; p < sizeof(penalties) / sizeof(penalties[0]); p++) {
        call c = call_make(), before = c;
        const float f = penalties[p];

        run(&c, f);
        for (int64_t j = 0; j < TOKENS; j++)
            before.history[before.slots[j]] = before.ids[j];
        assert_memory_equal(c.history, before.history, sizeof(c.history));
        for (int64_t i = 0; i < M; i++)
            for (int32_t t = 0; t < N; t++) {
                const float x = c.x[i * N + t], y = c.y[i * N + t];
                const bool there = has(c.history + c.segment[i].k, c.segment[i].nk, t);

                assert_true(y == (!there ? x : x < 0 ? x * f : x / f));
            }
        free(c.x);
        free(c.y);
    }
}

/* A call without rows appends its tokens too. */
static void tokens_are_appended_without_rows(void **state)
{
    call c = call_make();
    const d9d_repetition_penalty_args a = {.penalty = 2,
                                           .history = c.history,
                                           .ids = c.ids,
                                           .slots = c.slots,
                                           .segment = c.segment,
                                           .tokens = TOKENS,
                                           .n = N};

    (void)state;
    assert_ok(host_kernels()->elementwise->repetition_penalty(NULL, &a));
    for (int j = 0; j < TOKENS; j++)
        assert_int_equal(c.history[c.slots[j]], c.ids[j]);
    free(c.x);
    free(c.y);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(tokens_that_are_there_are_penalised_once),
        cmocka_unit_test(tokens_are_appended_without_rows),
    };

    return cmocka_run_group_tests_name("kernel_repetition_penalty", tests, NULL, NULL);
}
