/* test_batch_fields.c - named tensors of samples in batches: shapes, padding, packing, slices of
 * ranks, and the same for any order of reading. */
#include "support/unit.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "d9d/base/fs.h"
#include "d9d/base/json.h"
#include "d9d/data/build/shard.h"
#include "d9d/data/loader/cp_slice.h"
#include "d9d/data/loader/pooling.h"

/* Document i has 2 + i % 5 tokens; the weight of its token k is i + k / 8, its kind k, its image
 * [i, i + 1], and its boxes are i % 3 rows [i, row]. */
static void write_documents(const char *path, int n)
{
    d9d_buf b = {0};

    for (int i = 0; i < n; i++) {
        const int tokens = 2 + i % 5;

        assert_ok(d9d_buf_printf(&b, "{\"input_ids\": ["));
        for (int k = 0; k < tokens; k++)
            assert_ok(d9d_buf_printf(&b, "%s%d", k ? ", " : "", 1 + i + k));
        assert_ok(d9d_buf_printf(&b, "], \"weight\": ["));
        for (int k = 0; k < tokens; k++)
            assert_ok(d9d_buf_printf(&b, "%s%g", k ? ", " : "", i + k / 8.0));
        assert_ok(d9d_buf_printf(&b, "], \"kind\": ["));
        for (int k = 0; k < tokens; k++)
            assert_ok(d9d_buf_printf(&b, "%s%d", k ? ", " : "", k));
        assert_ok(d9d_buf_printf(&b, "], \"image\": [%d, %d], \"importance\": %d, \"boxes\": [", i,
                                 i + 1, i));
        for (int k = 0; k < i % 3; k++)
            assert_ok(d9d_buf_printf(&b, "%s[%d, %d]", k ? ", " : "", i, k));
        assert_ok(d9d_buf_printf(&b, "]}\n"));
    }
    assert_ok(d9d_fs_write_atomic(path, b.data, b.len));
    d9d_buf_release(&b);
}

static d9d_dataset *made_of(const char *dir, int n, const char *padding, int64_t pack,
                            const char *split)
{
    const char *const inputs[] = {"docs.jsonl"};
    d9d_shard_report report;
    d9d_dataset *ds;
    d9d_buf b = {0};

    write_documents("docs.jsonl", n);
    assert_ok(d9d_buf_printf(
        &b,
        "{\"fields\": [{\"name\": \"weight\", \"per\": \"target\", \"pad\": 9},"
        "{\"name\": \"kind\", \"per\": \"token\", \"dtype\": \"U8\"},"
        "{\"name\": \"image\", \"shape\": [2]}, {\"name\": \"importance\"},"
        "{\"name\": \"boxes\", \"shape\": [2], \"ragged\": true, \"dtype\": \"I32\", "
        "\"padding\": \"%s\", \"pad\": -1}]}",
        padding));
    assert_ok(d9d_fs_write_atomic("fields.json", b.data, b.len));
    d9d_buf_release(&b);
    assert_ok(d9d_shard_run(&(d9d_shard_opts){.inputs = inputs,
                                              .n_inputs = 1,
                                              .out = dir,
                                              .format = D9D_SHARD_TOKENS,
                                              .fields = "fields.json",
                                              .seed = -1,
                                              .pack = pack,
                                              .split = split,
                                              .replace = true},
                            NULL, &report));
    assert_ok(d9d_dataset_open(dir, NULL, &ds));
    return ds;
}

static d9d_dataset *made(const char *dir, int n, const char *padding, int64_t pack)
{
    return made_of(dir, n, padding, pack, NULL);
}

static d9d_loader *opened(d9d_dataset *ds, d9d_loader_order order, const d9d_index_set *skip)
{
    const d9d_loader_source s = {
        .dataset = ds, .order = order, .seed = 7, .epochs = 1, .skip = skip};
    d9d_loader *l;

    assert_ok(d9d_loader_open(&s, 1, &(d9d_loader_opts){.pack = 4, .pad_to_multiple_of = 4}, &l));
    return l;
}

#define ASK(n, p, t)                                                                               \
    {                                                                                              \
        .name = (n), .per = (p), .dtype = (t), .where = "the test"                                 \
    }
static const d9d_field_request all[] = {
    ASK("weight", D9D_FIELD_PER_TARGET, D9D_F32),
    ASK("kind", D9D_FIELD_PER_TOKEN, D9D_I32),
    ASK("image", D9D_FIELD_PER_SAMPLE, D9D_F32),
    ASK("boxes", D9D_FIELD_PER_SAMPLE, D9D_I32),
    {.name = "importance",
     .per = D9D_FIELD_PER_TARGET,
     .dtype = D9D_F32,
     .elements = 1,
     .spread = true,
     .where = "the test"},
};
enum { WEIGHT, KIND, IMAGE, BOXES, IMPORTANCE, ALL };

static void check_shape(const d9d_batch_field *f, int rank, int64_t a, int64_t b, int64_t c)
{
    const int64_t want[] = {a, b, c};

    assert_int_equal(f->rank, rank);
    for (int i = 0; i < rank; i++)
        assert_int_equal(f->shape[i], want[i]);
}

/* Position p of sequence r, of document `doc` with position `at` in it; doc -1: padding. */
static void check_position(const d9d_batch *b, int64_t r, int64_t p, int64_t doc, int64_t at)
{
    const int64_t i = r * b->length + p;
    const float *weight = b->fields[WEIGHT].data, *importance = b->fields[IMPORTANCE].data;
    const int32_t *kind = b->fields[KIND].data;

    assert_float_equal(weight[i], doc < 0 ? 9 : (double)doc + (double)(at + 1) / 8, 0);
    assert_int_equal(kind[i], doc < 0 ? 0 : at);
    assert_float_equal(importance[i], doc < 0 ? 0 : (double)doc, 0);
}

static void test_unpacked(void **state)
{
    for (int left = 0; left < 2; left++) {
        d9d_dataset *ds = made("data", 40, left ? "left" : "right", 0);
        d9d_loader *l = opened(ds, D9D_LOADER_SHUFFLED, NULL);
        d9d_batch b;

        (void)state;
        assert_ok(d9d_loader_set_fields(l, all, ALL));
        assert_ok(d9d_loader_set_fields(l, all, ALL));
        for (int64_t first = 0; first < 40; first += 8) {
            int64_t most = 0;

            assert_ok(d9d_loader_batch(l, first, 8, &b));
            for (int64_t r = 0; r < 8; r++)
                most = b.refs[r].sample % 3 > most ? b.refs[r].sample % 3 : most;
            assert_int_equal(b.n_fields, ALL);
            check_shape(&b.fields[WEIGHT], 2, 8, b.length, 0);
            check_shape(&b.fields[IMAGE], 2, 8, 2, 0);
            check_shape(&b.fields[BOXES], 3, 8, most, 2);
            for (int64_t r = 0; r < 8; r++) {
                const int64_t doc = b.refs[r].sample, rows = doc % 3;
                const float *image = (const float *)b.fields[IMAGE].data + r * 2;
                const int32_t *boxes = (const int32_t *)b.fields[BOXES].data + r * most * 2;

                for (int64_t p = 0; p < b.length; p++)
                    check_position(&b, r, p, p < b.lengths[r] ? doc : -1, p);
                assert_float_equal(image[0], doc, 0);
                assert_float_equal(image[1], doc + 1, 0);
                assert_int_equal(b.fields[BOXES].rows[r], rows);
                for (int64_t k = 0; k < most; k++) {
                    const int64_t row = left ? k - (most - rows) : k;
                    const bool is = row >= 0 && row < rows;

                    assert_int_equal(boxes[k * 2], is ? doc : -1);
                    assert_int_equal(boxes[k * 2 + 1], is ? row : -1);
                }
            }
        }
        d9d_loader_close(l);
        d9d_dataset_close(ds);
    }
}

/* The number of a document is its first id less one. */
static void test_packed(void **state)
{
    d9d_dataset *ds = made("data", 60, "right", 16);
    d9d_loader *l = opened(ds, D9D_LOADER_SEQUENTIAL, NULL);
    const int64_t n = d9d_dataset_count(ds);
    d9d_batch b;

    (void)state;
    assert_ok(d9d_loader_set_fields(l, all, ALL));
    for (int64_t first = 0; first + 3 <= n; first += 3) {
        d9d_batch_document d = D9D_BATCH_DOCUMENT_NONE;
        int64_t documents = 0;

        assert_ok(d9d_loader_batch(l, first, 3, &b));
        for (; d9d_batch_next_document(&b, &d); documents++) {
            const int64_t doc = b.ids[d.seq * b.length + d.first] - 1;

            assert_float_equal(((const float *)b.fields[IMAGE].data)[documents * 2], doc, 0);
            assert_int_equal(b.fields[BOXES].rows[documents], doc % 3);
            for (int64_t p = d.first; p < d.end; p++)
                check_position(&b, d.seq, p, doc, p - d.first);
        }
        for (int64_t r = 0; r < 3; r++)
            for (int64_t p = b.lengths[r]; p < b.length; p++)
                check_position(&b, r, p, -1, 0);
        assert_int_equal(b.fields[IMAGE].shape[0], documents);
    }
    d9d_loader_close(l);
    d9d_dataset_close(ds);
}

static void test_skipped_and_whole(void **state)
{
    d9d_dataset *ds = made("data", 10, "right", 0);
    d9d_index_set skip = {0};
    d9d_loader *l;
    d9d_batch b;

    (void)state;
    assert_ok(d9d_fs_write_atomic("skip", "2\n", 2));
    assert_ok(d9d_index_set_read("skip", &skip));
    d9d_dataset_set_no_targets(ds); /* position i then has the row of token i */
    l = opened(ds, D9D_LOADER_SEQUENTIAL, &skip);
    assert_ok(d9d_loader_set_fields(l, all, ALL));
    assert_ok(d9d_loader_batch(l, 0, 4, &b));
    assert_int_equal(b.lengths[2], 0);
    check_shape(&b.fields[IMAGE], 2, 4, 2, 0);
    assert_float_equal(((const float *)b.fields[IMAGE].data)[4], 0, 0);
    assert_float_equal(((const float *)b.fields[IMAGE].data)[6], 3, 0);
    assert_int_equal(b.fields[BOXES].rows[2], 0);
    assert_float_equal(((const float *)b.fields[WEIGHT].data)[3 * b.length + 4], 3.5, 0);
    d9d_loader_close(l);
    d9d_index_set_release(&skip);
    d9d_dataset_close(ds);
}

/* Rank r of n has the fields of the positions that it has the ids of. */
static void test_slices(void **state)
{
    d9d_dataset *ds = made("data", 12, "right", 0);
    d9d_loader *l = opened(ds, D9D_LOADER_SEQUENTIAL, NULL);
    d9d_cp_slice_buffer buffer = {0};
    d9d_cp_slice part;
    d9d_batch b;

    (void)state;
    assert_ok(d9d_loader_set_fields(l, all, ALL));
    assert_ok(d9d_loader_batch(l, 0, 5, &b));
    for (int rank = 0; rank < 2; rank++) {
        assert_ok(d9d_cp_slice_make(&b, rank, 2, &buffer, &part));
        assert_int_equal(part.n_fields, ALL);
        check_shape(&part.fields[WEIGHT], 2, 5, b.length / 2, 0);
        assert_ptr_equal(part.fields[IMAGE].data, b.fields[IMAGE].data);
        for (int64_t r = 0; r < 5; r++)
            for (int64_t i = 0; i < part.length; i++) {
                const int64_t p = d9d_cp_slice_position(rank, 2, part.length, i);

                assert_float_equal(((const float *)part.fields[WEIGHT].data)[r * part.length + i],
                                   ((const float *)b.fields[WEIGHT].data)[r * b.length + p], 0);
            }
    }
    assert_ok(d9d_cp_slice_make(&b, 0, 1, &buffer, &part));
    assert_ptr_equal(part.fields, b.fields);
    d9d_cp_slice_buffer_release(&buffer);
    d9d_loader_close(l);
    d9d_dataset_close(ds);
}

static void test_refused(void **state)
{
    static const struct {
        d9d_field_request r;
        const char *text;
    } cases[] = {
        {ASK("none", D9D_FIELD_PER_SAMPLE, D9D_F32),
         "the test wants the field \"none\" of data, which has only \"weight\", \"kind\""},
        {ASK("image", D9D_FIELD_PER_TOKEN, D9D_F32), "is per sample, must be per token"},
        {ASK("boxes", D9D_FIELD_PER_TARGET, D9D_I32),
         "is per sample and ragged, must be per target"},
        {ASK("image", D9D_FIELD_PER_SAMPLE, D9D_I32), "is of F32, which is not used as I32"},
        {{.name = "image",
          .per = D9D_FIELD_PER_SAMPLE,
          .dtype = D9D_F32,
          .elements = 3,
          .where = "the test"},
         "has 2 numbers in a row, must have 3"},
    };
    d9d_dataset *ds = made("data", 6, "none", 0);
    d9d_loader *l = opened(ds, D9D_LOADER_SEQUENTIAL, NULL);
    d9d_batch b;

    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++)
        assert_fails_like(d9d_loader_set_fields(l, &cases[i].r, 1), D9D_ECONFIG, cases[i].text);
    assert_ok(d9d_loader_set_fields(l, &all[BOXES], 1));
    assert_fails_like(d9d_loader_batch(l, 0, 3, &b), D9D_ECONFIG,
                      "has from 0 to 2 rows in one batch, and its padding is \"none\"");
    assert_ok(d9d_loader_batch(l, 2, 1, &b));
    d9d_loader_close(l);
    d9d_dataset_close(ds);
}

/* What a rank without samples computes has the shapes of no documents, packed or not. */
static void test_idle(void **state)
{
    for (int packed = 0; packed < 2; packed++) {
        d9d_dataset *ds = made("data", 40, "right", packed ? 24 : 0);
        d9d_loader *l = opened(ds, D9D_LOADER_SHUFFLED, NULL);
        d9d_batch_buffer *buffer;
        d9d_batch b;

        (void)state;
        assert_ok(d9d_batch_buffer_create(&buffer));
        assert_ok(d9d_loader_set_fields(l, all, ALL));
        assert_ok(d9d_loader_fill(l, 0, 3, buffer, &b));
        assert_ok(d9d_loader_fill_idle(l, buffer, &b));
        assert_int_equal(b.seqs, 1);
        assert_int_equal(b.length, 4);
        assert_int_equal(b.lengths[0] + b.tokens + b.targets, 0);
        assert_true(b.refs[0].skipped);
        assert_int_equal(d9d_batch_count_documents(&b), !packed);
        check_shape(&b.fields[WEIGHT], 2, 1, 4, 0);
        check_shape(&b.fields[IMAGE], 2, !packed, 2, 0);
        check_shape(&b.fields[BOXES], 3, !packed, 1, 2);
        for (int64_t p = 0; p < 4; p++)
            check_position(&b, 0, p, -1, 0);
        d9d_batch_buffer_free(buffer);
        d9d_loader_close(l);
        d9d_dataset_close(ds);
    }
}

static void test_plan(void **state)
{
    d9d_dataset *ds = made("data", 6, "right", 0);
    d9d_loader *l = opened(ds, D9D_LOADER_SEQUENTIAL, NULL);
    int64_t lengths[] = {4, 4};
    d9d_batch b = {.seqs = 2, .length = 4, .lengths = lengths};
    d9d_arena a = {0};

    (void)state;
    assert_ok(d9d_loader_set_fields(l, all, ALL));
    assert_ok(d9d_batch_plan_fields(l, all, ALL, &a, &b));
    check_shape(&b.fields[WEIGHT], 2, 2, 4, 0);
    check_shape(&b.fields[BOXES], 3, 2, 2, 2);
    assert_ok(d9d_batch_plan_fields(NULL, all, ALL, &a, &b)); /* without data */
    check_shape(&b.fields[IMPORTANCE], 2, 2, 4, 0);
    assert_ptr_equal(d9d_batch_find_field(&b, "boxes"), &b.fields[BOXES]);
    assert_null(d9d_batch_find_field(&b, "box"));
    d9d_arena_release(&a);
    d9d_loader_close(l);
    d9d_dataset_close(ds);
}

static void edit_manifest(const char *path, void (*edit)(json_t *doc))
{
    json_t *doc;
    d9d_buf b = {0};

    assert_ok(d9d_json_read(path, 1 << 20, &doc));
    edit(doc);
    (void)json_object_del(doc, "xxh3");
    assert_ok(d9d_json_put(&b, doc, 2));
    assert_ok(d9d_buf_append(&b, "\n", 1));
    assert_ok(d9d_json_checksum_append(&b));
    assert_ok(d9d_fs_write_atomic(path, b.data, b.len));
    json_decref(doc);
    d9d_buf_release(&b);
}

/* The manifest as it was before it had ranges. */
static void forget_ranges(json_t *doc)
{
    json_t *field;
    size_t i;

    json_array_foreach(json_object_get(doc, "fields"), i, field)(void)
        json_object_del(field, "range");
}

/* Says that the boxes of "valid", the last field, are all 0. */
static void belittle_boxes(json_t *doc)
{
    json_t *split;
    size_t i;

    json_array_foreach(json_object_get(doc, "splits"), i, split)
    {
        json_t *ranges = json_object_get(split, "field_ranges");

        assert_int_equal(json_array_size(ranges), ALL);
        if (strcmp(json_string_value(json_object_get(split, "name")), "valid") == 0)
            assert_int_equal(json_array_set_new(ranges, ALL - 1, json_pack("[i, i]", 0, 0)), 0);
    }
}

/* Document 3 is the first that has kinds above 3, and documents 4, 8 and 9 the next. */
static void test_limits(void **state)
{
    d9d_dataset *ds = made("data", 10, "right", 0);
    d9d_field_request kind = all[KIND];
    d9d_index_set skip = {.ranges = {0}};
    d9d_loader *l = opened(ds, D9D_LOADER_SEQUENTIAL, NULL);

    (void)state;
    assert_true(d9d_dataset_fields(ds).v[KIND].range.known);
    assert_int_equal(d9d_dataset_fields(ds).v[KIND].range.max, 5);
    assert_false(d9d_dataset_fields(ds).v[IMAGE].range.known);
    kind.limit = 6;
    assert_ok(d9d_loader_set_fields(l, &kind, 1));
    assert_ok(d9d_loader_check_values(l, 0));
    kind.limit = 4;
    assert_ok(d9d_loader_set_fields(l, &kind, 1));
    assert_fails(d9d_loader_check_values(l, 0), D9D_EMISMATCH,
                 "data: sample 3 has 4 in the field \"kind\", and the test must be below 4");
    d9d_loader_close(l);
    assert_ok(d9d_index_set_read("3-4, 8-9", &skip));
    l = opened(ds, D9D_LOADER_SEQUENTIAL, &skip);
    assert_ok(d9d_loader_set_fields(l, &kind, 1));
    assert_ok(d9d_loader_check_values(l, 0));
    d9d_loader_close(l);
    d9d_index_set_release(&skip);
    d9d_dataset_close(ds);
    edit_manifest("data/manifest.json", forget_ranges);
    assert_ok(d9d_dataset_open("data", NULL, &ds));
    l = opened(ds, D9D_LOADER_SEQUENTIAL, NULL);
    assert_ok(d9d_loader_set_fields(l, &kind, 1));
    assert_ok(d9d_loader_check_values(l, 0));
    d9d_loader_close(l);
    d9d_dataset_close(ds);
}

/* The first sample is named, whichever limit it is beyond: all are looked at in one walk. */
static void test_limits_in_one_walk(void **state)
{
    d9d_dataset *ds = made("data", 10, "right", 0);
    d9d_field_request two[] = {all[KIND], all[BOXES]};
    d9d_loader *l = opened(ds, D9D_LOADER_SEQUENTIAL, NULL);

    (void)state;
    two[0].limit = 4;
    two[1].limit = 2;
    assert_ok(d9d_loader_set_fields(l, two, 2));
    assert_fails(d9d_loader_check_values(l, 0), D9D_EMISMATCH,
                 "data: sample 2 has 2 in the field \"boxes\", and the test must be below 2");
    two[1].limit = 8; /* the first beyond it is sample 8 */
    assert_ok(d9d_loader_set_fields(l, two, 2));
    assert_fails_like(d9d_loader_check_values(l, 0), D9D_EMISMATCH, "data: sample 3 has 4");
    d9d_loader_close(l);
    d9d_dataset_close(ds);
}

static d9d_status check_boxes(const char *split, int64_t limit)
{
    d9d_field_request boxes = all[BOXES];
    d9d_dataset *ds;
    d9d_loader *l;
    d9d_status st;

    boxes.limit = limit;
    assert_ok(d9d_dataset_open("data", split, &ds));
    l = opened(ds, D9D_LOADER_SEQUENTIAL, NULL);
    assert_ok(d9d_loader_set_fields(l, &boxes, 1));
    st = d9d_loader_check_values(l, 0);
    d9d_loader_close(l);
    d9d_dataset_close(ds);
    return st;
}

/* What another split has is no reason to read this one's samples. */
static void test_limits_of_splits(void **state)
{
    (void)state;
    d9d_dataset_close(made_of("data", 40, "right", 0, "valid=0.4"));
    assert_fails_like(check_boxes("train", 2), D9D_EMISMATCH, "in the field \"boxes\"");
    assert_fails_like(check_boxes("valid", 2), D9D_EMISMATCH, "in the field \"boxes\"");
    edit_manifest("data/manifest.json", belittle_boxes);
    assert_fails_like(check_boxes("train", 2), D9D_EMISMATCH, "in the field \"boxes\"");
    assert_ok(check_boxes("valid", 2));
    assert_fails_like(d9d_dataset_verify("data", NULL), D9D_EVERIFY,
                      "the field \"boxes\" has values outside 0 to 0");
}

static d9d_hash samples_hash(const char *dir)
{
    d9d_dataset *ds;
    d9d_hash h;

    assert_ok(d9d_dataset_open(dir, NULL, &ds));
    h = d9d_dataset_samples_hash(ds);
    d9d_dataset_close(ds);
    return h;
}

/* What tells of samples alone changes nothing; other samples, packs or padding do. */
static void test_samples_hash(void **state)
{
    d9d_dataset *ds = made("data", 10, "right", 0);
    const d9d_hash h = d9d_dataset_samples_hash(ds), manifest = d9d_dataset_hash(ds);

    (void)state;
    d9d_dataset_close(ds);
    edit_manifest("data/manifest.json", forget_ranges);
    assert_ok(d9d_dataset_open("data", NULL, &ds));
    assert_true(d9d_hash_equal(d9d_dataset_samples_hash(ds), h));
    assert_false(d9d_hash_equal(d9d_dataset_hash(ds), manifest));
    d9d_dataset_close(ds);
    d9d_dataset_close(made("same", 10, "right", 0));
    assert_true(d9d_hash_equal(samples_hash("same"), h));
    d9d_dataset_close(made("more", 11, "right", 0));
    assert_false(d9d_hash_equal(samples_hash("more"), h));
    d9d_dataset_close(made("left", 10, "left", 0));
    assert_false(d9d_hash_equal(samples_hash("left"), h));
    d9d_dataset_close(made("packed", 10, "right", 24));
    assert_false(d9d_hash_equal(samples_hash("packed"), h));
}

static void test_rows_that_are_absent(void **state)
{
    const float rows[] = {0, INFINITY, NAN, 1, -INFINITY, NAN};

    (void)state;
    assert_true(d9d_field_row_is_present(rows, 0));
    assert_true(d9d_field_row_is_present(rows, 2));
    assert_false(d9d_field_row_is_present(rows, 3));
    assert_true(d9d_field_row_is_present(rows + 3, 2));
    assert_false(d9d_field_row_is_present(rows + 3, 3));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        unit_test_in_dir(test_unpacked),
        unit_test_in_dir(test_packed),
        unit_test_in_dir(test_skipped_and_whole),
        unit_test_in_dir(test_slices),
        unit_test_in_dir(test_refused),
        unit_test_in_dir(test_samples_hash),
        unit_test_in_dir(test_rows_that_are_absent),
        unit_test_in_dir(test_limits),
        unit_test_in_dir(test_limits_in_one_walk),
        unit_test_in_dir(test_limits_of_splits),
        unit_test_in_dir(test_idle),
        unit_test_in_dir(test_plan),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
