/* test_pooling.c - pooling of the documents of batches, on one rank and sharded over several. */
#include "d9d/data/loader/pooling.h"

#include "support/unit.h"

enum { ROWS = 3, LENGTH = 8, TOKENS = ROWS * LENGTH };

static const int64_t lengths[ROWS] = {8, 3, 0};
static int32_t labels[TOKENS];

static d9d_batch batch(void)
{
    for (int i = 0; i < TOKENS; i++)
        labels[i] = -100;
    labels[7] = 2;
    labels[LENGTH] = 5; /* the last label of row 1 is at its second position */
    labels[LENGTH + 1] = 1;
    return (d9d_batch){.seqs = ROWS, .length = LENGTH, .labels = labels, .lengths = lengths};
}

/* Adds to y [documents] what a rank pools of x[position] = position + 1. */
static void add(const d9d_batch *b, d9d_pooling pooling, int cp, int cps, int tp, int tps,
                double *y)
{
    const d9d_pooling_opts opts = {pooling, cp, cps, tp, tps, false, 0};
    const int64_t local_length = b->length / cps, size = b->length / (2 * cps);
    d9d_pooling_buffer buffer = {0};
    d9d_pooling_index h;

    assert_ok(d9d_batch_pooling_index(b, &opts, &buffer, &h));
    assert_int_equal(h.tokens, b->seqs * local_length / tps);
    assert_int_equal(h.n, h.documents * cps * tps);
    for (int64_t n = 0; n < h.n; n++)
        for (int64_t j = 0; j < h.k; j++) {
            const int32_t t = h.token[n * h.k + j];
            const int64_t token = t + tp * h.tokens, at = token % local_length;
            int64_t position = at;

            if (t < 0) {
                assert_true(h.share[n * h.k + j] == 0);
                continue;
            }
            assert_true(n < h.documents);
            assert_int_equal(h.owner[t], n);
            assert_true(h.owner_share[t] == h.share[n * h.k + j]);
            if (cps > 1)
                position = at < size ? cp * size + at : (2 * cps - 1 - cp) * size + at - size;
            y[n] += (double)h.share[n * h.k + j] *
                    (double)(token / local_length * b->length + position + 1);
        }
    for (int64_t n = 0; n < h.documents; n++)
        assert_int_equal(h.labels[n], cp + tp > 0 ? -100 : n == 0 ? 2 : n == 1 ? 1 : -100);
    d9d_pooling_buffer_release(&buffer);
}

static void rows_are_documents_on_any_ranks(void **state)
{
    static const struct {
        d9d_pooling pooling;
        double y[ROWS];
    } want[] = {{D9D_POOLING_LAST, {8, 11, 0}},
                {D9D_POOLING_MEAN, {4.5, 10, 0}},
                {D9D_POOLING_FIRST, {1, 9, 0}}};
    static const int ranks[][2] = {{1, 1}, {2, 1}, {1, 2}, {4, 1}, {2, 3}, {1, 4}};
    const d9d_batch b = batch();

    (void)state;
    for (size_t i = 0; i < 3; i++)
        for (size_t r = 0; r < sizeof(ranks) / sizeof(ranks[0]); r++) {
            double y[ROWS] = {0};

            for (int k = 0; k < ranks[r][0] * ranks[r][1]; k++)
                add(&b, want[i].pooling, k % ranks[r][0], ranks[r][0], k / ranks[r][0], ranks[r][1],
                    y);
            for (int n = 0; n < ROWS; n++)
                assert_float_equal(y[n], want[i].y[n], 1e-6);
        }
}

static void packed_rows_have_several_and_padding_is_none(void **state)
{
    static const int32_t bounds[] = {0, 5, 8, 10, 11, 16, 24};
    const d9d_pooling_opts opts = {D9D_POOLING_LAST, 0, 1, 0, 1, false, 0};
    d9d_batch b = batch();
    d9d_pooling_buffer buffer = {0};
    d9d_pooling_index h;

    (void)state;
    b.cu_seqlens = bounds;
    b.documents = 6;
    assert_ok(d9d_batch_pooling_index(&b, &opts, &buffer, &h));
    assert_int_equal(h.documents, 4); /* [0, 5) [5, 8) | [8, 10) [10, 11) and padding | padding */
    assert_int_equal(h.token[0], 4);
    assert_int_equal(h.token[1], 7);
    assert_int_equal(h.token[2], 9);
    assert_int_equal(h.token[3], 10);
    assert_int_equal(h.labels[0], -100);
    assert_int_equal(h.labels[1], 2);
    assert_int_equal(h.labels[2], 1);
    assert_int_equal(d9d_batch_count_classes(&b), 2);
    d9d_pooling_buffer_release(&buffer);
}

static void classes_are_counted_and_checked(void **state)
{
    const d9d_batch b = batch();

    (void)state;
    assert_int_equal(d9d_batch_count_classes(&b), 2);
    assert_ok(d9d_batch_check_classes(&b, 3));
    assert_fails(d9d_batch_check_classes(&b, 2), D9D_EMISMATCH,
                 "sample 0: its class is 2, and there are 2; classes are counted from 0, and "
                 "d9d-shard --label-key makes samples that have one");
}

static void pairs_lie_apart_and_a_lone_one_last(void **state)
{
    static const int64_t five[] = {1, 1, 1, 0, 1};
    static const d9d_sample_ref draws[] = {
        {.sample = 4}, {.sample = 5}, {.sample = 6}, {.sample = 7}};
    static const d9d_sample_ref mixed[] = {
        {.sample = 4}, {.sample = 5}, {.sample = 7}, {.sample = 8}};
    const d9d_pooling_opts opts = {D9D_POOLING_LAST, 0, 1, 0, 1, true, 0};
    static int32_t none[5] = {-100, -100, -100, -100, -100};
    d9d_batch b = {.seqs = 5, .length = 1, .labels = none, .lengths = five};
    d9d_pooling_buffer buffer = {0};
    d9d_pooling_index h;

    (void)state;
    assert_ok(d9d_batch_pooling_index(&b, &opts, &buffer, &h));
    assert_int_equal(h.n_labels, 2);
    assert_int_equal(h.labels[0], 0);
    assert_int_equal(h.labels[1], -100); /* its second text is empty */
    for (int i = 0; i < 5; i++) {
        static const int32_t from[] = {0, 2, 1, -1, 4};

        assert_int_equal(h.token[i], from[i]);
    }
    assert_int_equal(d9d_batch_count_pairs(&b), 1);
    d9d_pooling_buffer_release(&buffer);
    b.seqs = 4;
    b.refs = draws;
    assert_ok(d9d_batch_check_pairs(&b));
    b.refs = mixed;
    assert_fails(
        d9d_batch_check_pairs(&b), D9D_ECONFIG,
        "samples 7 and 8 stand side by side and are no pair, 2k and 2k + 1; data.order must "
        "be sequential, and the batches even");
}

static void refuses_what_does_not_divide(void **state)
{
    const d9d_pooling_opts cp = {D9D_POOLING_LAST, 0, 3, 0, 1, false, 0},
                           tp = {D9D_POOLING_LAST, 0, 1, 0, 5, false, 0};
    const d9d_batch b = batch();
    d9d_pooling_buffer buffer = {0};
    d9d_pooling_index h;

    (void)state;
    assert_fails(d9d_batch_pooling_index(&b, &cp, &buffer, &h), D9D_EINVAL,
                 "pool: 3 rows of 8 positions do not divide over 3 x 1 ranks");
    assert_fails(d9d_batch_pooling_index(&b, &tp, &buffer, &h), D9D_EINVAL,
                 "pool: 3 rows of 8 positions do not divide over 1 x 5 ranks");
    d9d_pooling_buffer_release(&buffer);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rows_are_documents_on_any_ranks),
        cmocka_unit_test(packed_rows_have_several_and_padding_is_none),
        cmocka_unit_test(classes_are_counted_and_checked),
        cmocka_unit_test(pairs_lie_apart_and_a_lone_one_last),
        cmocka_unit_test(refuses_what_does_not_divide),
    };

    return cmocka_run_group_tests_name("pooling", tests, NULL, NULL);
}
