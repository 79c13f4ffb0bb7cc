/* test_checkpointer.c - training checkpoints: boxes, commit, discovery, retention, damage. */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "checkpointer/checkpointer_private.h"
#include "support/save_ranks.h"
#include "support/unit.h"

/* --- a world: tensors whose every byte is known, a log that is kept ---------------------- */

enum { MAX_ITEMS = 8, MAX_LOG = 16384 };

typedef struct world {
    d9d_device *dev;
    d9d_arena arena;
    char text[MAX_LOG]; /* of warnings and above */
    d9d_log log;
    char *dir;
} world;

static void keep_line(void *arg, d9d_log_level level, const char *text)
{
    world *w = arg;
    const size_t len = strlen(w->text);

    if (level <= D9D_LOG_WARN)
        (void)snprintf(w->text + len, MAX_LOG - len, "%s\n", text);
}

static int world_setup(void **state)
{
    world *w = calloc(1, sizeof(*w));
    void *dir;

    if (w == NULL || unit_dir_setup(&dir) != 0 || d9d_device_open("cpu", &w->dev) != D9D_OK)
        return -1;
    w->dir = dir;
    w->log = (d9d_log){.line = keep_line, .arg = w, .level = D9D_LOG_DEBUG};
    *state = w;
    return 0;
}

static int world_teardown(void **state)
{
    world *w = *state;
    void *dir = w->dir;

    /* A test that failed has kept its tensors. */
    if (d9d_device_memory(w->dev).in_use == 0)
        d9d_device_close(w->dev);
    d9d_arena_release(&w->arena);
    free(w);
    return unit_dir_teardown(&dir);
}

#define in_world(f) cmocka_unit_test_setup_teardown(f, world_setup, world_teardown)

/* Byte `k` of element `index` of a tensor, in generation `gen`. */
static unsigned char byte_of(const char *name, int64_t index, size_t k, int gen)
{
    const uint64_t key[3] = {d9d_hash_u64(name, strlen(name)), (uint64_t)index, (uint64_t)gen};

    return (unsigned char)(d9d_hash_u64(key, sizeof(key)) >> (8 * k));
}

typedef struct item {
    const char *name, *group;
    d9d_dtype dtype;
    d9d_shape whole;
    d9d_box box;
} item;

/* Where the e-th element of the box is in the whole. */
static int64_t whole_index(const item *it, int64_t e)
{
    int64_t index[D9D_MAX_DIMS], at = 0;

    for (int d = it->box.ndim - 1; d >= 0; d--) {
        index[d] = it->box.start[d] + e % it->box.size[d];
        e /= it->box.size[d];
    }
    for (int d = 0; d < it->box.ndim; d++)
        at = at * it->whole.dim[d] + index[d];
    return at;
}

static void fill(const item *it, d9d_tensor *t, int gen)
{
    unsigned char *data = d9d_tensor_data(t);
    const size_t width = d9d_dtype_size(it->dtype);

    for (int64_t e = 0; e < d9d_tensor_numel(t); e++)
        for (size_t k = 0; k < width; k++)
            data[(size_t)e * width + k] = byte_of(it->name, whole_index(it, e), k, gen);
}

static void check_filled(const item *it, const d9d_tensor *t, int gen)
{
    const unsigned char *data = d9d_tensor_data(t);
    const size_t width = d9d_dtype_size(it->dtype);

    for (int64_t e = 0; e < d9d_tensor_numel(t); e++)
        for (size_t k = 0; k < width; k++)
            if (data[(size_t)e * width + k] != byte_of(it->name, whole_index(it, e), k, gen))
                fail_msg("%s: element %lld is not that of generation %d", it->name, (long long)e,
                         gen);
}

/* A run's arrays. */
typedef struct run {
    item items[MAX_ITEMS];
    d9d_tensor tensors[MAX_ITEMS];
    d9d_checkpointer_tensor entries[MAX_ITEMS];
    d9d_checkpointer_count counts[2];
    int64_t steps[2];
    d9d_checkpointer_set set;
} run;

static void run_add(world *w, run *r, item it)
{
    const size_t i = r->set.n++;
    d9d_checkpointer_tensor *e = &r->entries[i];
    d9d_shape shape = {.ndim = it.box.ndim};

    for (int d = 0; d < it.box.ndim; d++)
        shape.dim[d] = it.box.size[d];
    r->items[i] = it;
    assert_ok(d9d_tensor_alloc(w->dev, it.dtype, shape, &r->tensors[i]));
    *e = (d9d_checkpointer_tensor){
        .name = it.name, .group = it.group, .tensor = &r->tensors[i], .global_shape = it.whole};
    for (int d = 0; d < it.box.ndim; d++)
        e->start[d] = it.box.start[d];
    r->set.items = r->entries;
}

static void run_release(run *r)
{
    for (size_t i = 0; i < r->set.n; i++)
        d9d_tensor_release(&r->tensors[i]);
    memset(r, 0, sizeof(*r));
}

static item whole_item(const char *name, const char *group, d9d_dtype t, d9d_shape shape)
{
    item it = {name, group, t, shape, {.ndim = shape.ndim}};

    for (int d = 0; d < shape.ndim; d++)
        it.box.size[d] = shape.dim[d];
    return it;
}

/* Tensors of all widths, a scalar, an empty one, and a count of either kind. */
static void run_make(world *w, run *r)
{
    *r = (run){0};
    run_add(w, r, whole_item("layer.b", "model", D9D_BF16, D9D_SHAPE(7)));
    run_add(w, r, whole_item("layer.w", "model", D9D_F32, D9D_SHAPE(5, 6)));
    run_add(w, r, whole_item("layer.none", "model", D9D_F32, D9D_SHAPE(0, 3)));
    run_add(w, r, whole_item("layer.w.exp_avg", "optimizer", D9D_F32, D9D_SHAPE(5, 6)));
    run_add(w, r, whole_item("scale", "optimizer", D9D_F64, D9D_SCALAR));
    run_add(w, r, whole_item("mask", "optimizer", D9D_U8, D9D_SHAPE(3)));
    r->counts[0] = (d9d_checkpointer_count){"layer.w", &r->steps[0]};
    r->counts[1] = (d9d_checkpointer_count){"layer.b", &r->steps[1]};
    r->set.counts = r->counts;
    r->set.n_counts = 2;
}

static void run_fill(run *r, int gen)
{
    for (size_t i = 0; i < r->set.n; i++)
        fill(&r->items[i], &r->tensors[i], gen);
    r->steps[0] = gen;
    r->steps[1] = gen + 100;
}

static void run_check(const run *r, int gen)
{
    for (size_t i = 0; i < r->set.n; i++)
        check_filled(&r->items[i], &r->tensors[i], gen);
    assert_int_equal(r->steps[0], gen);
    assert_int_equal(r->steps[1], gen + 100);
}

static d9d_checkpointer_state state_of(int64_t step)
{
    return (d9d_checkpointer_state){.step = step,
                                    .samples = 4 * step,
                                    .tokens = 100 * step,
                                    .seed = 17,
                                    .config = {1, 2},
                                    .dataset = {3, (uint64_t)-1},
                                    .finite = true,
                                    .parent = -1};
}

static void save(world *w, run *r, int64_t step)
{
    const d9d_checkpointer_state state = state_of(step);

    run_fill(r, (int)step);
    assert_ok(d9d_checkpointer_write("c", &state, &r->set, NULL, &w->log));
}

static const char *newest(world *w)
{
    const char *path = "unset";

    assert_ok(d9d_checkpointer_latest("c", NULL, &w->log, &w->arena, &path));
    return path;
}

/* The names in a directory on one line. */
static const char *names_in(world *w, const char *dir)
{
    d9d_fs_names names;
    char *all = d9d_arena_strdup(&w->arena, "");

    assert_ok(d9d_fs_list(dir, &w->arena, &names));
    for (size_t i = 0; i < names.n; i++)
        all = d9d_arena_printf(&w->arena, "%s%s%s", all, i > 0 ? " " : "", names.name[i]);
    return all;
}

/* --- whole runs ---------------------------------------------------------------------------- */

static void test_what_is_written_is_read(void **state)
{
    world *w = *state;
    d9d_checkpointer_state got;
    run r;

    run_make(w, &r);
    save(w, &r, 12);
    assert_string_equal(newest(w), "c/step-00000012");
    assert_string_equal(names_in(w, "c"), ".lock step-00000012");
    assert_string_equal(names_in(w, "c/step-00000012"), "manifest.json ranks-00000");
    assert_string_equal(names_in(w, "c/step-00000012/ranks-00000"),
                        "manifest.json model-r00000.safetensors optimizer-r00000.safetensors");
    run_fill(&r, 0);
    assert_ok(d9d_checkpointer_read("c/step-00000012", &r.set, NULL, &got));
    run_check(&r, 12);
    assert_int_equal(got.step, 12);
    assert_int_equal(got.samples, 48);
    assert_int_equal(got.tokens, 1200);
    assert_int_equal(got.seed, 17);
    assert_int_equal(got.parent, -1);
    assert_true(got.finite);
    assert_true(d9d_hash_equal(got.config, (d9d_hash){1, 2}));
    assert_true(d9d_hash_equal(got.dataset, (d9d_hash){3, (uint64_t)-1}));
    assert_string_equal(w->text, "");
    run_release(&r);
}

/* The same state gives the same bytes, so that two runs can be compared by their files. */
static void test_same_state_same_bytes(void **state)
{
    world *w = *state;
    static const char *const names[] = {"manifest.json", "ranks-00000/manifest.json",
                                        "ranks-00000/model-r00000.safetensors",
                                        "ranks-00000/optimizer-r00000.safetensors"};
    const d9d_checkpointer_state at = state_of(3);
    run r;

    run_make(w, &r);
    run_fill(&r, 3);
    assert_ok(d9d_checkpointer_write("a", &at, &r.set, NULL, NULL));
    assert_ok(d9d_checkpointer_write("b/deep", &at, &r.set, NULL, NULL));
    for (size_t i = 0; i < 4; i++) {
        d9d_hash x, y;

        assert_ok(
            d9d_hash_file(d9d_arena_printf(&w->arena, "a/step-00000003/%s", names[i]), &x, NULL));
        assert_ok(d9d_hash_file(d9d_arena_printf(&w->arena, "b/deep/step-00000003/%s", names[i]),
                                &y, NULL));
        assert_true(d9d_hash_equal(x, y));
    }
    run_release(&r);
}

/* Larger than a write and than a hashed chunk, and no multiple of either. */
static void test_large_tensor(void **state)
{
    world *w = *state;
    const d9d_checkpointer_state at = state_of(1);
    run r = {0};
    d9d_checkpointer_state got;
    unsigned char *data;
    const int64_t n = (20 << 20) + 3;

    run_add(w, &r, whole_item("large", "model", D9D_U8, D9D_SHAPE(n)));
    run_add(w, &r, whole_item("small", "model", D9D_F32, D9D_SHAPE(3)));
    data = d9d_tensor_data(&r.tensors[0]);
    for (int64_t i = 0; i < n; i++)
        data[i] = (unsigned char)(i * 7 + i / 251);
    fill(&r.items[1], &r.tensors[1], 1);
    assert_ok(d9d_checkpointer_write("c", &at, &r.set, NULL, NULL));
    memset(data, 0, (size_t)n);
    assert_string_equal(newest(w), "c/step-00000001"); /* hashes agree */
    assert_ok(d9d_checkpointer_read("c/step-00000001", &r.set, NULL, &got));
    for (int64_t i = 0; i < n; i++)
        if (data[i] != (unsigned char)(i * 7 + i / 251))
            fail_msg("byte %lld", (long long)i);
    check_filled(&r.items[1], &r.tensors[1], 1);
    run_release(&r);
}

static void test_optimizer_less_set(void **state)
{
    world *w = *state;
    d9d_param p = {
        .name = "p", .spec.shape = D9D_SHAPE(4, 3), .spec.trainable = true, .shard.offset = {2, 0}};
    d9d_param *list[] = {&p};
    d9d_checkpointer_set set;

    assert_ok(d9d_checkpointer_set_make(&(d9d_params){list, 1}, NULL, false, &w->arena, &set));
    assert_int_equal(set.n, 1);
    assert_string_equal(set.items[0].name, "p");
    assert_string_equal(set.items[0].group, "model");
    assert_ptr_equal(set.items[0].tensor, &p.shard.data);
    assert_true(d9d_shape_equal(&set.items[0].global_shape, &p.spec.shape));
    assert_int_equal(set.items[0].start[0], 2);
    assert_int_equal(set.n_counts, 0);
    assert_false(set.partial);
}

/* --- another topology ------------------------------------------------------------------------ */

/* Cut a whole into a grid: parts of ceil(size / n) along each dimension. */
static item shard(const char *name, d9d_dtype t, d9d_shape whole, const int64_t *parts, int64_t k)
{
    item it = {name, "model", t, whole, {.ndim = whole.ndim}};

    for (int d = whole.ndim - 1; d >= 0; d--) {
        const int64_t step = (whole.dim[d] + parts[d] - 1) / parts[d], at = k % parts[d] * step;

        it.box.start[d] = at < whole.dim[d] ? at : whole.dim[d];
        it.box.size[d] =
            step < whole.dim[d] - it.box.start[d] ? step : whole.dim[d] - it.box.start[d];
        k /= parts[d];
    }
    return it;
}

/* Saves with a number of ranks a directory that is not a divisor of the ranks. */
static void save_cut(world *w, const char *dir, d9d_dtype t, d9d_shape whole, const int64_t *parts)
{
    const d9d_checkpointer_state at = state_of(1);
    d9d_progress progress;
    d9di_checkpointer_save s;
    int n = 1;

    for (int d = 0; d < whole.ndim; d++)
        n *= (int)parts[d];
    s = save_of_ranks(d9d_checkpointer_path(&w->arena, dir, 1), n, 3, &at);
    d9d_progress_start(&progress, NULL, "save", "B", 0);
    for (int rank = n - 1; rank >= 0; rank--) {
        run r = {0};

        run_add(w, &r, shard("x", t, whole, parts, rank));
        fill(&r.items[0], &r.tensors[0], 1);
        save_as_rank(&s, rank);
        assert_ok(d9di_checkpointer_save_write_rank(&s, &r.set, &progress));
        run_release(&r);
    }
    save_merge(&s);
    d9di_checkpointer_save_release(&s);
}

static void read_cut(world *w, const char *dir, d9d_dtype t, d9d_shape whole, const int64_t *parts)
{
    const char *path = d9d_checkpointer_path(&w->arena, dir, 1);
    d9d_checkpointer_state got;
    int64_t n = 1;

    for (int d = 0; d < whole.ndim; d++)
        n *= parts[d];
    for (int64_t k = 0; k < n; k++) {
        run r = {0};

        run_add(w, &r, shard("x", t, whole, parts, k));
        fill(&r.items[0], &r.tensors[0], 0);
        assert_ok(d9d_checkpointer_read(path, &r.set, NULL, &got));
        check_filled(&r.items[0], &r.tensors[0], 1);
        run_release(&r);
    }
}

/* Of a checkpoint of many ranks a rank looks at the files alone that have its part. */
static void test_files_of_others_are_not_looked_at(void **state)
{
    world *w = *state;
    const int64_t parts[] = {4, 1};
    const d9d_shape whole = D9D_SHAPE(8, 3);
    d9d_checkpointer_state got;

    save_cut(w, "c", D9D_F32, whole, parts);
    assert_int_equal(truncate("c/step-00000001/ranks-00003/model-r00003.safetensors", 9), 0);
    for (int64_t k = 0; k < 4; k++) {
        run r = {0};

        run_add(w, &r, shard("x", D9D_F32, whole, parts, k));
        if (k < 3)
            assert_ok(d9d_checkpointer_read("c/step-00000001", &r.set, NULL, &got));
        else
            assert_fails_like(d9d_checkpointer_read("c/step-00000001", &r.set, NULL, &got),
                              D9D_EVERIFY,
                              "model-r00003.safetensors has 9 bytes, manifest.json says ");
        run_release(&r);
    }
}

static void test_every_cut_reads_every_other(void **state)
{
    world *w = *state;
    static const int64_t cuts[][3] = {{1, 1, 1}, {2, 1, 1}, {1, 2, 1}, {1, 1, 2}, {3, 1, 2},
                                      {1, 3, 3}, {2, 2, 2}, {4, 1, 1}, {1, 1, 7}, {2, 3, 2}};
    enum { CUTS = sizeof(cuts) / sizeof(cuts[0]) };
    const d9d_shape whole = D9D_SHAPE(5, 4, 7);

    for (size_t i = 0; i < CUTS; i++) {
        const char *dir = d9d_arena_printf(&w->arena, "cut%zu", i);
        const d9d_dtype t = i % 2 == 0 ? D9D_F32 : D9D_BF16;

        save_cut(w, dir, t, whole, cuts[i]);
        for (size_t k = 0; k < CUTS; k++)
            read_cut(w, dir, t, whole, cuts[k]);
    }
}

typedef struct tally {
    int64_t calls, elements, longest;
} tally;

static d9d_status count_run(void *arg, int64_t src, int64_t dst, int64_t n)
{
    tally *t = arg;

    (void)src;
    (void)dst;
    t->calls++;
    t->elements += n;
    t->longest = n > t->longest ? n : t->longest;
    return D9D_OK;
}

/* What is contiguous in both arrays is one run. */
static void test_runs_are_long(void **state)
{
    static const struct {
        d9d_box part, from, to;
        tally want;
    } rows[] = {
        {{2, {0, 0}, {4, 6}}, {2, {0, 0}, {4, 6}}, {2, {0, 0}, {4, 6}}, {1, 24, 24}},
        {{2, {1, 0}, {2, 6}}, {2, {0, 0}, {4, 6}}, {2, {1, 0}, {2, 6}}, {1, 12, 12}},
        {{2, {0, 2}, {4, 3}}, {2, {0, 0}, {4, 6}}, {2, {0, 2}, {4, 3}}, {4, 12, 3}},
        {{2, {0, 2}, {1, 3}}, {2, {0, 0}, {1, 6}}, {2, {0, 2}, {1, 3}}, {1, 3, 3}},
        {{3, {0, 1, 0}, {3, 2, 5}},
         {3, {0, 0, 0}, {3, 4, 5}},
         {3, {0, 1, 0}, {3, 2, 5}},
         {3, 30, 10}},
        {{0, {0}, {0}}, {0, {0}, {0}}, {0, {0}, {0}}, {1, 1, 1}},
        {{1, {0}, {0}}, {1, {0}, {0}}, {1, {0}, {0}}, {0, 0, 0}},
    };

    (void)state;
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        tally got = {0};

        assert_ok(d9d_box_runs(&rows[i].part, &rows[i].from, &rows[i].to, count_run, &got));
        assert_memory_equal(&got, &rows[i].want, sizeof(got));
    }
}

static void test_scalar_and_empty_boxes(void **state)
{
    const d9d_box scalar = {0}, empty = {.ndim = 1, .start = {3}}, row = {.ndim = 1, .size = {5}};
    d9d_box both;
    char text[D9D_BOX_TEXT];

    (void)state;
    assert_true(d9d_box_intersect(&scalar, &scalar, &both));
    assert_int_equal(d9d_box_volume(&both), 1);
    assert_false(d9d_box_intersect(&empty, &row, &both));
    assert_true(d9d_box_fits(&empty, &D9D_SHAPE(3)));
    assert_false(d9d_box_fits(&empty, &D9D_SHAPE(2)));
    assert_false(d9d_box_fits(&row, &D9D_SHAPE(4)));
    assert_string_equal(d9d_box_text(&row, text), "[0:5]");
    assert_string_equal(d9d_box_text(&scalar, text), "[]");
}

/* --- what does not match ---------------------------------------------------------------------- */

static void change_dtype(run *r)
{
    r->tensors[1].dtype = D9D_I32;
}
static void change_shape(run *r)
{
    r->entries[1].global_shape.dim[0] = 6;
}
static void change_name(run *r)
{
    r->entries[3].name = "layer.w.other";
}
static void drop_last(run *r)
{
    r->set.n--;
}
static void change_count(run *r)
{
    r->counts[1].name = "layer.c";
}

static void test_mismatch_before_any_change(void **state)
{
    world *w = *state;
    static const struct {
        void (*change)(run *r);
        const char *sentence;
    } rows[] = {
        {change_dtype, "tensor layer.w is float32, this run needs int32"},
        {change_shape, "tensor layer.w has shape [5, 6], this run needs [6, 6]"},
        {change_name, "has no tensor layer.w.other, which this run needs"},
        {drop_last, "has tensor mask, which this run does not have"},
        {change_count, "optimizer_steps: has no layer.c, which this run needs"},
    };
    d9d_checkpointer_state got;
    run r;

    run_make(w, &r);
    save(w, &r, 1);
    run_release(&r);
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        const d9d_checkpointer_state before = {.step = 77};
        size_t n;

        run_make(w, &r);
        run_fill(&r, 0);
        n = r.set.n;
        rows[i].change(&r);
        got = before;
        assert_fails_like(d9d_checkpointer_read("c/step-00000001", &r.set, NULL, &got),
                          D9D_EMISMATCH, rows[i].sentence);
        assert_int_equal(got.step, 77);
        r.set.n = n;
        r.tensors[1].dtype = D9D_F32;
        run_check(&r, 0);
        run_release(&r);
    }
}

static void test_partial_set(void **state)
{
    world *w = *state;
    d9d_checkpointer_state got;
    run r, part = {0};

    run_make(w, &r);
    save(w, &r, 1);
    run_release(&r);
    run_add(w, &part, whole_item("layer.w", "model", D9D_F32, D9D_SHAPE(5, 6)));
    part.set.partial = true;
    assert_ok(d9d_checkpointer_read("c/step-00000001", &part.set, NULL, &got));
    check_filled(&part.items[0], &part.tensors[0], 1);
    run_release(&part);
}

static void test_part_that_nobody_saved(void **state)
{
    world *w = *state;
    const int64_t halves[] = {2, 1}, one[] = {1, 1};
    const d9d_shape whole = D9D_SHAPE(4, 3);
    const d9d_checkpointer_state at = state_of(1);
    d9d_checkpointer_state got;
    run r = {0};

    run_add(w, &r, shard("x", D9D_F32, whole, halves, 1));
    fill(&r.items[0], &r.tensors[0], 1);
    assert_ok(d9d_checkpointer_write("c", &at, &r.set, NULL, NULL));
    run_release(&r);
    run_add(w, &r, shard("x", D9D_F32, whole, one, 0));
    assert_fails(d9d_checkpointer_read("c/step-00000001", &r.set, NULL, &got), D9D_EMISMATCH,
                 "c/step-00000001/manifest.json: tensor x: of the 12 elements of [0:4, 0:3] it "
                 "has 6");
    run_release(&r);
}

static void test_bad_requests(void **state)
{
    world *w = *state;
    d9d_checkpointer_state at = state_of(1);
    run r;

    run_make(w, &r);
    run_fill(&r, 1);
    at.seed = (uint64_t)INT64_MAX + 1;
    assert_fails_like(d9d_checkpointer_write("c", &at, &r.set, NULL, NULL), D9D_EINVAL,
                      "seed is 9223372036854775808, must be at most 9223372036854775807");
    at = state_of(1);
    at.tokens = -5;
    assert_fails_like(d9d_checkpointer_write("c", &at, &r.set, NULL, NULL), D9D_EINVAL,
                      "tokens is -5, must be at least 0");
    at = state_of(1);
    r.entries[1].start[0] = 1;
    assert_fails_like(d9d_checkpointer_write("c", &at, &r.set, NULL, NULL), D9D_EINVAL,
                      "layer.w: [1:6, 0:6] is not a part of [5, 6]");
    r.entries[1].start[0] = 0;
    r.entries[1].name = "layer.b";
    assert_fails_like(d9d_checkpointer_write("c", &at, &r.set, NULL, NULL), D9D_EINVAL,
                      "tensor layer.b is declared twice");
    r.entries[1].name = "layer.w";
    r.entries[1].group = "a/b";
    assert_fails_like(d9d_checkpointer_write("c", &at, &r.set, NULL, NULL), D9D_EFORMAT,
                      "not a plain file name");
    assert_string_equal(names_in(w, "c"), ".lock");
    run_release(&r);
}

/* --- discovery ----------------------------------------------------------------------------- */

static void test_nothing_there(void **state)
{
    world *w = *state;

    assert_null(newest(w));
    assert_ok(d9d_fs_mkdirs("c/step-12"));
    assert_ok(d9d_fs_mkdirs("c/step-000000012"));
    assert_ok(d9d_fs_mkdirs("c/step-00000012x"));
    assert_ok(d9d_fs_mkdirs("c/step-99999999999999999999"));
    assert_ok(d9d_fs_mkdirs("c/step-00000012.tmp-1-0"));
    assert_null(newest(w));
    assert_string_equal(w->text, "");
}

static void overwrite(const char *path, off_t at, const void *p, size_t n)
{
    const int fd = open(path, O_WRONLY);

    assert_true(fd >= 0);
    assert_int_equal(pwrite(fd, p, n, at), n);
    assert_int_equal(close(fd), 0);
}

static const char in_model[] = "c/step-00000002/ranks-00000/model-r00000.safetensors";
static const char in_manifest[] = "c/step-00000002/manifest.json";
static const char in_part[] = "c/step-00000002/ranks-00000/manifest.json";

static void flip_byte(void)
{
    overwrite(in_model, 370, "\x55", 1);
}
static void flip_header(void)
{
    overwrite(in_model, 9, "#", 1);
}
static void cut_file(void)
{
    assert_int_equal(truncate(in_model, 200), 0);
}
static void lose_file(void)
{
    assert_int_equal(unlink(in_model), 0);
}
static void lose_manifest(void)
{
    assert_int_equal(unlink(in_manifest), 0);
}
static void cut_manifest(void)
{
    assert_int_equal(truncate(in_manifest, 100), 0);
}
static void empty_manifest(void)
{
    assert_int_equal(truncate(in_manifest, 0), 0);
}
static void flip_manifest(void)
{
    overwrite(in_manifest, 47, "7", 1);
}
static void flip_part(void)
{
    overwrite(in_part, 47, "7", 1);
}
static void cut_part(void)
{
    assert_int_equal(truncate(in_part, 100), 0);
}
static void lose_part(void)
{
    assert_int_equal(unlink(in_part), 0);
}
static void lose_all(void)
{
    assert_ok(d9d_fs_remove_tree("c/step-00000002"));
    assert_ok(d9d_fs_mkdirs("c/step-00000002"));
}

static const struct damage {
    void (*make)(void);
    const char *sentence;
} damages[] = {
    {flip_byte, "model-r00000.safetensors: bytes 0 to "},
    {flip_header, "model-r00000.safetensors: bytes 0 to "},
    {cut_file, "model-r00000.safetensors has 200 bytes, manifest.json says "},
    {lose_file, "model-r00000.safetensors is missing"},
    {lose_manifest, "c/step-00000002/manifest.json: cannot open: No such file or directory"},
    {cut_manifest, "c/step-00000002/manifest.json: line "},
    {empty_manifest, "c/step-00000002/manifest.json: is empty"},
    {flip_manifest, "c/step-00000002/manifest.json: "},
    {flip_part, "c/step-00000002/ranks-00000/manifest.json: is not the one that "},
    {cut_part, "c/step-00000002/ranks-00000/manifest.json has 100 bytes"},
    {lose_part, "c/step-00000002/ranks-00000/manifest.json is missing"},
    {lose_all, "c/step-00000002/manifest.json: cannot open"},
};
enum { DAMAGES = sizeof(damages) / sizeof(damages[0]) };

static void test_damaged_is_passed_over(void **state)
{
    world *w = *state;
    run r;

    run_make(w, &r);
    for (size_t i = 0; i < DAMAGES; i++) {
        assert_ok(d9d_fs_remove_tree("c"));
        save(w, &r, 1);
        save(w, &r, 2);
        w->text[0] = '\0';
        damages[i].make();
        assert_string_equal(newest(w), "c/step-00000001");
        unit_check_has(w->text, "checkpoint passed over: c/step-00000002", __FILE__, __LINE__);
        unit_check_has(w->text, damages[i].sentence, __FILE__, __LINE__);
        /* The run gets there again and writes over it. */
        save(w, &r, 2);
        assert_string_equal(newest(w), "c/step-00000002");
        assert_string_equal(names_in(w, "c"), ".lock step-00000001 step-00000002");
    }
    run_release(&r);
}

static void test_a_file_of_that_name(void **state)
{
    world *w = *state;
    const d9d_checkpointer_state at = state_of(2);
    run r;

    run_make(w, &r);
    save(w, &r, 1);
    assert_ok(d9d_fs_write_atomic("c/step-00000002", "x", 1));
    assert_string_equal(newest(w), "c/step-00000001");
    assert_fails(d9d_checkpointer_write("c", &at, &r.set, NULL, NULL), D9D_ECONFIG,
                 "c/step-00000002: is there already and is not a directory");
    assert_ok(d9d_checkpointer_prune("c", INT64_MAX, 1, NULL));
    assert_string_equal(names_in(w, "c"), ".lock step-00000001 step-00000002");
    run_release(&r);
}

static void test_none_usable(void **state)
{
    world *w = *state;
    const char *path = "unset";
    run r;

    run_make(w, &r);
    save(w, &r, 2);
    cut_file();
    assert_fails_like(d9d_checkpointer_latest("c", NULL, &w->log, &w->arena, &path), D9D_EVERIFY,
                      "c: none of 1 checkpoints can be used; the newest: "
                      "c/step-00000002/ranks-00000/model-r00000.safetensors has 200 bytes");
    assert_string_equal(path, "unset");
    run_release(&r);
}

/* Not "there are none": a run would begin again from its first step. */
static void test_cannot_be_looked_at(void **state)
{
    world *w = *state;
    const char *path = "unset";

    assert_int_equal(symlink("loop", "loop"), 0);
    assert_fails(d9d_checkpointer_latest("loop", NULL, &w->log, &w->arena, &path), D9D_EPATH,
                 "loop: cannot open the directory: Too many levels of symbolic links");
    assert_string_equal(path, "unset");
    assert_ok(d9d_checkpointer_latest("nowhere", NULL, &w->log, &w->arena, &path));
    assert_null(path);
}

static void test_not_finite(void **state)
{
    world *w = *state;
    d9d_checkpointer_state bad = state_of(3);
    run r;

    run_make(w, &r);
    save(w, &r, 1);
    save(w, &r, 2);
    bad.finite = false;
    assert_ok(d9d_checkpointer_write("c", &bad, &r.set, NULL, NULL));
    assert_string_equal(newest(w), "c/step-00000002");
    unit_check_has(w->text, "c/step-00000003: loss or gradient of step 3 was not finite", __FILE__,
                   __LINE__);
    /* It is kept, to be looked at, and does not count. */
    assert_ok(d9d_checkpointer_prune("c", INT64_MAX, 1, &w->log));
    assert_string_equal(names_in(w, "c"), ".lock step-00000002 step-00000003");
    run_release(&r);
}

static void test_renamed_by_hand(void **state)
{
    world *w = *state;
    run r;

    run_make(w, &r);
    save(w, &r, 1);
    save(w, &r, 2);
    assert_int_equal(rename("c/step-00000002", "c/step-00000009"), 0);
    assert_string_equal(newest(w), "c/step-00000001");
    unit_check_has(w->text, "says step 2, its directory step 9", __FILE__, __LINE__);
    run_release(&r);
}

/* --- retention
 * -------------------------------------------------------------------------------------- */

static void test_prune_keeps_the_newest(void **state)
{
    world *w = *state;
    run r;

    assert_ok(d9d_checkpointer_prune("c", INT64_MAX, 1, &w->log));
    assert_false(d9d_fs_exists("c"));
    run_make(w, &r);
    for (int step = 1; step <= 5; step++)
        save(w, &r, step);
    assert_ok(d9d_checkpointer_prune("c", INT64_MAX, 0, &w->log));
    assert_string_equal(names_in(w, "c"), ".lock step-00000001 step-00000002 step-00000003 "
                                          "step-00000004 step-00000005");
    /* A damaged one does not count; one without a manifest is not ours to remove. */
    assert_int_equal(truncate("c/step-00000004/ranks-00000/model-r00000.safetensors", 10), 0);
    assert_int_equal(unlink("c/step-00000001/manifest.json"), 0);
    assert_ok(d9d_checkpointer_prune("c", INT64_MAX, 2, &w->log));
    assert_string_equal(names_in(w, "c"),
                        ".lock step-00000001 step-00000003 step-00000004 step-00000005");
    assert_ok(d9d_checkpointer_prune("c", INT64_MAX, 1, &w->log));
    assert_string_equal(names_in(w, "c"), ".lock step-00000001 step-00000005");
    assert_string_equal(newest(w), "c/step-00000005");
    run_release(&r);
}

/* A run resumed from before a checkpoint whose bytes, not sizes, are wrong. */
static void test_prune_keeps_what_follows_a_damaged_one(void **state)
{
    world *w = *state;
    run r;

    run_make(w, &r);
    save(w, &r, 2);
    flip_byte();
    save(w, &r, 0);
    save(w, &r, 1);
    assert_ok(d9d_checkpointer_prune("c", 1, 1, &w->log));
    assert_string_equal(names_in(w, "c"), ".lock step-00000001 step-00000002");
    assert_string_equal(newest(w), "c/step-00000001");
    run_release(&r);
}

/* Somebody archived a checkpoint, and linked it for later. */
static void test_prune_keeps_what_a_link_leads_to(void **state)
{
    world *w = *state;
    run r;

    run_make(w, &r);
    save(w, &r, 1);
    assert_int_equal(rename("c/step-00000001", "archived"), 0);
    assert_int_equal(symlink("../archived", "c/step-00000001"), 0);
    assert_string_equal(newest(w), "c/step-00000001");
    save(w, &r, 2);
    assert_ok(d9d_checkpointer_prune("c", 2, 1, &w->log));
    assert_string_equal(names_in(w, "c"), ".lock step-00000002");
    assert_string_equal(names_in(w, "archived"), "manifest.json ranks-00000");
    assert_ok(d9d_fs_remove_tree("archived"));
    run_release(&r);
}

static void test_prune_sweeps_leftovers(void **state)
{
    world *w = *state;
    run r;

    run_make(w, &r);
    save(w, &r, 1);
    assert_ok(d9d_fs_mkdirs("c/step-00000002.tmp-4711-0/inner"));
    assert_ok(d9d_fs_write_atomic("c/step-00000002.tmp-4711-0/model", "half", 4));
    assert_ok(d9d_fs_mkdirs("c/step-00000001.tmp-4711-old"));
    assert_ok(d9d_fs_mkdirs("c/mine.tmp-1-0"));
    assert_ok(d9d_fs_mkdirs("c/step-00000001-best"));
    assert_string_equal(newest(w), "c/step-00000001");
    assert_ok(d9d_checkpointer_prune("c", INT64_MAX, 0, &w->log));
    assert_string_equal(names_in(w, "c"), ".lock mine.tmp-1-0 step-00000001 step-00000001-best");
    run_release(&r);
}

/* While another process has the lock, nothing is written and nothing is removed. */
static void test_lock_of_another(void **state)
{
    world *w = *state;
    const d9d_checkpointer_state at = state_of(2);
    run r;
    int fd;

    run_make(w, &r);
    save(w, &r, 1);
    assert_ok(d9d_fs_mkdirs("c/step-00000002.tmp-4711-0"));
    fd = open("c/.lock", O_RDWR);
    assert_int_equal(flock(fd, LOCK_EX), 0);
    assert_fails(d9d_checkpointer_prune("c", INT64_MAX, 1, &w->log), D9D_EIO,
                 "c/.lock: another process is writing checkpoints here");
    assert_fails_like(d9d_checkpointer_write("c", &at, &r.set, NULL, &w->log), D9D_EIO,
                      "another process");
    assert_string_equal(names_in(w, "c"), ".lock step-00000001 step-00000002.tmp-4711-0");
    assert_string_equal(newest(w), "c/step-00000001");
    assert_int_equal(close(fd), 0);
    assert_ok(d9d_checkpointer_prune("c", INT64_MAX, 1, &w->log));
    assert_string_equal(names_in(w, "c"), ".lock step-00000001");
    run_release(&r);
}

/* --- manifests that are whole and wrong
 * ----------------------------------------------------------------- */

static json_t *first_of(json_t *root, const char *list)
{
    return json_array_get(json_object_get(root, list), 0);
}
static json_t *first_slice(json_t *root)
{
    return first_of(first_of(root, "tensors"), "slices");
}

static void m_step(json_t *m)
{
    assert_int_equal(json_object_set_new(m, "step", json_integer(-1)), 0);
}
static void m_tokens(json_t *m)
{
    assert_int_equal(json_object_set_new(m, "tokens", json_integer(INT64_MAX)), 0);
}
static void m_count_huge(json_t *m)
{
    assert_int_equal(json_object_set_new(json_object_get(m, "optimizer_steps"), "layer.w",
                                         json_integer(INT64_MAX)),
                     0);
}
static void m_step_real(json_t *m)
{
    assert_int_equal(json_object_set_new(m, "step", json_real(1.0)), 0);
}
static void m_samples(json_t *m)
{
    assert_int_equal(json_object_del(m, "samples"), 0);
}
static void m_seed(json_t *m)
{
    assert_int_equal(json_object_set_new(m, "seed", json_string("17")), 0);
}
static void m_parent(json_t *m)
{
    assert_int_equal(json_object_set_new(m, "parent", json_integer(-2)), 0);
}
static void m_finite(json_t *m)
{
    assert_int_equal(json_object_set_new(m, "finite", json_integer(1)), 0);
}
static void m_config(json_t *m)
{
    assert_int_equal(json_object_set_new(m, "config", json_string("12")), 0);
}
static void m_counts(json_t *m)
{
    assert_int_equal(json_object_set_new(m, "optimizer_steps", json_array()), 0);
}
static void m_count(json_t *m)
{
    assert_int_equal(
        json_object_set_new(json_object_get(m, "optimizer_steps"), "layer.w", json_integer(-3)), 0);
}
static void m_tensors(json_t *m)
{
    assert_int_equal(json_object_set_new(m, "tensors", json_null()), 0);
}
static void m_tensor(json_t *m)
{
    assert_int_equal(json_array_append_new(json_object_get(m, "tensors"), json_integer(3)), 0);
}
static void m_twice(json_t *m)
{
    assert_int_equal(json_array_append(json_object_get(m, "tensors"), first_of(m, "tensors")), 0);
}
static void m_dtype(json_t *m)
{
    assert_int_equal(json_object_set_new(first_of(m, "tensors"), "dtype", json_string("F31")), 0);
}
static void m_ndim(json_t *m)
{
    json_t *shape = json_object_get(first_of(m, "tensors"), "shape");

    for (int i = 0; i < D9D_MAX_DIMS; i++)
        assert_int_equal(json_array_append_new(shape, json_integer(1)), 0);
}
static void m_shape(json_t *m)
{
    assert_int_equal(
        json_array_set_new(json_object_get(first_of(m, "tensors"), "shape"), 0, json_real(7)), 0);
}
static void m_huge(json_t *m)
{
    json_t *shape = json_object_get(first_of(m, "tensors"), "shape");

    assert_int_equal(json_array_set_new(shape, 0, json_integer(INT64_MAX)), 0);
}
static void m_rank(json_t *m)
{
    assert_int_equal(json_object_set_new(first_slice(m), "rank", json_integer(1)), 0);
}
static void m_group(json_t *m)
{
    assert_int_equal(json_object_set_new(first_of(m, "tensors"), "group", json_string("../x")), 0);
}
static void m_ranks(json_t *m)
{
    assert_int_equal(json_object_set_new(m, "ranks", json_integer(0)), 0);
}
static void m_step_beyond(json_t *m)
{
    assert_int_equal(json_object_set_new(first_slice(m), "steps",
                                         json_pack("[{s:i, s:i, s:i, s:i}]", "n", 2, "dim", 0, "by",
                                                   1, "ranks", 0)),
                     0);
}
static void m_start(json_t *m)
{
    assert_int_equal(
        json_array_set_new(json_object_get(first_slice(m), "start"), 0, json_integer(1)), 0);
}
static void m_start_huge(json_t *m)
{
    assert_int_equal(
        json_array_set_new(json_object_get(first_slice(m), "start"), 0, json_integer(INT64_MAX)),
        0);
}
static void m_start_long(json_t *m)
{
    assert_int_equal(
        json_array_append_new(json_object_get(first_slice(m), "start"), json_integer(0)), 0);
}
static void m_overlap(json_t *m)
{
    assert_int_equal(
        json_array_append(json_object_get(first_of(m, "tensors"), "slices"), first_slice(m)), 0);
}

/* Change the manifest of a sound checkpoint and hash it anew. */
static void edit(const char *dir, void (*change)(json_t *root))
{
    d9d_manifest *m;
    json_t *root;

    assert_ok(d9d_manifest_open_root(dir, &m));
    root = json_deep_copy(d9d_manifest_root(m));
    for (size_t i = 0; i < 4; i++)
        assert_int_equal(
            json_object_del(root, ((const char *[]){"schema", "chunk_bytes", "files", "xxh3"})[i]),
            0);
    change(root);
    assert_ok(d9d_manifest_write_hashed(dir, root, d9d_manifest_at(m, 0), d9d_manifest_count(m)));
    json_decref(root);
    d9d_manifest_close(m);
}

static void test_wrong_manifests(void **state)
{
    world *w = *state;
    static const struct {
        void (*change)(json_t *root);
        const char *sentence;
    } rows[] = {
        {m_step, "\"step\" is -1, must be at least 0"},
        {m_tokens, "\"tokens\" is 9223372036854775807, must be at most 1152921504606846976"},
        {m_count_huge, "\"layer.w\" must be an integer of at least 0, at most 2^60"},
        {m_step_real, "\"step\" must be an integer, is a real number"},
        {m_samples, "\"samples\" is missing"},
        {m_seed, "\"seed\" must be an integer, is a string"},
        {m_parent, "\"parent\" is -2, must be at least -1"},
        {m_finite, "\"finite\" must be a boolean, is an integer"},
        {m_config, "\"config\": hash \"12\" has 2 characters"},
        {m_counts, "\"optimizer_steps\" must be an object, is an array"},
        {m_count, "\"layer.w\" must be an integer of at least 0"},
        {m_tensors, "\"tensors\" must be an array, is null"},
        {m_tensor, "tensors[6]: must be an object"},
        {m_twice, "tensor layer.b is there twice"},
        {m_dtype, "tensor layer.b: unknown dtype \"F31\""},
        {m_ndim, "\"shape\" has 7 dimensions, at most 6 are known"},
        {m_shape, "shape[0] must be an integer of at least 0"},
        {m_huge, "tensor layer.b: its size overflows"},
        {m_rank, "slices[0]: \"rank\" is 1, must be at most 0"},
        {m_group, "\"../x\" is not a plain file name"},
        {m_ranks, "\"ranks\" is 0, must be at least 1"},
        {m_step_beyond, "its steps from [0:7] leave [7] or the 1 rank, or overlap"},
        {m_start, "slices[0]: [1:8] is not a part of [7]"},
        {m_start_huge, "is not a part of [7]"},
        {m_start_long, "is not a part of [7]"},
        {m_overlap, "tensor layer.b: slices [0:7] and [0:7] overlap"},
    };
    d9d_checkpointer_state got;
    run r;

    run_make(w, &r);
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        save(w, &r, 1);
        edit("c/step-00000001", rows[i].change);
        assert_fails_like(d9d_checkpointer_read("c/step-00000001", &r.set, NULL, &got), D9D_EFORMAT,
                          rows[i].sentence);
        unit_check_has(d9d_err_message(), "c/step-00000001/manifest.json: ", __FILE__, __LINE__);
    }
    run_release(&r);
}

static void m_other_file(json_t *m)
{
    assert_int_equal(json_object_set_new(first_of(m, "tensors"), "group", json_string("optimizer")),
                     0);
}
static void m_other_shape(json_t *m)
{
    json_t *tensor = first_of(m, "tensors");

    assert_int_equal(json_array_set_new(json_object_get(tensor, "shape"), 0, json_integer(8)), 0);
    assert_int_equal(
        json_array_set_new(json_object_get(first_slice(m), "shape"), 0, json_integer(8)), 0);
}

/* A manifest that says something else than the headers of its files. */
static void test_manifest_against_headers(void **state)
{
    world *w = *state;
    d9d_checkpointer_state got;
    run r;

    run_make(w, &r);
    save(w, &r, 1);
    edit("c/step-00000001", m_other_file);
    assert_fails(
        d9d_checkpointer_read("c/step-00000001", &r.set, NULL, &got), D9D_EFORMAT,
        "c/step-00000001/ranks-00000/optimizer-r00000.safetensors: has no tensor layer.b, which "
        "manifest.json places there");
    save(w, &r, 1);
    edit("c/step-00000001", m_other_shape);
    r.entries[0].global_shape.dim[0] = 8; /* the run would take it */
    r.tensors[0].shape.dim[0] = 8;
    assert_fails(
        d9d_checkpointer_read("c/step-00000001", &r.set, NULL, &got), D9D_EFORMAT,
        "c/step-00000001/ranks-00000/model-r00000.safetensors: tensor layer.b is BF16 [7], "
        "manifest.json says BF16 [0:8]");
    run_release(&r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        in_world(test_what_is_written_is_read),
        in_world(test_same_state_same_bytes),
        in_world(test_large_tensor),
        in_world(test_optimizer_less_set),
        in_world(test_files_of_others_are_not_looked_at),
        in_world(test_every_cut_reads_every_other),
        cmocka_unit_test(test_runs_are_long),
        cmocka_unit_test(test_scalar_and_empty_boxes),
        in_world(test_mismatch_before_any_change),
        in_world(test_partial_set),
        in_world(test_part_that_nobody_saved),
        in_world(test_bad_requests),
        in_world(test_nothing_there),
        in_world(test_damaged_is_passed_over),
        in_world(test_a_file_of_that_name),
        in_world(test_none_usable),
        in_world(test_cannot_be_looked_at),
        in_world(test_not_finite),
        in_world(test_renamed_by_hand),
        in_world(test_prune_keeps_the_newest),
        in_world(test_prune_keeps_what_follows_a_damaged_one),
        in_world(test_prune_keeps_what_a_link_leads_to),
        in_world(test_prune_sweeps_leftovers),
        in_world(test_lock_of_another),
        in_world(test_wrong_manifests),
        in_world(test_manifest_against_headers),
    };

    return cmocka_run_group_tests_name("save", tests, NULL, NULL);
}
