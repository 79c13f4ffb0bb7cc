/* test_dataset.c - datasets made of given ids: samples, packing, and messages about damage. */
#include "support/unit.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "d9d/base/fs.h"
#include "d9d/base/json.h"
#include "d9d/base/rng.h"
#include "d9d/data/build/shard.h"
#include "d9d/data/loader/loader.h"
#include "data/build/assemble.h"
#include "data/dataset/dataset_manifest.h"

/* Documents 0 to n - 1; document i has 2 + i % 7 tokens, the first of which is i. */
static void write_documents(const char *path, int n, bool labels)
{
    d9d_buf b = {0};

    for (int i = 0; i < n; i++) {
        assert_ok(d9d_buf_printf(&b, "{\"input_ids\": [%d", i));
        for (int j = 1; j < 2 + i % 7; j++)
            assert_ok(d9d_buf_printf(&b, ", %d", 1000 + j));
        if (labels) {
            assert_ok(d9d_buf_printf(&b, "], \"labels\": [-100"));
            for (int j = 1; j < 2 + i % 7; j++)
                assert_ok(d9d_buf_printf(&b, ", %d", j));
        }
        assert_ok(d9d_buf_printf(&b, "]}\n"));
    }
    assert_ok(d9d_fs_write_atomic(path, b.data, b.len));
    d9d_buf_release(&b);
}

static d9d_status make(d9d_shard_opts opts)
{
    static const char *const inputs[] = {"docs.jsonl"};
    d9d_shard_report report;

    opts.inputs = inputs;
    opts.n_inputs = 1;
    opts.out = "data";
    opts.format = D9D_SHARD_TOKENS;
    opts.replace = true;
    return d9d_shard_run(&opts, NULL, &report);
}

static d9d_dataset *made(d9d_shard_opts opts, const char *split)
{
    d9d_dataset *ds;

    assert_ok(make(opts));
    assert_ok(d9d_dataset_verify("data", NULL));
    assert_ok(d9d_dataset_open("data", split, &ds));
    return ds;
}

static void test_samples(void **state)
{
    int32_t ids[8], labels[8], positions[8], segments[8];
    d9d_dataset *ds;
    d9d_sample s;

    (void)state;
    write_documents("docs.jsonl", 100, false);
    ds = made((d9d_shard_opts){.seed = -1, .shard_bytes = 64}, NULL);
    assert_int_equal(d9d_dataset_count(ds), 100);
    assert_int_equal(d9d_dataset_max_length(ds), 7);
    assert_ok(d9d_dataset_sample(ds, 10, &s));
    assert_int_equal(s.length, 4);
    assert_ok(d9d_sample_expand(ds, &s, ids, labels, positions, segments));
    assert_int_equal(ids[0], 10);
    assert_int_equal(ids[3], 1003);
    assert_int_equal(labels[0], 1001);
    assert_int_equal(labels[3], 1004);
    assert_int_equal(positions[3], 3);
    assert_int_equal(segments[3], 1);
    assert_fails_like(d9d_dataset_sample(ds, 100, &s), D9D_ECONFIG, "sample 100 of the split");
    d9d_dataset_close(ds);
}

static void test_labels(void **state)
{
    int32_t ids[8], labels[8], positions[8];
    d9d_dataset *ds;
    d9d_sample s;

    (void)state;
    write_documents("docs.jsonl", 20, true);
    ds = made((d9d_shard_opts){.seed = -1, .max_length = 3}, NULL);
    assert_ok(d9d_dataset_sample(ds, 2, &s)); /* document 1 again has 3 tokens */
    assert_ok(d9d_sample_expand(ds, &s, ids, labels, positions, NULL));
    assert_int_equal(s.length, 3);
    assert_int_equal(ids[0], 2);
    assert_int_equal(labels[0], -100);
    assert_int_equal(labels[2], 2);
    d9d_dataset_close(ds);
}

/* Documents have 1 to 7 positions; samples at most 2. */
static void test_overflow(void **state)
{
    static const struct {
        d9d_shard_overflow overflow;
        int64_t samples, positions; /* over seven documents */
    } cases[] = {{D9D_SHARD_OVERFLOW_SPLIT, 1 + 1 + 2 + 2 + 3 + 3 + 4, 28},
                 {D9D_SHARD_OVERFLOW_TRUNCATE, 7, 1 + 6 * 2},
                 {D9D_SHARD_OVERFLOW_DROP, 2, 1 + 2}};

    (void)state;
    write_documents("docs.jsonl", 21, false);
    for (size_t i = 0; i < 3; i++) {
        d9d_dataset *ds = made(
            (d9d_shard_opts){.seed = -1, .max_length = 2, .overflow = cases[i].overflow}, NULL);

        assert_int_equal(d9d_dataset_count(ds), 3 * cases[i].samples);
        assert_int_equal(d9d_dataset_positions(ds), 3 * cases[i].positions);
        d9d_dataset_close(ds);
    }
}

static void test_packs(void **state)
{
    const int64_t n = 500;
    int64_t length = 0, documents = 0;
    d9d_loader *l;
    d9d_dataset *ds;
    d9d_batch b;

    (void)state;
    write_documents("docs.jsonl", (int)n, false);
    ds = made((d9d_shard_opts){.seed = 3, .pack = 16}, NULL);
    assert_true(d9d_dataset_is_packed(ds));
    assert_ok(d9d_loader_open(&(d9d_loader_source){.dataset = ds, .epochs = 1}, 1,
                              &(d9d_loader_opts){.pad_to_multiple_of = 8}, &l));
    for (int64_t k = 0; k < d9d_dataset_count(ds); k++) {
        assert_ok(d9d_loader_batch(l, k, 1, &b));
        assert_int_equal(b.length, 16);
        length += b.tokens;
        /* Positions restart at 0 in each document; padding is one more document. */
        assert_int_equal(b.cu_seqlens[0], 0);
        assert_int_equal(b.cu_seqlens[b.documents], 16);
        for (int64_t d = 0; d < b.documents; d++) {
            assert_true(b.cu_seqlens[d] < b.cu_seqlens[d + 1]);
            documents += b.cu_seqlens[d] < b.tokens;
            for (int64_t i = b.cu_seqlens[d]; i < b.cu_seqlens[d + 1] && i < b.tokens; i++)
                assert_int_equal(b.positions[i], i - b.cu_seqlens[d]);
        }
    }
    assert_int_equal(documents, n);
    assert_int_equal(length, d9d_dataset_positions(ds));
    /* Best fit packs well: on average 15 of 16 positions are used. */
    assert_true(length * 16 >= d9d_dataset_count(ds) * 16 * 15);
    d9d_loader_close(l);
    d9d_dataset_close(ds);
}

/* Concatenated: every sample but the last is full, no target is lost, and no document attends to
 * another. */
static void test_concat(void **state)
{
    int64_t whole = 0, positions = 0;
    d9d_dataset *ds;

    (void)state;
    write_documents("docs.jsonl", 500, false);
    for (int i = 0; i < 500; i++)
        whole += 1 + i % 7;
    ds = made((d9d_shard_opts){.seed = -1, .pack = 16, .pack_mode = D9D_SHARD_PACK_CONCAT}, NULL);
    assert_int_equal(d9d_dataset_positions(ds), whole);
    assert_int_equal(d9d_dataset_count(ds), (whole + 15) / 16);
    for (int64_t k = 0; k < d9d_dataset_count(ds); k++) {
        int32_t ids[16], labels[16], at[16], segments[16];
        d9d_sample s;

        assert_ok(d9d_dataset_sample(ds, k, &s));
        assert_true(s.length == 16 || k == d9d_dataset_count(ds) - 1);
        assert_ok(d9d_sample_expand(ds, &s, ids, labels, at, segments));
        for (int64_t i = 0; i < s.length; i++) {
            const bool goes_on = i + 1 < s.length && segments[i + 1] == segments[i];

            assert_true(labels[i] >= 1000); /* the first id of a document is not a target */
            assert_true(!goes_on || (ids[i + 1] == labels[i] && at[i + 1] == at[i] + 1));
            assert_true(goes_on || i + 1 == s.length || at[i + 1] == 0);
        }
        positions += s.length;
    }
    assert_int_equal(positions, whole);
    d9d_dataset_close(ds);
}

/* A window does not depend on later documents; samples are in the order of their first
 * documents. */
static void test_windows(void **state)
{
    int32_t before = -1;
    d9d_dataset *ds;

    (void)state;
    write_documents("docs.jsonl", 1000, false);
    ds = made((d9d_shard_opts){.seed = -1, .pack = 16, .pack_window = 100}, NULL);
    /* 400 positions per window: 25 full samples at best. */
    assert_in_range(d9d_dataset_count(ds), 250, 260);
    for (int64_t k = 0; k < d9d_dataset_count(ds); k++) {
        int32_t ids[16], labels[16], at[16];
        d9d_sample s;

        assert_ok(d9d_dataset_sample(ds, k, &s));
        assert_ok(d9d_sample_expand(ds, &s, ids, labels, at, NULL));
        assert_true(ids[0] > before);
        before = ids[0];
        for (int64_t i = 0; i < s.length; i++)
            assert_true(ids[i] >= 1000 || ids[i] / 100 == ids[0] / 100);
    }
    d9d_dataset_close(ds);
}

static void test_splits(void **state)
{
    bool seen[300] = {false};
    int64_t total = 0;

    (void)state;
    write_documents("docs.jsonl", 300, false);
    for (int i = 0; i < 2; i++) {
        d9d_dataset *ds = made((d9d_shard_opts){.seed = 5, .split = "train=0.8,valid=0.2"},
                               i ? "valid" : "train");

        total += d9d_dataset_count(ds);
        for (int64_t k = 0; k < d9d_dataset_count(ds); k++) {
            int32_t ids[8], labels[8], positions[8];
            d9d_sample s;

            assert_ok(d9d_dataset_sample(ds, k, &s));
            assert_ok(d9d_sample_expand(ds, &s, ids, labels, positions, NULL));
            assert_false(seen[ids[0]]);
            seen[ids[0]] = true;
        }
        assert_in_range(d9d_dataset_count(ds), i ? 40 : 200, i ? 100 : 260);
        d9d_dataset_close(ds);
    }
    assert_int_equal(total, 300);
}

/* Number of samples of the split, -1 if there is none; each is checked by its number. */
static int64_t count_split(const char *name, int *seen)
{
    d9d_dataset *ds;
    int64_t n;

    if (d9d_dataset_open("data", name, &ds) != D9D_OK)
        return -1;
    n = d9d_dataset_count(ds);
    for (int64_t k = 0; k < n; k++) {
        int32_t ids[8], labels[8], positions[8];
        d9d_sample s;

        assert_ok(d9d_dataset_sample(ds, k, &s));
        assert_ok(d9d_sample_expand(ds, &s, ids, labels, positions, NULL));
        seen[ids[0]]++;
    }
    d9d_dataset_close(ds);
    return n;
}

static void test_split_sizes(void **state)
{
    static const struct {
        const char *split;
        int64_t n[4]; /* samples of a, b, train, rest; -2: any */
    } cases[] = {
        {"b=20", {-1, 20, 280, -1}},
        {"a=299", {299, -1, 1, -1}},
        {"a=300", {300, -1, -1, -1}},
        {"train=50,b=7", {-1, 7, 50, 243}},
        {"b=150,train=100,a=50", {50, 150, 100, -1}},
        {"train=1,b=2", {-1, 2, 298, -1}},
        {"a=40,train=0.5,b=0.5", {40, -2, -2, -1}},
    };
    static const char *const names[] = {"a", "b", "train", "rest"};

    (void)state;
    write_documents("docs.jsonl", 300, false);
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        int seen[300] = {0};

        d9d_dataset_close(made((d9d_shard_opts){.seed = -1, .split = cases[i].split}, NULL));
        for (int k = 0; k < 4; k++) {
            const int64_t n = count_split(names[k], seen);

            if (cases[i].n[k] == -2)
                assert_in_range(n, 90, 170);
            else
                assert_int_equal(n, cases[i].n[k]);
        }
        for (int k = 0; k < 300; k++)
            assert_int_equal(seen[k], 1);
    }
    assert_fails_like(make((d9d_shard_opts){.seed = 5, .split = "a=200,b=101"}), D9D_EFORMAT,
                      "the splits are to have 301 samples, there are 300");
    assert_false(d9d_fs_exists("data.partial"));
}

/* --- damage ----------------------------------------------------------------------------------- */

static void put_file(const char *path, const d9d_buf *text)
{
    assert_ok(d9d_fs_write_atomic(path, text->data, text->len));
}

/* Truncation of files smaller than a page raises no signal.  A new file of the same name is not the
 * opened one. */
static void test_cut(void **state)
{
    static const char *const files[] = {"data/tokens-00000.bin", "data/labels-00000.bin"};
    int32_t ids[8], labels[8], positions[8];
    d9d_dataset *ds;
    d9d_sample s;

    (void)state;
    write_documents("docs.jsonl", 20, true);
    for (size_t i = 0; i < 2; i++) {
        ds = made((d9d_shard_opts){.seed = -1}, NULL);
        assert_int_equal(rename(files[i], "kept"), 0);
        assert_ok(d9d_fs_copy("kept", files[i]));
        assert_int_equal(truncate(files[i], 20), 0);
        assert_ok(d9d_dataset_sample(ds, 15, &s));
        assert_ok(d9d_sample_expand(ds, &s, ids, labels, positions, NULL));
        assert_int_equal(rename("kept", files[i]), 0);
        assert_ok(d9d_sample_expand(ds, &s, ids, labels, positions, NULL));
        assert_int_equal(truncate(files[i], 20), 0);
        assert_fails_like(d9d_sample_expand(ds, &s, ids, labels, positions, NULL), D9D_EIO,
                          "-00000.bin: has 20 bytes, had ");
        d9d_dataset_close(ds);
    }
}

/* True if opening, reading everything and verifying end in an error. */
static bool is_found(void)
{
    d9d_dataset *ds = NULL;
    d9d_status st = d9d_dataset_open("data", NULL, &ds);

    d9d_dataset_close(ds);
    if (st == D9D_OK)
        st = d9d_dataset_verify("data", NULL);
    return st != D9D_OK && d9d_err_message()[0] != '\0';
}

static void test_damage(void **state)
{
    static const char *const files[] = {"data/manifest.json", "data/index.lmdb",
                                        "data/tokens-00000.bin", "data/labels-00000.bin"};
    const d9d_rng rng = {11, 0};

    (void)state;
    write_documents("docs.jsonl", 40, true);
    assert_ok(make((d9d_shard_opts){.seed = -1}));
    for (size_t f = 0; f < 4; f++) {
        d9d_buf text = {0};

        assert_ok(d9d_fs_read(files[f], 1 << 20, &text));
        for (uint64_t i = 0; i < 40; i++) {
            const size_t at = d9d_rng_below(rng, 2 * i + 1000 * f, text.len);
            const char was = text.data[at];

            text.data[at] = (char)(was ^ 1);
            put_file(files[f], &text);
            text.data[at] = was;
            if (!is_found())
                fail_msg("%s: a bit of byte %zu is not missed", files[f], at);
        }
        text.len /= 2;
        put_file(files[f], &text);
        assert_true(is_found());
        text.len *= 2;
        d9d_buf_release(&text);
        assert_ok(make((d9d_shard_opts){.seed = -1}));
    }
    assert_false(is_found());
}

/* Replaces `from`, which must exist, by `to`. */
static void put_in_place(d9d_buf *text, const char *from, const char *to)
{
    d9d_buf out = {0};
    const char *at = strstr(text->data, from);

    assert_non_null(at);
    assert_ok(d9d_buf_printf(&out, "%.*s%s%s", (int)(at - text->data), text->data, to,
                             at + strlen(from)));
    d9d_buf_release(text);
    *text = out;
}

/* Writes a manifest whose own hash is right, of a text that ends with another one. */
static void put_manifest(d9d_buf *text)
{
    text->len = (size_t)(strstr(text->data, ",\n  \"xxh3\": ") - text->data);
    assert_ok(d9d_buf_append(text, "\n}\n", 3));
    assert_ok(d9d_json_checksum_append(text));
    put_file("data/manifest.json", text);
}

/* The recipe's tokenizer is the file beside it: a manifest whose own hash agrees. */
static void test_other_tokenizer(void **state)
{
    static const char *const of_recipe[] = {"c3", "c4"};
    char hex[D9D_HASH_HEX], recipe[128], file[160];
    d9d_hash hash;
    uint64_t bytes;

    (void)state;
    write_documents("docs.jsonl", 9, false);
    for (int i = 0; i < 2; i++) {
        d9d_buf text = {0};

        assert_ok(make((d9d_shard_opts){.seed = -1}));
        assert_ok(d9d_fs_write_atomic("data/tokenizer.json", "{}", 2));
        assert_ok(d9d_hash_file("data/tokenizer.json", &hash, &bytes));
        d9d_hash_hex(hash, hex);
        snprintf(file, sizeof(file),
                 "{\"name\": \"tokenizer.json\", \"bytes\": 2, \"xxh3_128\": \"%s\"}, "
                 "{\"name\": \"tokens-00000.bin\"",
                 hex);
        if (i > 0)
            memcpy(hex, of_recipe[i], 2);
        snprintf(recipe, sizeof(recipe),
                 "\"tokenizer\": {\"file\": \"tokenizer.json\", \"xxh3_128\": \"%s\"}", hex);
        assert_ok(d9d_fs_read("data/manifest.json", 1 << 20, &text));
        assert_ok(d9d_buf_append(&text, "", 1));
        put_in_place(&text, "\"tokenizer\": null", recipe);
        put_in_place(&text, "{\n      \"name\": \"tokens-00000.bin\"", file);
        put_manifest(&text);
        if (i == 0)
            assert_ok(d9d_dataset_verify("data", NULL));
        else
            assert_fails_like(d9d_dataset_verify("data", NULL), D9D_EFORMAT,
                              "its hash is not that of tokenizer.json among the files");
        d9d_buf_release(&text);
    }
}

/* Labels are 1 to 7: of the ranges that are none, each has its sample.  -100 is in any. */
static void test_label_range(void **state)
{
    static const struct {
        const char *range, *message;
    } cases[] = {
        {"\n    1,\n    7\n  ", NULL},
        {"\n    0,\n    9\n  ", NULL},
        {"\n    2,\n    7\n  ",
         "data: sample 0: there are labels outside 2 to 7, which the manifest says"},
        {"\n    1,\n    6\n  ",
         "data: sample 6: there are labels outside 1 to 6, which the manifest says"},
    };

    (void)state;
    write_documents("docs.jsonl", 20, true);
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        d9d_buf text = {0}, range = {0};

        assert_ok(make((d9d_shard_opts){.seed = -1}));
        assert_ok(d9d_fs_read("data/manifest.json", 1 << 20, &text));
        assert_ok(d9d_buf_append(&text, "", 1));
        assert_ok(d9d_buf_printf(&range, "\"label_range\": [%s]", cases[i].range));
        put_in_place(&text, "\"label_range\": [\n    1,\n    7\n  ]", range.data);
        put_manifest(&text);
        if (cases[i].message == NULL)
            assert_ok(d9d_dataset_verify("data", NULL));
        else
            assert_fails(d9d_dataset_verify("data", NULL), D9D_EVERIFY, cases[i].message);
        d9d_buf_release(&range);
        d9d_buf_release(&text);
    }
}

/* A manifest of 0.1, which called unit_bytes part_bytes. */
static void test_former_recipe(void **state)
{
    d9d_buf text = {0}, now = {0};
    d9di_dataset_manifest m = {0};

    (void)state;
    write_documents("docs.jsonl", 9, false);
    assert_ok(make((d9d_shard_opts){.seed = -1, .unit_bytes = 4096}));
    assert_ok(d9d_fs_read("data/manifest.json", 1 << 20, &text));
    assert_ok(d9d_buf_append(&text, "", 1));
    put_in_place(&text, "\"unit_bytes\": 4096", "\"part_bytes\": 4096");
    put_manifest(&text);
    assert_ok(d9d_dataset_verify("data", NULL));
    assert_ok(d9di_dataset_manifest_parse("data", text.data, text.len, &m));
    assert_int_equal(m.recipe.unit_bytes, 4096);
    assert_ok(d9di_dataset_manifest_print(&m, &now));
    assert_non_null(strstr(now.data, "\"unit_bytes\": 4096"));
    d9di_dataset_manifest_release(&m);
    d9d_buf_release(&now);
    d9d_buf_release(&text);
}

/* Files of an unfinished build, also of 0.1. */
static void test_work_files(void **state)
{
    (void)state;
    assert_true(d9di_assemble_is_temp("assemble.candidates"));
    assert_true(d9di_assemble_is_temp("join.candidates"));
    assert_true(d9di_assemble_is_temp("unit-00000-0000.json"));
    assert_false(d9di_assemble_is_temp("tokens-00000.bin"));
}

static void test_refusals(void **state)
{
    static const struct {
        d9d_shard_opts opts;
        const char *part;
    } cases[] = {
        {{.split = "train"}, "--split: \"train\" must be NAME=SHARE"},
        {{.split = "train=1.5"}, "NAME=COUNT with a whole number"},
        {{.split = "train=1e300"}, "NAME=COUNT with a whole number"},
        {{.split = "train=10,rest=5"}, "--split: \"rest\" is given twice"},
        {{.split = "a=0.5,train=0.4"}, "add up to 0.9, must be 1"},
        {{.split = "a=0.5,b=0.6"}, "--split: the shares add up to 1.1, must be 1"},
        {{.split = "train=0.5,b=0.4,c=7"}, "add up to 0.9, must be 1"},
        {{.split = "a=0.5,a=0.5"}, "--split: \"a\" is given twice"},
        {{.split = "../x=1"}, "--split: \"../x\" is not a plain file name"},
        {{.max_length = 9, .pack = 8}, "documents of up to 9 positions do not fit packs of 8"},
        {{.append_eos = "x"}, "--append-eos needs a --tokenizer"},
        {{.add_special = D9D_SHARD_ADD_SPECIAL_YES},
         "--add-special-tokens yes: docs.jsonl: its ids are given"},
        {{.text_pair_key = "b"}, "--text-pair-key: docs.jsonl is not JSON lines of texts"},
        {{.lines = true}, "--lines is for --format text"},
    };

    (void)state;
    write_documents("docs.jsonl", 3, false);
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        const d9d_status st = make(cases[i].opts);

        assert_int_equal(d9d_status_exit_code(st), i == 3 ? d9d_status_exit_code(st) : 2);
        assert_int_not_equal(st, D9D_OK);
        unit_check_has(d9d_err_message(), cases[i].part, __FILE__, __LINE__);
    }
    assert_false(d9d_fs_exists("data"));
    assert_false(d9d_fs_exists("data.partial"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        unit_test_in_dir(test_samples),
        unit_test_in_dir(test_labels),
        unit_test_in_dir(test_overflow),
        unit_test_in_dir(test_packs),
        unit_test_in_dir(test_concat),
        unit_test_in_dir(test_windows),
        unit_test_in_dir(test_splits),
        unit_test_in_dir(test_split_sizes),
        unit_test_in_dir(test_cut),
        unit_test_in_dir(test_damage),
        unit_test_in_dir(test_other_tokenizer),
        unit_test_in_dir(test_label_range),
        unit_test_in_dir(test_former_recipe),
        cmocka_unit_test(test_work_files),
        unit_test_in_dir(test_refusals),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
