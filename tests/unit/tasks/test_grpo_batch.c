/* test_grpo_batch.c - completions as a micro-batch; test_golden_grpo.c has its losses. */
#include "support/unit.h"

#include <math.h>
#include <string.h>

#include "tasks/grpo_batch.h"

enum { ROWS = 3, LENGTH = 8 };

static const uint32_t first[] = {5, 6, 7, 10, 11, 12}, second[] = {8, 20};
static const d9di_grpo_token tokens[] = {{-0.5, 1}, {-1.5, 2}, {-2.5, 3}};

/* A prompt of three tokens with a completion of three, one of one with a truncated one of one, and
 * a skipped sample. */
static const d9di_grpo_completion completions[ROWS] = {
    {.ids = first, .prompt = 3, .n = 3, .tokens = tokens, .reward = 2, .advantage = 0.75},
    {.ids = second, .prompt = 1, .n = 1, .tokens = tokens, .truncated = true, .zero_std = true},
    {.n = 0}};

static float column(const d9d_batch *b, int64_t row, int64_t at, int k)
{
    return ((const float *)b->fields[0].data)[(row * LENGTH + at) * D9DI_GRPO_COLUMNS + k];
}

static void ids_and_targets_stand_side_by_side(void **state)
{
    static const int32_t ids[] = {5, 6, 7, 10, 11, 0, 0, 0}, none = -100,
                         labels[] = {-100, -100, 10, 11, 12, -100, -100, -100},
                         rows[] = {-100, -100, 0, 0, 0, -100, -100, -100};
    const d9d_grpo_section c = {.loss_type = D9D_GRPO_LOSS_GRPO, .num_generations = 2};
    d9di_grpo_buffer buffer = {.ints = {0}};
    d9d_batch b;

    (void)state;
    assert_ok(d9di_grpo_batch_make(&c, completions, ROWS, 40, 4, &buffer, &b));
    assert_int_equal(b.length, LENGTH); /* 5, to a multiple of 4 */
    assert_int_equal(b.first, 40);
    assert_int_equal(b.targets, 4);
    assert_int_equal(b.tokens, 6);
    assert_memory_equal(b.ids, ids, sizeof(ids));
    assert_memory_equal(b.labels, labels, sizeof(labels));
    assert_memory_equal(b.fields[1].data, rows, sizeof(rows));
    assert_int_equal(b.labels[LENGTH], 20);
    assert_int_equal(b.lengths[0], 5);
    assert_int_equal(b.lengths[1], 1);
    assert_int_equal(b.lengths[2], 0);
    for (int64_t i = 0; i < LENGTH; i++)
        assert_int_equal(b.labels[2 * LENGTH + i], none);
    assert_true(column(&b, 0, 3, D9DI_GRPO_SAMPLED) == -1.5f);
    assert_true(column(&b, 0, 4, D9DI_GRPO_ENTROPY) == 3);
    assert_true(column(&b, 0, 1, D9DI_GRPO_MASK) == 0 && column(&b, 0, 2, D9DI_GRPO_MASK) == 1);
    assert_true(column(&b, 0, 4, D9DI_GRPO_ADVANTAGE) == 0.75f);
    assert_true(column(&b, 0, 2, D9DI_GRPO_REWARD) == 2 && column(&b, 0, 3, D9DI_GRPO_REWARD) == 0);
    assert_true(column(&b, 1, 0, D9DI_GRPO_TRUNCATED) == 1);
    assert_true(column(&b, 1, 0, D9DI_GRPO_ZERO_STD) == 1);
    d9di_grpo_buffer_release(&buffer);
}

/* The sums that losses are divided by, with and without what was truncated. */
static void weights_are_those_of_the_loss(void **state)
{
    static const struct {
        int loss_type;
        double weight[2];   /* of a token of the first and the second completion */
        int64_t targets[2]; /* with both, and without the truncated one */
        double alone;       /* of the first one's, without the other */
    } cases[] = {
        {D9D_GRPO_LOSS_GRPO, {1 / 3.0, 1}, {2, 2}, 1 / 3.0},
        {D9D_GRPO_LOSS_BNPO, {0.5, 0.5}, {2, 2}, 2 / 3.0},
        {D9D_GRPO_LOSS_DR_GRPO, {0.125, 0.125}, {2, 2}, 0.125},
        {D9D_GRPO_LOSS_DAPO, {1, 1}, {4, 3}, 1},
        {D9D_GRPO_LOSS_CISPO, {1, 1}, {4, 3}, 1},
    };

    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++)
        for (int masked = 0; masked < 2; masked++) {
            const d9d_grpo_section c = {.loss_type = cases[i].loss_type,
                                        .num_generations = 2,
                                        .max_completion_length = 8,
                                        .mask_truncated_completions = masked};
            const double want = masked ? cases[i].alone : cases[i].weight[0];
            d9di_grpo_buffer buffer = {.ints = {0}};
            d9d_batch b;

            assert_ok(d9di_grpo_batch_make(&c, completions, ROWS, 0, LENGTH, &buffer, &b));
            assert_int_equal(d9di_grpo_targets(&c, &b), cases[i].targets[masked]);
            assert_true(fabs((double)column(&b, 0, 2, D9DI_GRPO_WEIGHT) - want) < 1e-7);
            assert_true(fabs((double)column(&b, 1, 0, D9DI_GRPO_WEIGHT) -
                             (masked ? 0 : cases[i].weight[1])) < 1e-7);
            assert_true(column(&b, 1, 0, D9DI_GRPO_FIRST) == 1); /* it has a reward all the same */
            d9di_grpo_buffer_release(&buffer);
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(ids_and_targets_stand_side_by_side),
                                       cmocka_unit_test(weights_are_those_of_the_loss)};

    return cmocka_run_group_tests(tests, NULL, NULL);
}
