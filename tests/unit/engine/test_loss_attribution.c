/* test_loss_attribution.c - the documents that raise a step's loss most. */
#include "engine/loss_attribution.h"

#include "support/unit.h"
#include "support/unit_device.h"

enum { ROWS = 3, LENGTH = 6, TOKENS = ROWS * LENGTH, WANTED = 3 };

static const int64_t lengths[ROWS] = {6, 4, 0};
static const int32_t bounds[] = {0, 2, 6, 7, 10, 12, 18};
static const d9d_sample_ref draws[ROWS] = {{0, false, 70}, {1, false, 5}, {0, true, 9}};
static int32_t labels[TOKENS];
static d9d_device *dev;
static d9d_arena arena;

/* Documents | 2 | 4 |, | 1 | 3 | and a skipped row; one label of the 4 is ignored, and all of
 * the 1. */
static d9d_batch batch(void)
{
    for (int i = 0; i < TOKENS; i++)
        labels[i] = i % LENGTH < lengths[i / LENGTH] && i != 4 && i != 6 ? 1 : -100;
    return (d9d_batch){.first = 40,
                       .seqs = ROWS,
                       .length = LENGTH,
                       .labels = labels,
                       .lengths = lengths,
                       .refs = draws,
                       .documents = 6,
                       .cu_seqlens = bounds};
}

static d9di_loss_attribution opened(int64_t max)
{
    d9di_loss_attribution c = {.max_n = max, .is_reader = true, .n_groups = 1, .dev = dev};

    assert_ok(d9di_loss_attribution_open(&c, &arena));
    return c;
}

static void watch(d9di_loss_attribution *c, d9di_loss_attribution_documents *list,
                  const float *loss, int64_t n)
{
    d9d_tensor t;

    assert_ok(d9d_tensor_from_host(dev, D9D_F32, D9D_SHAPE(n), loss, &t));
    assert_ok(d9di_loss_attribution_enqueue(c, list, &t));
    d9d_tensor_release(&t);
    assert_int_equal(list->items.len, 0);
}

static void check(const d9d_track_document_loss *x, int64_t stream, int64_t sample, int32_t dataset,
                  int64_t place, int64_t targets, double sum)
{
    assert_int_equal(x->stream, stream);
    assert_int_equal(x->sample, sample);
    assert_int_equal(x->dataset, dataset);
    assert_int_equal(x->document, place);
    assert_int_equal(x->targets, targets);
    assert_float_equal(x->sum, sum, 1e-6);
}

static void the_worst_of_packed_documents_come_first(void **state)
{
    float loss[TOKENS] = {2, 2, 1, 1, 0, 1, 0, 4, 4, 4};
    const d9d_batch b = batch();
    d9di_loss_attribution c = opened(WANTED);
    d9di_loss_attribution_documents list = {0};

    (void)state;
    assert_ok(d9di_loss_attribution_documents_list(&b, false, false, &list));
    assert_int_equal(list.items.len, 3); /* a document without targets is not recorded */
    watch(&c, &list, loss, TOKENS);
    assert_ok(d9di_loss_attribution_update(&c, 1, 19.0 / 8));
    assert_int_equal(c.n_worst, 3);
    check(&c.worst[0], 41, 5, 1, 1, 3, 12);
    check(&c.worst[1], 40, 70, 0, 0, 2, 4);
    check(&c.worst[2], 40, 70, 0, 1, 3, 3);
    d9di_loss_attribution_release(&c);
}

static void a_step_of_several_batches_keeps_as_many_as_are_wanted(void **state)
{
    const float one[TOKENS] = {2, 2, 1, 1, 0, 1, 0, 4, 4, 4},
                two[TOKENS] = {9, 9, 1, 1, 0, 1, 0, 4, 4, 4};
    d9di_loss_attribution c = opened(2);
    d9di_loss_attribution_documents list = {0};
    d9d_batch b = batch();

    (void)state;
    assert_ok(d9di_loss_attribution_documents_list(&b, false, false, &list));
    watch(&c, &list, one, TOKENS);
    b.first = 43;
    assert_ok(d9di_loss_attribution_documents_list(&b, false, false, &list));
    watch(&c, &list, two, TOKENS);
    assert_ok(d9di_loss_attribution_documents_list(&b, false, false, &list)); /* of the next step */
    watch(&c, &list, one, TOKENS);
    assert_ok(d9di_loss_attribution_update(&c, 2, 3));
    assert_int_equal(c.n_worst, 2);
    check(&c.worst[0], 43, 70, 0, 0, 2, 18);
    check(&c.worst[1], 41, 5, 1, 1, 3, 12); /* of equal losses the earlier document */
    assert_ok(d9di_loss_attribution_update(&c, 1, 2));
    check(&c.worst[0], 44, 5, 1, 1, 3, 12);
    assert_int_equal(c.watched.len, 0);
    assert_ok(d9di_loss_attribution_update(&c, 0, 0));
    assert_int_equal(c.n_worst, 0);
    d9di_loss_attribution_release(&c);
}

static void wholes_have_a_loss_each_and_pairs_one_together(void **state)
{
    static const int64_t rows[] = {3, 2, 0, 4};
    static const d9d_sample_ref of[] = {{0, false, 0}, {0, false, 1}, {0, true, 2}, {0, false, 3}};
    static const int32_t classes[] = {-100, -100, 1, 0, -100, 0,    -100, -100,
                                      -100, -100, 0, 0, -100, -100, -100, -100};
    const float single[] = {0.5f, 2, 0, 0}, pair[] = {3, 0};
    const d9d_batch b = {.seqs = 4, .length = 4, .labels = classes, .lengths = rows, .refs = of};
    d9di_loss_attribution c = opened(WANTED);
    d9di_loss_attribution_documents list = {0};
    d9d_tensor t;

    (void)state;
    assert_ok(d9di_loss_attribution_documents_list(&b, true, false, &list));
    watch(&c, &list, single, 4);
    assert_ok(d9di_loss_attribution_update(&c, 1, 1.25));
    assert_int_equal(c.n_worst, 2); /* the last one has no class */
    check(&c.worst[0], 1, 1, 0, 0, 1, 2);
    check(&c.worst[1], 0, 0, 0, 0, 1, 0.5);
    assert_ok(d9di_loss_attribution_documents_list(&b, true, true, &list));
    watch(&c, &list, pair, 2);
    assert_ok(d9di_loss_attribution_update(&c, 1, 3));
    assert_int_equal(c.n_worst, 1);
    check(&c.worst[0], 0, 0, 0, 0, 1, 3);
    assert_ok(d9di_loss_attribution_documents_list(&b, true, true, &list));
    assert_ok(d9d_tensor_from_host(dev, D9D_F32, D9D_SHAPE(4), single, &t));
    assert_fails(d9di_loss_attribution_enqueue(&c, &list, &t), D9D_EINVAL,
                 "trainer.logging.documents: 4 losses of a task, for 2 positions or documents");
    d9d_tensor_release(&t);
    d9di_loss_attribution_documents_release(&list);
    d9di_loss_attribution_release(&c);
}

static int close_all(void **state)
{
    (void)state;
    d9d_device_close(dev);
    d9d_arena_release(&arena);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_worst_of_packed_documents_come_first),
        cmocka_unit_test(a_step_of_several_batches_keeps_as_many_as_are_wanted),
        cmocka_unit_test(wholes_have_a_loss_each_and_pairs_one_together),
    };

    assert_ok(d9d_device_open(unit_device_name(), &dev));
    return cmocka_run_group_tests(tests, NULL, close_all);
}
