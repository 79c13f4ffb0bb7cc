/* test_dataset_damage.c - thousands of damaged datasets: opening and reading them never crashes,
 * and verifying finds every one.  D9D_LONG makes it 12000. */
#include "support/unit.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "d9d/base/fs.h"
#include "d9d/base/rng.h"
#include "d9d/data/build/shard.h"
#include "d9d/data/loader/loader.h"

enum { MUTATIONS = 480, MANY = 12000, DOCUMENTS = 60 };

static const d9d_rng rng = {23, 0};

/* Documents with labels, packed, in several shards and splits. */
static void make(void)
{
    static const char *const inputs[] = {"docs.jsonl"};
    static const d9d_shard_opts opts = {.inputs = inputs,
                                        .n_inputs = 1,
                                        .out = "data",
                                        .format = D9D_SHARD_TOKENS,
                                        .pack = 24,
                                        .seed = 1,
                                        .split = "train=0.8,valid=0.2",
                                        .shard_bytes = 1024,
                                        .replace = true};
    d9d_shard_report report;
    d9d_buf b = {0};

    for (int i = 0; i < DOCUMENTS; i++) {
        const int n = 2 + i % 11;

        for (int part = 0; part < 2; part++) {
            assert_ok(d9d_buf_printf(&b, part ? "], \"labels\": [-100" : "{\"input_ids\": [%d", i));
            for (int j = 1; j < n; j++)
                assert_ok(d9d_buf_printf(&b, ", %d", i * 7 + j));
        }
        assert_ok(d9d_buf_printf(&b, "]}\n"));
    }
    assert_ok(d9d_fs_write_atomic("docs.jsonl", b.data, b.len));
    d9d_buf_release(&b);
    assert_ok(d9d_shard_run(&opts, NULL, &report));
}

/* Reads everything as training does; the test is that it returns. */
static void load_all(const char *split)
{
    d9d_dataset *ds = NULL;
    d9d_loader *l = NULL;

    if (d9d_dataset_open("data", split, &ds) == D9D_OK &&
        d9d_loader_open(&(d9d_loader_source){ds, D9D_LOADER_BUCKETED, 1, 1, 0, NULL}, 1,
                        &(d9d_loader_opts){2, 8}, &l) == D9D_OK) {
        const int64_t vocab = d9d_dataset_vocab(ds);

        for (int64_t k = 0; k < d9d_loader_samples(l); k++) {
            d9d_batch b;

            if (d9d_loader_batch(l, k, 1, &b) != D9D_OK) {
                assert_true(d9d_err_message()[0] != '\0');
                continue;
            }
            for (int64_t i = 0; i < b.seqs * b.length; i++) {
                assert_in_range(b.ids[i], 0, vocab - 1);
                assert_true(b.labels[i] == -100 || (b.labels[i] >= 0 && b.labels[i] < vocab));
            }
        }
    }
    d9d_loader_close(l);
    d9d_dataset_close(ds);
}

static uint64_t draw(uint64_t i, uint64_t what, uint64_t below)
{
    return below ? d9d_rng_below(rng, 64 * i + 8 * what, below) : 0;
}

/* Applies damage i to the bytes of a file; always changes something. */
static void damage(uint64_t i, d9d_buf *b)
{
    const size_t at = draw(i, 1, b->len), n = 1 + draw(i, 2, b->len - at < 64 ? b->len - at : 64);
    const size_t from = draw(i, 3, b->len - n + 1);
    char old[64];

    memcpy(old, b->data + at, n);
    switch (draw(i, 4, 7)) {
    case 0: b->data[at] ^= (char)(1 << draw(i, 5, 8)); return;
    case 1: b->data[at] = (char)(b->data[at] + 1 + (char)draw(i, 5, 254)); return;
    case 2: memset(b->data + at, 0, n); break;
    case 3: memset(b->data + at, 0xff, n); break;
    case 4: memmove(b->data + at, b->data + from, n); break;
    case 5: b->len = at; return;
    default: assert_ok(d9d_buf_append(b, old, n)); return;
    }
    if (memcmp(old, b->data + at, n) == 0)
        b->data[at] ^= 1;
}

/* In place, since syncing thousands of files takes minutes. */
static void put(const char *path, const d9d_buf *b)
{
    FILE *f = fopen(path, "wb");

    assert_non_null(f);
    assert_int_equal(fwrite(b->data ? b->data : "", 1, b->len, f), b->len);
    assert_int_equal(fclose(f), 0);
}

static void check_one(uint64_t i, const char *path, const d9d_buf *good)
{
    d9d_buf bad = {0};

    assert_ok(d9d_buf_append(&bad, good->data, good->len));
    damage(i, &bad);
    put(path, &bad);
    load_all(i % 2 ? "train" : "valid");
    if (d9d_dataset_verify("data", NULL) == D9D_OK || d9d_err_message()[0] == '\0')
        fail_msg("damage %llu of %s is not found", (unsigned long long)i, path);
    d9d_buf_release(&bad);
}

static void test_damage(void **state)
{
    static const char *const files[] = {"manifest.json",    "index.lmdb",       "tokens-00000.bin",
                                        "tokens-00001.bin", "labels-00000.bin", "labels-00001.bin"};
    const uint64_t total = unit_is_long() ? MANY : MUTATIONS, each = total / 6;

    (void)state;
    make();
    assert_ok(d9d_dataset_verify("data", NULL));
    for (size_t f = 0; f < 6; f++) {
        d9d_buf good = {0};
        char path[64];

        snprintf(path, sizeof(path), "data/%s", files[f]);
        assert_ok(d9d_fs_read(path, 1 << 24, &good));
        for (uint64_t i = 0; i < each; i++)
            check_one(f * each + i, path, &good);
        put(path, &good);
        d9d_buf_release(&good);
    }
    assert_ok(d9d_dataset_verify("data", NULL));
}

int main(void)
{
    const struct CMUnitTest tests[] = {unit_test_in_dir(test_damage)};

    return cmocka_run_group_tests(tests, NULL, NULL);
}
