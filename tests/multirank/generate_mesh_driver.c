/* generate_mesh_driver.c - launched by tests/multirank/generate_mesh.bats: prefill and decode in
 * several steps by a block with its heads sharded over all ranks, compared with the whole block on
 * the whole sequences. */
#include "support/ranks.h"
#include "support/unit.h"
#include "support/unit_device.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "d9d/model/model.h"
#include "d9d/parallel/parallel_plan.h"

enum { ROWS = 4, T = 144, H = 24, CALLS = 2, CAPACITY = 70 };

/* Tokens of each row in each call; where a row begins, the number of its tokens in all. */
static const int32_t n_new[CALLS][ROWS] = {{4, 30, 60, 2}, {1, 37, 0, 10}};
static const int32_t starts[ROWS] = {0, 5, 72, 132}, lengths[ROWS] = {5, 67, 60, 12};

/* --- the blocks ------------------------------------------------------------------------------- */

typedef struct net {
    d9d_groups cut;
    d9d_module *root;
    d9d_block_gated_delta delta;
    d9d_block_mla latent;
    d9d_block_rope rope;
    d9d_tensor cache[D9D_BLOCK_CACHE_MAX];
} net;

static d9d_status delta_init(net *n, const d9d_block_opts *opts)
{
    const d9d_block_gated_delta_shape shape = {.hidden = H,
                                               .key_heads = 4,
                                               .value_heads = 8,
                                               .key_dim = 6,
                                               .value_dim = 5,
                                               .conv_width = 4,
                                               .norm_eps = 1e-6f};

    n->root = &n->delta.module;
    return d9d_block_gated_delta_init(&n->delta, opts, &shape);
}
static void delta_cache_spec(const net *n, d9d_block_cache_spec *out)
{
    d9d_block_gated_delta_cache_spec(&n->delta, out);
}
static d9d_status delta_forward(net *n, d9d_tape *t, d9d_var *x, const d9d_model_layer_in *in,
                                d9d_var **y)
{
    return d9d_block_gated_delta_forward(&n->delta, t, x, in->positions, in->segments, in->cache, x,
                                         y);
}

static d9d_status latent_init(net *n, const d9d_block_opts *opts)
{
    const d9d_block_mla_shape shape = {.hidden = H,
                                       .heads = 4,
                                       .q_rank = 10,
                                       .kv_rank = 9,
                                       .nope_dim = 5,
                                       .rope_dim = 4,
                                       .v = 6,
                                       .rope = &n->rope,
                                       .norm_eps = 1e-6f};

    n->root = &n->latent.module;
    return d9d_block_mla_init(&n->latent, opts, &shape);
}
static void latent_cache_spec(const net *n, d9d_block_cache_spec *out)
{
    d9d_block_mla_cache_spec(&n->latent, out);
}
static d9d_status latent_forward(net *n, d9d_tape *t, d9d_var *x, const d9d_model_layer_in *in,
                                 d9d_var **y)
{
    return d9d_block_mla_forward(&n->latent, t, x, in->positions, in->segments, in->cache, x, y);
}

/* Parameters with heads along rows; o_proj has them along columns, all others are replicated. */
typedef struct kind {
    d9d_status (*init)(net *n, const d9d_block_opts *opts);
    void (*cache_spec)(const net *n, d9d_block_cache_spec *out);
    d9d_status (*forward)(net *n, d9d_tape *t, d9d_var *x, const d9d_model_layer_in *in,
                          d9d_var **y);
    const char *whole[4]; /* ends with NULL */
} kind;
static const kind kinds[] = {
    {delta_init, delta_cache_spec, delta_forward, {"out_norm."}},
    {latent_init, latent_cache_spec, latent_forward, {"down_proj.", "norm."}},
};

#define SUMMED (D9D_AXES_REPLICATE | D9D_AXIS(TP))
static const d9d_param_sharding dense = {0, 0, D9D_AXES_SHARD, SUMMED};
static const d9d_param_sharding columns = {D9D_AXIS(TP), 0, D9D_AXES_SHARD, D9D_AXES_REPLICATE};
static const d9d_param_sharding rows = {D9D_AXIS(TP), 1, D9D_AXES_SHARD, D9D_AXES_REPLICATE};

typedef struct placer {
    const kind *k;
    d9d_mesh *mesh;
} placer;

static d9d_status place(void *arg, d9d_param *p)
{
    const placer *w = arg;
    const d9d_param_sharding *sharding = strstr(p->name, "o_proj.") != NULL ? &rows : &columns;

    for (int i = 0; w->k->whole[i] != NULL; i++)
        sharding = strstr(p->name, w->k->whole[i]) != NULL ? &dense : sharding;
    return d9d_param_sharding_apply(p, w->mesh, sharding);
}

static void net_open(const ranks *w, const kind *k, bool part, net *n)
{
    const d9d_block_opts opts = {.dtype = D9D_F32, .groups = &n->cut};
    const placer by = {k, w->mesh};
    d9d_block_cache_spec spec;

    *n = (net){.rope = {.base = 100, .features = 4}};
    assert_ok(k->init(n, &opts));
    assert_ok(d9d_module_bind(n->root));
    if (part) {
        assert_ok(d9d_mesh_group(w->mesh, D9D_AXIS(TP), &n->cut.tp));
        assert_ok(d9d_module_each(n->root, place, (void *)(uintptr_t)&by));
    }
    assert_ok(d9d_module_materialise(n->root, w->dev, false));
    assert_ok(d9d_module_reset(n->root, 5));
    assert_ok(d9d_block_rope_prepare(&n->rope, w->dev));
    k->cache_spec(n, &spec);
    for (size_t i = 0; part && i < spec.n; i++) {
        const d9d_block_cache_entry *c = &spec.item[i];
        d9d_shape all = {c->shape.ndim + 1, {c->per_seq ? ROWS : ROWS * CAPACITY}};

        memcpy(&all.dim[1], c->shape.dim, (size_t)c->shape.ndim * sizeof(*all.dim));
        assert_ok(d9d_tensor_alloc(w->dev, c->dtype, all, &n->cache[i]));
    }
}

static void net_close(net *n)
{
    d9d_module_release(n->root);
    d9d_block_rope_release(&n->rope);
    for (int i = 0; i < D9D_BLOCK_CACHE_MAX; i++)
        d9d_tensor_release(&n->cache[i]);
}

/* --- calls ------------------------------------------------------------------------------------ */

/* A call: tokens of all rows, and their positions in the whole. */
typedef struct call {
    int64_t n, of[T];
    int32_t position[T], at[T], segment[ROWS][4], row[ROWS];
} call;

/* Chunk `number` of each row, in slots; -1: whole rows. */
static void call_make(int number, call *c)
{
    *c = (call){0};
    for (int32_t r = 0; r < ROWS; r++) {
        const int32_t before = number == 1 ? n_new[0][r] : 0;
        const int32_t n = number < 0 ? lengths[r] : n_new[number][r];
        const int32_t first = number < 0 ? starts[r] : r * CAPACITY;
        const int32_t segment[] = {(int32_t)c->n, n, first, before + n};

        memcpy(c->segment[r], segment, sizeof(segment));
        c->row[r] = ROWS - 1 - r;
        for (int32_t i = before; i < before + n; i++, c->n++) {
            c->of[c->n] = starts[r] + i;
            c->position[c->n] = i;
            c->at[c->n] = first + i;
        }
    }
}

/* y of this rank's tokens of the call. */
static d9d_tensor run(const ranks *w, const kind *k, net *n, const call *c, bool cached)
{
    const int there = d9d_comm_size(n->cut.tp);
    const int64_t each = c->n / there, first = there > 1 ? w->rank * each : 0;
    d9d_tensor all = ranks_numbers(w, D9D_F32, D9D_SHAPE(T, H), 1), x, t[4], y;
    d9d_block_cache cache = {.token_slots = &t[2], .seq_slots = &t[3]};
    const d9d_model_layer_in in = {
        .positions = &t[0], .segments = &t[1], .cache = cached ? &cache : NULL};
    float *host = ranks_host(&all), *local = calloc((size_t)(each * H) + 1, sizeof(*local));
    d9d_var *v, *out;
    d9d_tape *tape;

    assert_non_null(local);
    for (int64_t i = 0; i < each; i++)
        memcpy(local + i * H, host + c->of[first + i] * H, H * sizeof(*local));
    for (int i = 0; i < D9D_BLOCK_CACHE_MAX; i++)
        cache.entry[i] = &n->cache[i];
    assert_ok(d9d_tensor_from_host(
        w->dev, D9D_F32, there > 1 ? D9D_SHAPE(each, H) : D9D_SHAPE(1, each, H), local, &x));
    assert_ok(d9d_tensor_from_host(w->dev, D9D_I32, D9D_SHAPE(1, c->n), c->position, &t[0]));
    assert_ok(d9d_tensor_from_host(w->dev, D9D_I32, D9D_SHAPE(ROWS, 4), c->segment, &t[1]));
    assert_ok(d9d_tensor_from_host(w->dev, D9D_I32, D9D_SHAPE(c->n), c->at, &t[2]));
    assert_ok(d9d_tensor_from_host(w->dev, D9D_I32, D9D_SHAPE(ROWS), c->row, &t[3]));
    assert_ok(d9d_tape_create(w->dev, &tape));
    d9d_tape_set_recording(tape, false);
    assert_ok(d9d_tape_leaf(tape, &x, false, &v));
    assert_ok(k->forward(n, tape, v, &in, &out));
    y = d9d_tensor_ref(d9d_var_tensor(out));
    d9d_tape_free(tape);
    for (int i = 0; i < 4; i++)
        d9d_tensor_release(&t[i]);
    d9d_tensor_release(&x);
    d9d_tensor_release(&all);
    free(host);
    free(local);
    return y;
}

static void compare(const ranks *w, const call *c, const d9d_tensor *got, const float *whole)
{
    const int64_t each = d9d_tensor_numel(got) / H, first = each < c->n ? w->rank * each : 0;
    float *y = ranks_host(got);

    for (int64_t i = 0; i < each; i++)
        ranks_close_to("y", y + i * H, whole + c->of[first + i] * H, H,
                       unit_device_tolerance(1e-5, 1e-4));
    free(y);
}

static void parts_of_rows_and_heads_are_the_whole(void **state)
{
    const ranks *w = *state;

    for (size_t i = 0; i < sizeof(kinds) / sizeof(*kinds); i++) {
        net whole, part;
        d9d_tensor y;
        float *want;
        call c;

        net_open(w, &kinds[i], false, &whole);
        net_open(w, &kinds[i], true, &part);
        call_make(-1, &c);
        y = run(w, &kinds[i], &whole, &c, false);
        want = ranks_host(&y);
        d9d_tensor_release(&y);
        for (int again = 0; again < 2; again++) /* rows restart in slots that others had */
            for (int number = 0; number < CALLS; number++) {
                call_make(number, &c);
                y = run(w, &kinds[i], &part, &c, true);
                compare(w, &c, &y, want);
                d9d_tensor_release(&y);
            }
        free(want);
        net_close(&whole);
        net_close(&part);
    }
}

int main(void)
{
    ranks w;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_prestate(parts_of_rows_and_heads_are_the_whole, &w),
    };

    ranks_open_tensor(&w);
    return ranks_run(&w, "past", tests, sizeof(tests) / sizeof(*tests));
}
