/* test_family_flops.c - model FLOP of a token, by what is trained. */
#include "support/unit.h"

#include <string.h>

#include "d9d/model/model.h"
#include "d9d/nn/adapter.h"
#include "support/family.h"

/* Elements of a layer's matrices, of the first of them, and of the head; of attention's products
 * with each token of the sequence. */
enum {
    TOKENS = 3,
    QUERY = 4 * 6,
    LAYER = 2 * QUERY + 2 * 2 * 6 + 3 * 5 * 6,
    HEAD = 7 * 6,
    MIXER = 4
};

static d9d_model *make(d9d_arena *a)
{
    const d9d_model_opts options = {.dtype = D9D_F32};
    d9d_family_config c;
    d9d_model *m;

    assert_ok(family_make(a, &c,
                          "{\"model_type\": \"qwen3\", \"hidden_size\": 6, "
                          "\"num_hidden_layers\": 2, \"num_attention_heads\": 2, "
                          "\"num_key_value_heads\": 1, \"head_dim\": 2, \"vocab_size\": 7, "
                          "\"intermediate_size\": 5, \"tie_word_embeddings\": false}"));
    assert_ok(d9d_family_create(&c, D9D_WHOLE_MODEL, &options, &m));
    return m;
}

/* Train the parameters with this in their name alone. */
static d9d_status train(void *part, d9d_param *p)
{
    p->spec.trainable = strstr(p->name, part) != NULL;
    return D9D_OK;
}

static d9d_model *make_trained(d9d_arena *a, const char *part)
{
    d9d_model *m = make(a);

    assert_ok(d9d_module_bind(m->module));
    assert_ok(d9d_module_each(m->module, train, (void *)(uintptr_t)part));
    return m;
}

/* LoRA for the linear layers below modules with this in their name. */
static d9d_status adapt(void *part, const char *name, d9d_module *module)
{
    if (strstr(name, part) == NULL || d9d_adapter_matrix(module) == NULL)
        return D9D_OK;
    return d9d_adapter_add(module, &d9d_adapter_lora, &(d9d_adapter_opts){.r = 1, .alpha = 1});
}

static void check(d9d_model *m, double layers, double head)
{
    assert_true(d9d_model_flops(m, TOKENS) == layers + head);
    d9d_model_free(m);
}

static void all_is_trained(void **state)
{
    d9d_arena a = {0};

    (void)state;
    check(make(&a), 2 * 6 * (LAYER + MIXER * TOKENS), 6 * HEAD);
    d9d_arena_release(&a);
}

static void frozen_matrices_have_no_gradient_of_their_own(void **state)
{
    const double forward = 2 * (LAYER + MIXER * TOKENS),
                 first = 2 * QUERY + 4 * (LAYER - QUERY) + 6 * MIXER * TOKENS,
                 next = 4 * LAYER + 6 * MIXER * TOKENS;
    d9d_arena a = {0};
    d9d_model *m;

    (void)state;
    check(make_trained(&a, "none"), 2 * forward, 2 * HEAD);
    m = make_trained(&a, "none");
    assert_ok(d9d_module_walk(m->module, adapt, (void *)(uintptr_t) "layers."));
    check(m, first + next, 4 * HEAD);
    /* Nothing before the second layer is trained. */
    m = make_trained(&a, "none");
    assert_ok(d9d_module_walk(m->module, adapt, (void *)(uintptr_t) "layers.1."));
    check(m, forward + first, 4 * HEAD);
    check(make_trained(&a, "lm_head"), 2 * forward, 4 * HEAD);
    check(make_trained(&a, "embedding"), 2 * next, 4 * HEAD);
    d9d_arena_release(&a);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(all_is_trained),
        cmocka_unit_test(frozen_matrices_have_no_gradient_of_their_own),
    };

    return cmocka_run_group_tests_name("family_flops", tests, NULL, NULL);
}
