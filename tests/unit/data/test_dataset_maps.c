/* test_dataset_maps.c - datasets with more shard files than are mapped at once, and with more than
 * allowed. */
#include "support/unit.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "d9d/base/fs.h"
#include "d9d/data/build/shard.h"
#include "d9d/data/loader/loader.h"
#include "data/build/input_splits.h"
#include "data/dataset/dataset_private.h"

enum { DOCUMENTS = 40, HUGE = 66000 };

/* One document per shard, with labels or without. */
static void make(int documents, bool labels)
{
    static const char *const inputs[] = {"docs.jsonl"};
    const d9d_shard_opts opts = {.inputs = inputs,
                                 .n_inputs = 1,
                                 .out = "data",
                                 .format = D9D_SHARD_TOKENS,
                                 .replace = true,
                                 .seed = 3,
                                 .shard_bytes = 4};
    d9d_shard_report report;
    d9d_buf b = {0};

    for (int i = 0; i < documents; i++) {
        assert_ok(d9d_buf_printf(&b, "{\"input_ids\": [%d, %d, %d]", i, i + 1, i + 2));
        if (labels)
            assert_ok(d9d_buf_printf(&b, ", \"labels\": [-100, %d, %d]", i, i + 2));
        assert_ok(d9d_buf_append(&b, "}\n", 2));
    }
    assert_ok(d9d_fs_write_atomic("docs.jsonl", b.data, b.len));
    d9d_buf_release(&b);
    assert_ok(d9d_shard_run(&opts, NULL, &report));
    assert_int_equal(report.shards, documents);
}

struct expanded {
    int32_t ids[8], labels[8], positions[8];
};

static d9d_status read_expanded(d9d_dataset *ds, int64_t k, struct expanded *out)
{
    d9d_sample s;

    memset(out, 0, sizeof(*out));
    D9D_TRY(d9d_dataset_sample(ds, k, &s));
    return d9d_sample_expand(ds, &s, out->ids, out->labels, out->positions, NULL);
}

static void test_beyond(void **state)
{
    (void)state;
    for (int labels = 0; labels < 2; labels++) {
        d9d_dataset *all, *few;

        make(DOCUMENTS, labels);
        assert_ok(d9d_dataset_open("data", NULL, &all));
        for (uint32_t max_maps = 0; max_maps < 9; max_maps++) {
            assert_ok(d9di_dataset_open("data", NULL, max_maps, &few));
            assert_int_equal(few->n_maps, max_maps);
            for (int64_t k = 0; k < DOCUMENTS; k++) {
                struct expanded a, b;

                assert_ok(read_expanded(all, k, &a));
                assert_ok(read_expanded(few, k, &b));
                assert_memory_equal(&a, &b, sizeof(a));
            }
            d9d_dataset_close(few);
        }
        d9d_dataset_close(all);
    }
}

/* A file that was not mapped is checked again when it is read. */
static void test_changed(void **state)
{
    static const char name[] = "data/tokens-00007.bin";
    struct expanded c;
    d9d_dataset *ds;
    d9d_sample s;
    int64_t k = 0;

    (void)state;
    make(DOCUMENTS, false);
    assert_ok(d9di_dataset_open("data", NULL, 2, &ds));
    assert_ok(d9d_dataset_sample(ds, k, &s));
    while (s.shard != 7)
        assert_ok(d9d_dataset_sample(ds, ++k, &s));
    assert_ok(d9d_fs_copy(name, "other"));
    assert_int_equal(rename(name, "kept"), 0);
    assert_fails_like(read_expanded(ds, k, &c), D9D_ENOTFOUND, "tokens-00007.bin");
    assert_int_equal(rename("other", name), 0);
    assert_fails_like(read_expanded(ds, k, &c), D9D_EIO, "was replaced under the program");
    assert_int_equal(rename("kept", name), 0);
    assert_ok(read_expanded(ds, k, &c));
    assert_int_equal(truncate(name, 2), 0);
    assert_fails_like(read_expanded(ds, k, &c), D9D_EIO, "has 2 bytes, had ");
    d9d_dataset_close(ds);
}

/* Detected when the inputs are divided, before any is read. */
static void test_too_many(void **state)
{
    static const char *const inputs[] = {"docs.jsonl"};
    const d9d_shard_opts opts = {.inputs = inputs,
                                 .n_inputs = 1,
                                 .out = "data",
                                 .format = D9D_SHARD_TOKENS,
                                 .seed = -1,
                                 .unit_bytes = D9DI_MIN_SPLIT_BYTES};
    d9d_shard_report report;

    (void)state;
    assert_ok(d9d_fs_write_atomic("docs.jsonl", "", 0));
    assert_int_equal(truncate("docs.jsonl", (off_t)D9DI_MIN_SPLIT_BYTES * (D9DI_MAX_SHARDS + 1)),
                     0);
    assert_fails_like(d9d_shard_run(&opts, NULL, &report), D9D_ECONFIG,
                      "a larger --unit-size makes fewer");
    assert_false(d9d_fs_exists("data.partial"));
}

static void test_huge(void **state)
{
    d9d_loader *l;
    d9d_dataset *ds;
    d9d_batch b;

    (void)state;
    if (!unit_is_long())
        skip();
    make(HUGE, false);
    assert_ok(d9d_dataset_verify("data", NULL));
    assert_ok(d9d_dataset_open("data", NULL, &ds));
    assert_ok(d9d_loader_open(&(d9d_loader_source){.dataset = ds, .epochs = 1}, 1,
                              &(d9d_loader_opts){.pad_to_multiple_of = 1}, &l));
    for (int64_t k = 0; k + 8 <= HUGE; k += 8)
        assert_ok(d9d_loader_batch(l, k, 8, &b));
    d9d_loader_close(l);
    d9d_dataset_close(ds);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        unit_test_in_dir(test_beyond),
        unit_test_in_dir(test_changed),
        unit_test_in_dir(test_too_many),
        unit_test_in_dir(test_huge),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
