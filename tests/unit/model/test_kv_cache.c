/* test_kv_cache.c - KV cache: sequences decoded in several steps, several at a time, compared with
 * the training forward of whole sequences.  On the CPU, where only attention looks back, results
 * are bitwise equal.
 */
#include "support/unit.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "d9d/base/rng.h"
#include "d9d/model/kv_cache.h"
#include "support/family.h"
#include "support/small_models.h"
#include "support/unit_device.h"

enum { ROWS = 3, CAPACITY = 150, V = 23, SLOTS = ROWS * CAPACITY + 1 };

static const d9d_block_vocab_split splits[] = {{"regular", 17}, {"special", V - 17}};
static const int64_t lengths[ROWS] = {7, CAPACITY, 40};

typedef struct fixture {
    d9d_device *dev;
    d9d_model *model;
    d9d_arena arena;
    d9d_tape *tape;
    d9d_kv_cache cache;
    bool exact, says_alone; /* says_alone: a call of one span is a d9d_tape_prefill */
} fixture;

static d9d_status qwen3_create(const char *more, d9d_arena *a, d9d_dtype t, d9d_model **out)
{
    const d9d_model_opts options = {.dtype = t};
    d9d_family_config *c = d9d_arena_alloc(a, sizeof(*c));

    assert_non_null(c);
    D9D_TRY(family_make(
        a, c,
        "{%s, \"hidden_size\": 40, \"num_hidden_layers\": 3, \"num_attention_heads\": 6, "
        "\"num_key_value_heads\": 2, \"head_dim\": 16, \"intermediate_size\": 34, "
        "\"max_position_embeddings\": %d, \"vocab_size\": %d, \"initializer_range\": 0}",
        more, CAPACITY, V));
    c->splits = splits;
    c->n_splits = 2;
    return d9d_family_create(c, D9D_WHOLE_MODEL, &options, out);
}
static d9d_status dense_create(d9d_arena *a, d9d_dtype t, d9d_model **out)
{
    return qwen3_create("\"model_type\": \"qwen3\"", a, t, out);
}
static d9d_status moe_create(d9d_arena *a, d9d_dtype t, d9d_model **out)
{
    return qwen3_create("\"model_type\": \"qwen3_moe\", \"num_experts\": 5, "
                        "\"num_experts_per_tok\": 2, \"moe_intermediate_size\": 19, "
                        "\"norm_topk_prob\": true, \"shared_expert_intermediate_size\": 14",
                        a, t, out);
}
static d9d_status hybrid_create(d9d_arena *a, d9d_dtype t, d9d_model **out)
{
    (void)a;
    return small_hybrid_create(t, V, CAPACITY, out);
}
static d9d_status llama_create(d9d_arena *a, d9d_dtype t, d9d_model **out)
{
    (void)a;
    return small_llama_create(t, V, CAPACITY, out);
}
static d9d_status latent_create(d9d_arena *a, d9d_dtype t, d9d_model **out)
{
    (void)a;
    return small_latent_create(t, V, CAPACITY, out);
}

/* What keeps how much: numbers of a token, of which a key or value has `head`, and float32 ones of
 * a row. */
typedef struct kind {
    d9d_status (*create)(d9d_arena *a, d9d_dtype t, d9d_model **out);
    bool exact;
    uint64_t of_token, of_row, states;
    int64_t head; /* 0: not in 8 bits */
} kind;
static const kind kinds[] = {
    {dense_create, true, 3 * 2 * 2 * 16, 0, 0, 16},
    {moe_create, true, 3 * 2 * 2 * 16, 0, 0, 16},
    {hybrid_create, false, 2 * 2 * 8, 2 * 3 * (24 + 24 + 40), 2 * 4 * 12 * 10, 8},
    {llama_create, true, 2 * 2 * 2 * 10, 0, 0, 0},
    {latent_create, false, 2 * (9 + 4), 0, 0, 0},
};

/* Of a cache with a key or value of `head` elements in so many bytes. */
static void fixture_open(fixture *f, const kind *k, d9d_dtype t, d9d_kv_cache_dtype stored)
{
    const size_t size = d9d_dtype_size(t);
    const uint64_t of_token = stored == D9D_KV_CACHE_FP8
                                  ? k->of_token + k->of_token / (uint64_t)k->head * sizeof(float)
                                  : k->of_token * size;
    d9d_params params;

    *f = (fixture){.exact = k->exact && unit_device_is_cpu()};
    assert_ok(d9d_device_open(unit_device_name(), &f->dev));
    assert_ok(k->create(&f->arena, t, &f->model));
    assert_ok(d9d_module_bind(f->model->module));
    assert_ok(d9d_module_params(f->model->module, &f->arena, &params));
    assert_ok(d9d_module_materialise(f->model->module, f->dev, false));
    assert_ok(d9d_module_reset(f->model->module, 5));
    assert_ok(d9d_tape_create(f->dev, &f->tape));
    d9d_tape_set_recording(f->tape, false);
    assert_int_equal(d9d_kv_cache_bytes(f->model, stored, SLOTS, ROWS),
                     SLOTS * of_token + ROWS * (k->of_row * size + k->states * 4));
    assert_ok(d9d_kv_cache_create(f->model, f->dev, stored, SLOTS, ROWS, &f->cache));
}

static void fixture_close(fixture *f)
{
    d9d_kv_cache_release(&f->cache);
    d9d_tape_free(f->tape);
    d9d_model_free(f->model);
    assert_int_equal(d9d_device_memory(f->dev).in_use, 0);
    d9d_device_close(f->dev);
    d9d_arena_release(&f->arena);
}

static int32_t token(int64_t row, int64_t i)
{
    return (int32_t)d9d_rng_below((d9d_rng){7, (uint64_t)row}, (uint64_t)i, V);
}

/* Some tokens of a row, behind those that the cache has. */
typedef struct span {
    int64_t row, first, n;
} span;

static d9d_tensor upload(const fixture *f, const int32_t *x, d9d_shape shape)
{
    d9d_tensor t;

    assert_ok(d9d_tensor_from_host(f->dev, D9D_I32, shape, x, &t));
    return t;
}

static void set_prefill(const fixture *f, const span *p)
{
    const int32_t segment[] = {0, (int32_t)p->n, 0, (int32_t)(p->first + p->n)};
    d9d_tape_prefill prefill = {p->row * CAPACITY, p->first + p->n,
                                upload(f, segment, D9D_SHAPE(1, 4))};

    d9d_tape_set_prefill(f->tape, &prefill);
    d9d_tensor_release(&prefill.segments);
}

/* Logits of the last token of each span, with a cache or, of spans from 0 on, without. */
static void run(fixture *f, const span *spans, int n, bool cached, float *logits)
{
    int32_t ids[ROWS * CAPACITY], positions[ROWS * CAPACITY], at[ROWS * CAPACITY];
    int32_t segments[ROWS][4], rows[ROWS], pick[ROWS], t = 0;
    d9d_model_out out;

    for (int i = 0; i < n; i++) {
        const span *p = &spans[i];
        const int32_t slot = (int32_t)(cached ? p->row * CAPACITY : t);
        const int32_t segment[] = {t, (int32_t)p->n, slot, (int32_t)(p->first + p->n)};

        memcpy(segments[i], segment, sizeof(segment));
        for (int64_t j = p->first; j < p->first + p->n; j++, t++) {
            ids[t] = token(p->row, j);
            positions[t] = (int32_t)j;
            at[t] = slot + (int32_t)j;
        }
        rows[i] = (int32_t)p->row;
        pick[i] = t - 1;
    }

    d9d_tensor x[] = {upload(f, ids, D9D_SHAPE(1, t)), upload(f, positions, D9D_SHAPE(1, t)),
                      upload(f, at, D9D_SHAPE(t)),     upload(f, segments[0], D9D_SHAPE(n, 4)),
                      upload(f, pick, D9D_SHAPE(n)),   upload(f, rows, D9D_SHAPE(n))};
    const d9d_model_in in = {.ids = &x[0],
                             .positions = &x[1],
                             .segments = &x[3],
                             .cache = cached ? &f->cache : NULL,
                             .token_slots = &x[2],
                             .pick = &x[4],
                             .seq_slots = &x[5]};

    if (f->says_alone && cached && n == 1)
        set_prefill(f, spans);
    assert_ok(f->model->ops->forward(f->model, f->tape, &in, &out));
    assert_int_equal(d9d_tensor_numel(d9d_var_tensor(out.logits)), n * V);
    assert_ok(d9d_tensor_to_f32(d9d_var_tensor(out.logits), logits));
    for (int i = 0; i < 6; i++)
        d9d_tensor_release(&x[i]);
    d9d_tape_reset(f->tape);
}

static int best(const float *x)
{
    int at = 0;

    for (int i = 1; i < V; i++)
        at = x[i] > x[at] ? i : at;
    return at;
}

/* Of a model that is not exact the token that would be chosen, too. */
static void same(const fixture *f, const float *got, const float *want, d9d_dtype t)
{
    const double most = t == D9D_F32 ? unit_device_tolerance(1e-5, 1e-4) : 0.1;

    if (f->exact)
        assert_memory_equal(got, want, V * sizeof(*got));
    if (t == D9D_F32)
        assert_int_equal(best(got), best(want));
    for (int i = 0; i < V; i++)
        assert_true(fabs((double)got[i] - (double)want[i]) <= most);
}

/* Prompts alone, one of them in parts, in a row that had another before; then tokens of rows of
 * different lengths together. */
static void check(const kind *k, d9d_dtype t)
{
    fixture f;
    float got[ROWS][V], want[V];
    span step[ROWS];
    int64_t has[ROWS] = {3, 129, 0};

    fixture_open(&f, k, t, D9D_KV_CACHE_AUTO);
    run(&f, &(span){0, 0, 3}, 1, true, got[0]);
    run(&f, &(span){1, 0, 129}, 1, true, got[1]);
    run(&f, &(span){1, 0, 64}, 1, true, got[0]);
    run(&f, &(span){1, 64, 65}, 1, true, got[0]);
    if (unit_device_is_cpu())
        assert_memory_equal(got[0], got[1], sizeof(want));
    run(&f, &(span){1, 0, 129}, 1, false, want);
    same(&f, got[0], want, t);
    f.says_alone = true;
    run(&f, &(span){2, 0, 40}, 1, true, got[0]);
    run(&f, &(span){1, 0, 20}, 1, true, got[0]);
    run(&f, &(span){1, 20, 109}, 1, true, got[0]);
    same(&f, got[0], want, t);
    for (int64_t s = 0; s < 40; s++) {
        int n = 0;

        for (int64_t r = 0; r < ROWS; r++)
            if (has[r] < lengths[r])
                step[n++] = (span){r, has[r]++, 1};
        run(&f, step, n, true, got[0]);
        for (int i = 0; i < n; i++) {
            run(&f, &(span){step[i].row, 0, step[i].first + 1}, 1, false, want);
            same(&f, got[i], want, t);
        }
    }
    fixture_close(&f);
}

/* A sequence goes to another row and, after its own had something else, back. */
static void check_copy(const kind *k, d9d_kv_cache_dtype stored)
{
    const d9d_kv_cache_copy_opts there = {CAPACITY, 2 * CAPACITY, 20, 1, 2},
                                 back = {2 * CAPACITY, CAPACITY, 20, 2, 1};
    fixture f;
    float got[V], want[V];

    fixture_open(&f, k, D9D_F32, stored);
    run(&f, &(span){1, 0, 20}, 1, true, got);
    assert_ok(d9d_kv_cache_copy(f.model, f.dev, stored, &f.cache, &there));
    run(&f, &(span){1, 20, 1}, 1, true, want);
    run(&f, &(span){0, 0, 30}, 1, true, got);
    assert_ok(d9d_kv_cache_copy(
        f.model, f.dev, stored, &f.cache,
        &(d9d_kv_cache_copy_opts){.from_token = 0, .to_token = CAPACITY, .n = 30, .to_seq = 1}));
    run(&f, &(span){1, 20, 1}, 1, true, got);
    assert_memory_not_equal(got, want, sizeof(want));
    assert_ok(d9d_kv_cache_copy(f.model, f.dev, stored, &f.cache, &back));
    run(&f, &(span){1, 20, 1}, 1, true, got);
    assert_memory_equal(got, want, sizeof(want));
    fixture_close(&f);
}

static void a_copied_sequence_is_the_sequence(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof(kinds) / sizeof(kinds[0]); i++) {
        check_copy(&kinds[i], D9D_KV_CACHE_AUTO);
        if (kinds[i].head > 0)
            check_copy(&kinds[i], D9D_KV_CACHE_FP8);
    }
}

static void spans_give_what_whole_rows_do(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof(kinds) / sizeof(kinds[0]); i++) {
        check(&kinds[i], D9D_F32);
        check(&kinds[i], D9D_BF16);
    }
}

/* A cache in 8 bits: tokens one by one have the bits of the whole row at once, on the CPU and where
 * only attention looks back, and are close to those of the model's type. */
static void check_fp8(const kind *k, d9d_dtype t)
{
    enum { N = 40 };
    fixture f, plain;
    float got[V], want[V], exact[V];
    double off = 0, most = 0;

    fixture_open(&f, k, t, D9D_KV_CACHE_FP8);
    fixture_open(&plain, k, t, D9D_KV_CACHE_AUTO);
    run(&f, &(span){0, 0, 3}, 1, true, got);
    f.says_alone = plain.says_alone = true;
    for (int64_t i = 3; i < N; i++) {
        run(&f, &(span){0, i, 1}, 1, true, got);
        run(&f, &(span){0, 0, i + 1}, 1, true, want);
        run(&plain, &(span){0, 0, i + 1}, 1, true, exact);
        if (f.exact) /* else a code may be rounded to either side */
            same(&f, got, want, t);
        for (int j = 0; j < V; j++) {
            off = fmax(off, fabs((double)got[j] - (double)exact[j]));
            most = fmax(most, fabs((double)exact[j]));
        }
    }
    assert_true(off > 0 && off < most / 10);
    fixture_close(&f);
    fixture_close(&plain);
}

static void eight_bits_are_close(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof(kinds) / sizeof(kinds[0]); i++)
        if (kinds[i].head > 0) {
            check_fp8(&kinds[i], D9D_F32);
            check_fp8(&kinds[i], D9D_BF16);
        }
}

/* Latent features, and entries of a plugin that does not say that they narrow. */
static void other_entries_are_not_narrowed(void **state)
{
    d9d_status (*const create[])(d9d_arena *, d9d_dtype, d9d_model **) = {latent_create,
                                                                          llama_create};

    (void)state;
    for (int i = 0; i < 2; i++) {
        d9d_arena a = {0};
        d9d_kv_cache c;
        d9d_model *m;

        assert_ok(create[i](&a, D9D_F32, &m));
        assert_ok(d9d_kv_cache_check(m, D9D_KV_CACHE_AUTO));
        assert_fails_like(d9d_kv_cache_check(m, D9D_KV_CACHE_FP8), D9D_ENOTSUP,
                          i == 0 ? "its KV cache stores \"latent\" of each token, which cannot be "
                                   "in fp8; kv_cache_dtype auto"
                                 : "its KV cache stores \"k\" of each token");
        assert_fails_like(d9d_kv_cache_create(m, NULL, D9D_KV_CACHE_FP8, 8, 2, &c), D9D_ENOTSUP,
                          "cannot be in fp8");
        assert_int_equal(d9d_kv_cache_bytes(m, D9D_KV_CACHE_FP8, 8, 2), 0);
        d9d_model_free(m);
        d9d_arena_release(&a);
    }
}

/* Tables without the entry, or of a header that did not have it. */
static void models_without_a_cache_are_refused(void **state)
{
    const d9d_model_ops none = {.size = sizeof(none), .name = "mine"};
    const d9d_model_ops old = {.size = offsetof(d9d_model_ops, cache_spec), .name = "old"};
    const d9d_model models[] = {{.ops = &none, .layers = 2}, {.ops = &old, .layers = 2}};
    d9d_kv_cache c;

    (void)state;
    for (int i = 0; i < 2; i++) {
        assert_fails_like(d9d_kv_cache_check(&models[i], D9D_KV_CACHE_AUTO), D9D_ENOTSUP,
                          "this model has no KV cache");
        assert_fails_like(d9d_kv_cache_create(&models[i], NULL, D9D_KV_CACHE_AUTO, 8, 2, &c),
                          D9D_ENOTSUP, i == 0 ? "mine: " : "old: ");
        assert_int_equal(d9d_kv_cache_bytes(&models[i], D9D_KV_CACHE_AUTO, 8, 2), 0);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(spans_give_what_whole_rows_do),
        cmocka_unit_test(a_copied_sequence_is_the_sequence),
        cmocka_unit_test(eight_bits_are_close),
        cmocka_unit_test(other_entries_are_not_narrowed),
        cmocka_unit_test(models_without_a_cache_are_refused),
    };

    return cmocka_run_group_tests_name("cache", tests, NULL, NULL);
}
