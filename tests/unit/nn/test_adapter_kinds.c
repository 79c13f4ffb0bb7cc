/* test_adapter_kinds.c - kinds of adapters with a forward of their own: what each promises, and
 * what is wrong with one that is refused. */
#include "support/small_adapters.h"
#include "support/unit.h"

#include <string.h>

#include "d9d/op/math.h"
#include "d9d/op/op.h"

static void each_keeps_its_promises(void **state)
{
    const struct {
        const d9d_adapter_kind *kind;
        int64_t r;
    } cases[] = {
        {small_loha_kind, 3}, {small_oft_kind, 4}, {small_oft_kind, 12}, {small_vera_kind, 5}};
    char fault[ADAPTER_FAULT_MAX];

    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++)
        assert_string_equal(adapter_kind_fault(cases[i].kind, cases[i].r, fault), "");
}

/* --- planted faults ----------------------------------------------------------------------------
 */

/* Twice the result, of which backward sees one half. */
static d9d_status forward_detached(const d9d_op_adapter *a, d9d_var *x, d9d_var **y)
{
    d9d_var *again;

    D9D_TRY(small_vera_kind->forward(a, x, y));
    D9D_TRY(d9d_op_detach(a->tape, *y, &again));
    return d9d_op_add(a->tape, *y, again, y);
}

static d9d_status merge_nothing(const d9d_adapter_arrays *a, int64_t row, float *w)
{
    (void)a, (void)row, (void)w;
    return D9D_OK;
}

static void finds_faults(void **state)
{
    d9d_adapter_kind k = *small_vera_kind;
    char fault[ADAPTER_FAULT_MAX];

    (void)state;
    k.forward = forward_detached;
    unit_check_has(adapter_kind_fault(&k, 5, fault), "vera: gradients of 7 rows are off", __FILE__,
                   __LINE__);
    k = *small_vera_kind;
    k.merge = merge_nothing;
    unit_check_has(adapter_kind_fault(&k, 5, fault), "vera: merged it is off by", __FILE__,
                   __LINE__);
    k = *small_loha_kind;
    k.params[3].init = D9D_INIT_UNIFORM;
    assert_string_equal(adapter_kind_fault(&k, 3, fault), "loha: a new adapter changes y");
}

/* --- kinds that are refused --------------------------------------------------------------------
 */

enum { IN = 4, OUT = 6 };

static const d9d_adapter_kind *broken_of(const d9d_adapter_kind *good, d9d_adapter_kind *copy)
{
    *copy = *good;
    return copy;
}

static void refused(const d9d_adapter_kind *kind, const char *sentence)
{
    assert_fails(d9d_adapter_kind_check(kind), D9D_ECONFIG, sentence);
}

static void refuses_parameters(void **state)
{
    d9d_adapter_kind k;

    (void)state;
    broken_of(small_loha_kind, &k);
    k.params[1].dim[0] = 9;
    refused(&k, "loha: parameter hada_w1_b has 9 as dimension 0, and those are below 6");
    k.params[1].dim[0] = D9D_ADAPTER_IN;
    refused(&k, "loha: both dimensions of parameter hada_w1_b are those of inputs, and ranks that "
                "divide these divide one");
    broken_of(small_loha_kind, &k);
    k.params[0].init = 9;
    refused(&k, "loha: parameter hada_w1_a begins in way 9, and those are up to 3");
    broken_of(small_loha_kind, &k);
    k.params[0].init_scale = -1;
    refused(&k, "loha: parameter hada_w1_a begins with the scale -1, which is no number from 0 on");
    broken_of(small_loha_kind, &k);
    k.params[3].name = "hada_w1_b";
    refused(&k, "loha: parameters 1 and 3 are both called hada_w1_b");
    broken_of(small_loha_kind, &k);
    k.params[3].file = "hada_w1_b";
    refused(&k,
            "loha: parameters hada_w1_b and hada_w2_b are both called hada_w1_b in peft's files");
    memset(k.params, 0, sizeof(k.params));
    refused(&k, "loha: has no parameters");
}

static void refuses_shared_arrays(void **state)
{
    d9d_adapter_kind k;

    (void)state;
    broken_of(small_vera_kind, &k);
    k.params[0].frozen = false;
    refused(&k, "vera: parameter vera_A is shared and trained; what matrices share stays as it is");
    broken_of(small_vera_kind, &k);
    k.params[0].dim[0] = D9D_ADAPTER_OUT;
    refused(&k, "vera: parameter vera_A is shared, and one of its dimensions is not that of inputs "
                "or outputs and the other r");
    broken_of(small_vera_kind, &k);
    k.params[0].file = NULL;
    refused(&k, "vera: parameter vera_A is shared, and has no name in peft's files");
    broken_of(small_vera_kind, &k);
    k.draw = NULL;
    refused(&k, "vera: parameter vera_A is shared, and the kind has no draw()");
    broken_of(small_vera_kind, &k);
    k.params[2].name = k.params[3].name = NULL;
    refused(&k, "vera: shares all its parameters, and a matrix needs one of its own");
}

static void refuses_tables(void **state)
{
    d9d_adapter_kind k;

    (void)state;
    broken_of(small_oft_kind, &k);
    k.size -= 8;
    assert_fails_like(d9d_adapter_kind_check(&k), D9D_ECONFIG,
                      "its size comes first, sizeof the struct");
    broken_of(small_oft_kind, &k);
    k.name = NULL;
    refused(&k, "a kind of adapters has no name");
    broken_of(&d9d_adapter_lora, &k);
    k.params[D9D_ADAPTER_B].name = NULL;
    refused(&k, "lora: has A and no B, and a product has two factors");
    broken_of(&d9d_adapter_lora, &k);
    k.reads_matrix = true;
    refused(&k, "lora: has reads_matrix and no forward");
    broken_of(&d9d_adapter_lora, &k);
    k.params[D9D_ADAPTER_A].dim[0] = D9D_ADAPTER_RANK;
    refused(&k,
            "lora: parameter lora_A.weight has dimensions, which the role gives unless the kind "
            "has a forward");
}

static void refuses_files(void **state)
{
    d9d_adapter_files files = *small_oft_kind->files;
    d9d_adapter_kind k;

    (void)state;
    broken_of(small_oft_kind, &k);
    k.files = &files;
    k.params[0].dim[0] = D9D_ADAPTER_IN;
    k.params[0].dim[1] = D9D_ADAPTER_NO_DIM;
    refused(&k, "oft: its files have the rank \"oft_block_size\", and no parameter a size from "
                "which it could be read");
    broken_of(small_oft_kind, &k);
    k.files = &files;
    files.rank = NULL;
    refused(&k, "oft: a size is that of r, and its files have no rank");
    files = *small_oft_kind->files;
    files.seed = "seed";
    refused(&k, "oft: its files have \"seed\", and no parameter is shared");
    broken_of(small_vera_kind, &k);
    files = *small_vera_kind->files;
    files.one_rank = false;
    k.files = &files;
    refused(&k, "vera: arrays are shared, and its files have not one rank");
}

/* --- places ------------------------------------------------------------------------------------
 */

static void blocks_have_sizes_and_are_divided_with_inputs(void **state)
{
    const d9d_shape matrix = D9D_SHAPE(OUT, IN),
                    got = d9d_adapter_shape(small_oft_kind, 0, &matrix, 2);
    d9d_module m;
    d9d_param w = {0};

    (void)state;
    assert_true(d9d_shape_equal(&got, &D9D_SHAPE(2, 1)));
    assert_int_equal(d9d_adapter_shared_dim(small_oft_kind, 0, &matrix, 0), -1);
    assert_int_equal(d9d_adapter_shared_dim(small_oft_kind, 0, &matrix, 1), 0);
    d9d_module_init(&m);
    assert_ok(d9d_module_param(&m, "weight", &w, D9D_F32, matrix, D9D_INIT_NORMAL, 1));
    w.spec.adaptable = true;
    assert_fails(d9d_adapter_add(&m, small_oft_kind, &(d9d_adapter_opts){.r = 3, .alpha = 3}),
                 D9D_ECONFIG, "oft: blocks of 3 do not divide 4 inputs");
    assert_fails(d9d_adapter_add(&m, small_oft_kind, &(d9d_adapter_opts){.r = 0, .alpha = 3}),
                 D9D_ECONFIG, "oft: blocks of 0 do not divide 4 inputs");
    d9d_module_release(&m);
}

/* Rows and columns [1, 3) of [3, 4]; the last two of a vector. */
static void a_part_is_cut_out(void **state)
{
    static const float all[] = {0, 1, 2, 3, 10, 11, 12, 13, 20, 21, 22, 23};
    static const int64_t first[] = {1, 1};
    float got[4];

    (void)state;
    d9d_adapter_shared_part(all, 4, &D9D_SHAPE(2, 2), first, got);
    assert_memory_equal(got, ((const float[]){11, 12, 21, 22}), sizeof(got));
    d9d_adapter_shared_part(all, 1, &D9D_SHAPE(2), first, got);
    assert_memory_equal(got, ((const float[]){1, 2}), 2 * sizeof(*got));
}

/* --- one parameter of several matrices ---------------------------------------------------------
 */

/* A model of linear layers with VeRA, which are called 0, 1, ... */
enum { LAYERS = 7, A = 0, B = 1 };
typedef struct linear {
    int64_t out, in;
    d9d_parallel_style style;
    int64_t units;
} linear;
typedef struct layers {
    d9d_module root, module[LAYERS];
    d9d_param weight[LAYERS];
    d9d_params params;
    d9d_arena arena;
} layers;

static void layers_open(layers *l, const linear *of, int first)
{
    memset(l, 0, sizeof(*l));
    d9d_module_init(&l->root);
    for (int i = first; i < LAYERS; i++) {
        d9d_param *w = &l->weight[i];

        d9d_module_init(&l->module[i]);
        assert_ok(d9d_module_param(&l->module[i], "weight", w, D9D_F32,
                                   D9D_SHAPE(of[i].out, of[i].in), D9D_INIT_NORMAL, 1));
        w->spec.adaptable = true;
        w->spec.parallel = (d9d_param_parallel){.style = of[i].style, .units = of[i].units};
        assert_ok(d9d_adapter_add(&l->module[i], small_vera_kind,
                                  &(d9d_adapter_opts){.r = 3, .alpha = 3, .seed = 5}));
        assert_ok(d9d_module_child(&l->root, (const char[]){(char)('0' + i), '\0'}, &l->module[i]));
    }
    assert_ok(d9d_adapter_share(&l->root));
    assert_ok(d9d_module_bind(&l->root));
    assert_ok(d9d_module_params(&l->root, &l->arena, &l->params));
}

static void layers_close(layers *l)
{
    d9d_module_release(&l->root);
    for (int i = 0; i < LAYERS; i++)
        d9d_module_release(&l->module[i]);
    d9d_arena_release(&l->arena);
}

static const char *name_of(const layers *l, int layer, int i)
{
    return l->weight[layer].peft.adapter->param[i]->name;
}

static const linear some_layers[LAYERS] = {
    {8, 4, D9D_COLWISE, 2}, {8, 4, D9D_COLWISE, 2}, /* the same */
    {4, 8, D9D_ROWWISE, 2}, {4, 8, D9D_ROWWISE, 2}, /* the same */
    {8, 4, D9D_ROWWISE, 0},                         /* divided in the other dimension */
    {8, 4, D9D_COLWISE, 4},                         /* its rows in other units */
    {8, 6, D9D_COLWISE, 2},
};

static void matrices_with_the_same_part_have_one_parameter(void **state)
{
    static const char *const a[LAYERS] = {"0.vera_A", "0.vera_A", "2.vera_A", "2.vera_A",
                                          "4.vera_A", "0.vera_A", "6.vera_A"};
    static const char *const b[LAYERS] = {"0.vera_B", "0.vera_B", "2.vera_B", "2.vera_B",
                                          "4.vera_B", "5.vera_B", "0.vera_B"};
    layers l;

    (void)state;
    layers_open(&l, some_layers, 0);
    for (int i = 0; i < LAYERS; i++) {
        assert_string_equal(name_of(&l, i, A), a[i]);
        assert_string_equal(name_of(&l, i, B), b[i]);
        assert_true(d9d_adapter_is_shared(&l.weight[i], A));
        assert_false(d9d_adapter_is_shared(&l.weight[i], 2));
    }
    assert_int_equal(l.params.n, 3 * LAYERS + 8); /* W and two vectors; four of A, four of B */
    assert_ptr_equal(l.weight[1].peft.adapter->param[A], l.weight[0].peft.adapter->param[A]);
    layers_close(&l);
}

static void a_stage_has_the_names_of_the_whole_model(void **state)
{
    layers whole, stage;

    (void)state;
    layers_open(&whole, some_layers, 0);
    layers_open(&stage, some_layers, 3);
    assert_string_equal(name_of(&stage, 3, A), "3.vera_A");
    d9d_adapter_shared_set_names(&whole.params, &stage.params);
    for (int i = 3; i < LAYERS; i++)
        for (int k = A; k <= B; k++) {
            const d9d_param *p = stage.weight[i].peft.adapter->param[k],
                            *q = whole.weight[i].peft.adapter->param[k];

            assert_string_equal(p->name, q->name);
            assert_true(p->id == q->id);
            /* The first matrix's stage has the primary one. */
            assert_int_equal(p->placement.is_primary, q->name[0] >= '3');
        }
    assert_true(stage.weight[3].placement.is_primary);
    layers_close(&stage);
    layers_close(&whole);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_keeps_its_promises),
        cmocka_unit_test(finds_faults),
        cmocka_unit_test(refuses_parameters),
        cmocka_unit_test(refuses_shared_arrays),
        cmocka_unit_test(refuses_tables),
        cmocka_unit_test(refuses_files),
        cmocka_unit_test(blocks_have_sizes_and_are_divided_with_inputs),
        cmocka_unit_test(a_part_is_cut_out),
        cmocka_unit_test(matrices_with_the_same_part_have_one_parameter),
        cmocka_unit_test(a_stage_has_the_names_of_the_whole_model),
    };

    return cmocka_run_group_tests_name("adapter_kinds", tests, NULL, NULL);
}
