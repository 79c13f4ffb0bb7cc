/* test_document_index.c - the documents of a micro-batch, in records of answers; their losses. */
#include "engine/document_index.h"
#include "engine/loss_attribution.h"
#include "tasks/tasks.h"

#include "support/unit.h"
#include "support/unit_device.h"

enum { ROWS = 3, LENGTH = 8, TOKENS = ROWS * LENGTH };

static const int64_t lengths[ROWS] = {7, 4, 0};
static const int32_t bounds[] = {0, 3, 5, 6, 7, 8, 10, 12, 16, 24};
static const d9d_sample_ref refs[ROWS] = {{0, false, 3}, {0, false, 4}, {0, true, 5}};
static int32_t labels[TOKENS];
static d9d_device *dev;

/* Documents of 3, 2, 1, 1 and 1 of padding; of 2 and 2, and padding; and a skipped row.  Targets: 2
 * of the first, 1 of the second, 1 of the sixth. */
static d9d_batch batch(void)
{
    for (int i = 0; i < TOKENS; i++)
        labels[i] = i == 1 || i == 2 || i == 4 || i == 11 ? 7 : -100;
    return (d9d_batch){.seqs = ROWS,
                       .length = LENGTH,
                       .labels = labels,
                       .lengths = lengths,
                       .refs = refs,
                       .documents = 9,
                       .cu_seqlens = bounds};
}

static void ints_are(const d9d_tensor *t, const int32_t *want, int64_t n)
{
    const int32_t *got = d9d_tensor_data(t);

    assert_int_equal(d9d_tensor_numel(t), n);
    for (int64_t i = 0; i < n; i++)
        assert_int_equal(got[i], want[i]);
}

static void floats_are(const d9d_tensor *t, const float *want, int64_t n)
{
    const float *got = d9d_tensor_data(t);

    assert_int_equal(d9d_tensor_numel(t), n);
    for (int64_t i = 0; i < n; i++)
        assert_true(got[i] == want[i]);
}

static void pairs_need_both(void **state)
{
    const d9d_batch b = batch();
    d9d_op_document_index x;

    (void)state;
    assert_ok(d9di_document_index_make(dev, &b, 2, true, &x));
    ints_are(&x.offset, (const int32_t[]){0, 3, 5, 6, 8, 10, TOKENS}, 7);
    floats_are(&x.targets, (const float[]){2, 1, 1, 1, 1, 1}, 6);
    floats_are(&x.counts, (const float[]){1, 1, 0, 0, 0, 1}, 6);
    floats_are(&x.records, (const float[]){1, 0, 0}, 3);
    ints_are(&x.labels, (const int32_t[]){0, -100, -100}, 3);
    d9d_op_document_index_release(&x);
    assert_int_equal(d9di_answers_count(&b, D9D_TASK_ANSWERS_PAIRS, -1), 1);
    assert_int_equal(d9di_answers_count(&b, D9D_TASK_ANSWERS_PAIRS, 1), 0);
    assert_ok(d9di_answers_check(&b, 2));
}

static void another_rank_counts_none(void **state)
{
    const d9d_batch b = batch();
    d9d_op_document_index x;

    (void)state;
    assert_ok(d9di_document_index_make(dev, &b, 2, false, &x));
    floats_are(&x.counts, (const float[]){0, 0, 0, 0, 0, 0}, 6);
    floats_are(&x.records, (const float[]){0, 0, 0}, 3);
    d9d_op_document_index_release(&x);
}

/* The second row lacks half a record: the check says so, and the index ends with absent ones. */
static void single_answers_need_one(void **state)
{
    const d9d_batch b = batch();
    d9d_op_document_index x;

    (void)state;
    assert_ok(d9di_document_index_make(dev, &b, 4, true, &x));
    ints_are(&x.offset, (const int32_t[]){0, 3, 5, 6, 8, 10, TOKENS, TOKENS, TOKENS}, 9);
    floats_are(&x.records, (const float[]){2, 1}, 2);
    ints_are(&x.labels, (const int32_t[]){0, 1}, 2);
    d9d_op_document_index_release(&x);
    assert_int_equal(d9di_answers_check(&b, 4), D9D_EMISMATCH);
    assert_string_equal(d9d_err_message(),
                        "sample 4 has 2 documents, and each record has 4: its dataset is not of "
                        "d9d-shard --format preference");
}

static void a_batch_of_skipped_rows_has_an_empty_record(void **state)
{
    static const int64_t none[ROWS] = {0, 0, 0};
    d9di_loss_attribution_documents list = {0};
    d9d_batch b = batch();
    d9d_op_document_index x;

    (void)state;
    b.lengths = none;
    assert_ok(d9di_document_index_make(dev, &b, 2, true, &x));
    ints_are(&x.offset, (const int32_t[]){TOKENS, TOKENS, TOKENS}, 3);
    floats_are(&x.records, (const float[]){0}, 1);
    d9d_op_document_index_release(&x);
    assert_ok(d9di_loss_attribution_records_list(&b, 2, &list));
    assert_int_equal(list.losses, 1);
    assert_int_equal(list.items.len, 0);
    d9di_loss_attribution_documents_release(&list);
}

static void a_record_has_one_loss(void **state)
{
    const d9d_batch b = batch();
    d9di_loss_attribution_documents list = {0};

    (void)state;
    assert_ok(d9di_loss_attribution_records_list(&b, 2, &list));
    assert_int_equal(list.losses, 3);
    assert_int_equal(list.items.len, 1);
    assert_int_equal(list.items.data[0].info.sample, 3);
    d9di_loss_attribution_documents_release(&list);
}

static int open_device(void **state)
{
    (void)state;
    return d9d_device_open("cpu", &dev) == D9D_OK ? 0 : -1;
}

static int close_device(void **state)
{
    (void)state;
    d9d_device_close(dev);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(pairs_need_both),
        cmocka_unit_test(another_rank_counts_none),
        cmocka_unit_test(single_answers_need_one),
        cmocka_unit_test(a_batch_of_skipped_rows_has_an_empty_record),
        cmocka_unit_test(a_record_has_one_loss),
    };

    return cmocka_run_group_tests_name("document_index", tests, open_device, close_device);
}
