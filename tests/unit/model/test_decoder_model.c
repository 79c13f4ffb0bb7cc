/* test_decoder_model.c - d9d_decoder_create(): the modules of each kind and shape. */
#include "support/unit.h"

#include <stddef.h>

#include "d9d/model/decoder_model.h"

enum { HIDDEN = 4, LAYERS = 4 };

typedef struct layer {
    d9d_decoder_layer base;
    d9d_block_norm norm;
} layer;

static d9d_status init(d9d_decoder_layer *base, const d9d_block_opts *opts)
{
    D9D_BLOCK_ADD(&base->module, "norm", norm, &((layer *)base)->norm, opts, HIDDEN, 1e-6f, false);
    return D9D_OK;
}

static d9d_status forward(d9d_decoder_layer *base, d9d_tape *t, const d9d_model_layer_in *in,
                          d9d_var **y)
{
    return d9d_block_norm_forward(&((layer *)base)->norm, t, in->x, y);
}

static double ten(const d9d_decoder_layer *l, int64_t s)
{
    (void)l, (void)s;
    return 10;
}

static double a_token_with_each(const d9d_decoder_layer *l, int64_t s)
{
    (void)l;
    return (double)s;
}

static const d9d_decoder_kind plain = {sizeof(plain), .name = "plain", .layer = sizeof(layer),
                                       .init = init, .forward = forward};

static d9d_model *make(const d9d_decoder_kind *kind, const d9d_decoder_shape *kind_shape,
                       d9d_stage stage)
{
    d9d_decoder_shape shape = *kind_shape;
    d9d_model *m;

    shape.layers = LAYERS;
    shape.hidden = HIDDEN;
    shape.vocab = 7;
    assert_ok(
        d9d_decoder_create(kind, &shape, NULL, stage, &(d9d_model_opts){.dtype = D9D_F32}, &m));
    assert_ok(d9d_module_bind(m->module));
    return m;
}

static d9d_status count(void *n, d9d_param *p)
{
    (void)p;
    ++*(int *)n;
    return D9D_OK;
}

/* Parameters and units, and whether the embedding is there on two stages. */
static void check(d9d_model *m, int params, size_t units, bool tied)
{
    int n = 0;

    assert_ok(d9d_module_each(m->module, count, &n));
    assert_int_equal(n, params);
    assert_int_equal(m->n_units, units);
    assert_true((m->tied != NULL) == tied);
    d9d_model_free(m);
}

static void a_tied_head_is_the_embedding(void **state)
{
    static const d9d_decoder_shape own = {0}, tied = {.tied = true};
    const d9d_stage first = {0, 2}, last = {1, 2};
    d9d_model *m;

    (void)state;
    check(make(&plain, &own, D9D_WHOLE_MODEL), LAYERS + 3, LAYERS + 3, false);
    m = make(&plain, &tied, D9D_WHOLE_MODEL);
    assert_ptr_equal(m->units[0], m->units[m->n_units - 1]);
    check(m, LAYERS + 2, LAYERS + 3, false);
    check(make(&plain, &tied, first), LAYERS / 2 + 1, LAYERS / 2 + 1, true);
    check(make(&plain, &tied, last), LAYERS / 2 + 2, LAYERS / 2 + 2, true);
}

static d9d_status check_name(void *name, d9d_param *p)
{
    assert_string_equal(p->name, name);
    return D9D_OK;
}

static void learnt_positions_are_on_the_first_stage(void **state)
{
    static const d9d_decoder_shape shape = {.learnt_positions = 9, .tied = true};
    d9d_model *m;

    (void)state;
    m = make(&plain, &shape, D9D_WHOLE_MODEL);
    assert_ok(
        d9d_module_each(m->units[1], check_name, (void *)(uintptr_t) "embed_positions.weight"));
    check(m, LAYERS + 3, LAYERS + 4, false);
    check(make(&plain, &shape, (d9d_stage){0, 2}), LAYERS / 2 + 2, LAYERS / 2 + 2, true);
    check(make(&plain, &shape, (d9d_stage){1, 2}), LAYERS / 2 + 2, LAYERS / 2 + 2, true);
}

static void without_a_head_it_ends_with_the_norm(void **state)
{
    static const d9d_decoder_shape shape = {.no_head = true, .tied = true};

    (void)state;
    check(make(&plain, &shape, D9D_WHOLE_MODEL), LAYERS + 2, LAYERS + 2, false);
    check(make(&plain, &shape, (d9d_stage){1, 2}), LAYERS / 2 + 1, LAYERS / 2 + 1, false);
}

/* What a kind has behind its size is another's memory. */
static void a_kind_is_read_as_far_as_its_size(void **state)
{
    d9d_decoder_kind kind = plain;
    d9d_model *m;

    (void)state;
    kind.flops_per_token = ten;
    m = make(&kind, &(d9d_decoder_shape){0}, D9D_WHOLE_MODEL);
    assert_true(d9d_model_flops(m, 1) == 10 * LAYERS + 6 * HIDDEN * 7);
    d9d_model_free(m);
    kind.size = offsetof(d9d_decoder_kind, ffn);
    m = make(&kind, &(d9d_decoder_shape){0}, D9D_WHOLE_MODEL);
    assert_true(d9d_model_flops(m, 1) == 6 * HIDDEN * 7);
    d9d_model_free(m);
}

/* Two rows of five positions: documents of 1 and 3 and padding, and one document of 2. */
static void a_batch_has_the_flop_of_its_documents(void **state)
{
    static const int32_t bounds[] = {0, 1, 4, 5, 7, 10};
    static const int64_t lengths[] = {4, 2};
    d9d_batch b = {.seqs = 2, .length = 5, .lengths = lengths};
    d9d_decoder_kind kind = plain;
    const double head = 6 * HIDDEN * 7;
    d9d_model *m;

    (void)state;
    kind.flops_per_token = a_token_with_each;
    m = make(&kind, &(d9d_decoder_shape){0}, D9D_WHOLE_MODEL);
    assert_true(d9d_model_batch_flops(m, &b) == LAYERS * (4 * 4 + 2 * 2) + 6 * head);
    b.documents = 5;
    b.cu_seqlens = bounds;
    assert_true(d9d_model_batch_flops(m, &b) == LAYERS * (1 + 3 * 3 + 2 * 2) + 6 * head);
    d9d_model_free(m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_tied_head_is_the_embedding),
        cmocka_unit_test(learnt_positions_are_on_the_first_stage),
        cmocka_unit_test(without_a_head_it_ends_with_the_norm),
        cmocka_unit_test(a_kind_is_read_as_far_as_its_size),
        cmocka_unit_test(a_batch_has_the_flop_of_its_documents),
    };

    return cmocka_run_group_tests_name("decoder model", tests, NULL, NULL);
}
