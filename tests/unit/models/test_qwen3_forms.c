/* test_qwen3_forms.c - forms of Qwen3 that no HuggingFace checkpoint has: shared experts, several
 * vocabulary splits, pipeline stages.  Each is compared with a model that must compute the same. */
#include "support/unit.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "d9d/base/rng.h"
#include "d9d/model/model.h"
#include "d9d/models/models.h"
#include "support/family.h"

enum { B = 2, S = 7, T = B * S, V = 23 };

typedef struct fixture {
    d9d_device *dev;
    d9d_model *model;
    d9d_params params;
    d9d_arena arena;
    d9d_tape *tape;
    d9d_tensor ids, positions, labels;
} fixture;

static const d9d_block_vocab_split one_split[] = {{"all", V}};
static const d9d_block_vocab_split two_splits[] = {{"regular", 17}, {"special", V - 17}};

static const char dense[] = "\"model_type\": \"qwen3\"";
#define MIXTURE                                                                                    \
    "\"model_type\": \"qwen3_moe\", \"norm_topk_prob\": true, \"num_experts\": 4, "                \
    "\"num_experts_per_tok\": 2, \"moe_intermediate_size\": 9, "                                   \
    "\"shared_expert_intermediate_size\": 14"
static const char mixture[] = MIXTURE;
static const char gated_mixture[] = MIXTURE ", \"shared_expert_gate\": true";

static d9d_family_config config_of(const char *form, d9d_arena *a)
{
    d9d_family_config c;

    assert_ok(family_make(
        a, &c,
        "{%s, \"hidden_size\": 20, \"num_hidden_layers\": 3, \"num_attention_heads\": 4, "
        "\"num_key_value_heads\": 2, \"head_dim\": 6, \"intermediate_size\": 14, "
        "\"max_position_embeddings\": 64, \"vocab_size\": %d, \"initializer_range\": 0}",
        form, V));
    c.splits = one_split;
    return c;
}

static void split_in_two(d9d_family_config *c)
{
    c->splits = two_splits;
    c->n_splits = 2;
}

static void upload(fixture *f, uint64_t stream, int32_t below, d9d_tensor *out)
{
    int32_t host[T];

    for (int i = 0; i < T; i++)
        host[i] = below > 0
                      ? (int32_t)d9d_rng_below((d9d_rng){7, stream}, (uint64_t)i, (uint64_t)below)
                      : i % S;
    assert_ok(d9d_tensor_from_host(f->dev, D9D_I32, D9D_SHAPE(B, S), host, out));
}

static void fixture_open(fixture *f, const d9d_family_config *c, d9d_stage stage)
{
    const d9d_model_opts options = {.dtype = D9D_F32};

    *f = (fixture){0};
    assert_ok(d9d_device_open("cpu", &f->dev));
    assert_ok(d9d_family_create(c, stage, &options, &f->model));
    assert_ok(d9d_module_bind(f->model->module));
    assert_ok(d9d_module_params(f->model->module, &f->arena, &f->params));
    assert_ok(d9d_module_materialise(f->model->module, f->dev, true));
    assert_ok(d9d_module_reset(f->model->module, 5));
    assert_ok(d9d_tape_create(f->dev, &f->tape));
    upload(f, 1, V, &f->ids);
    upload(f, 2, V, &f->labels);
    upload(f, 3, 0, &f->positions);
}

static void fixture_close(fixture *f)
{
    d9d_tensor_release(&f->ids);
    d9d_tensor_release(&f->labels);
    d9d_tensor_release(&f->positions);
    d9d_tape_free(f->tape);
    d9d_model_free(f->model);
    d9d_device_close(f->dev);
    d9d_arena_release(&f->arena);
}

static void forward(fixture *f, d9d_var *hidden, d9d_model_out *out)
{
    const d9d_model_in in = {
        .ids = &f->ids, .hidden = hidden, .positions = &f->positions, .labels = &f->labels};

    assert_ok(f->model->ops->forward(f->model, f->tape, &in, out));
}

static void losses(fixture *f, float *host)
{
    d9d_model_out out;

    forward(f, NULL, &out);
    assert_ok(d9d_tensor_to_f32(d9d_var_tensor(out.loss), host));
    d9d_tape_reset(f->tape);
}

static float *param(fixture *f, const char *name)
{
    d9d_param *p = d9d_module_find(f->model->module, name);

    if (p == NULL)
        fail_msg("no parameter %s", name);
    return d9d_tensor_data(&p->local.data);
}

static size_t param_size(fixture *f, const char *name)
{
    return d9d_tensor_bytes(&d9d_module_find(f->model->module, name)->local.data);
}

/* Routed experts that give nothing leave the shared one: a dense model. */
static void a_shared_expert_alone_is_a_dense_layer(void **state)
{
    static const char *const projections[] = {"gate_proj", "up_proj", "down_proj"};
    d9d_arena arena = {0};
    const d9d_family_config mixed = config_of(mixture, &arena), plain = config_of(dense, &arena);
    float got[T], want[T];
    char name[128], other[128];
    fixture a, b;

    (void)state;
    fixture_open(&a, &mixed, D9D_WHOLE_MODEL);
    fixture_open(&b, &plain, D9D_WHOLE_MODEL);
    for (int l = 0; l < 3; l++) {
        (void)snprintf(name, sizeof(name), "model.layers.%d.mlp.grouped_experts.down_proj.weight",
                       l);
        memset(param(&a, name), 0, param_size(&a, name));
        for (int i = 0; i < 3; i++) {
            (void)snprintf(name, sizeof(name), "model.layers.%d.mlp.shared_expert.expert.%s.weight",
                           l, projections[i]);
            (void)snprintf(other, sizeof(other), "model.layers.%d.mlp.%s.weight", l,
                           projections[i]);
            assert_int_equal(param_size(&a, name), param_size(&b, other));
            memcpy(param(&b, other), param(&a, name), param_size(&a, name));
        }
    }
    losses(&a, got);
    losses(&b, want);
    assert_memory_equal(got, want, sizeof(got));
    fixture_close(&a);
    fixture_close(&b);
    d9d_arena_release(&arena);
}

/* sigmoid(0) = 1/2: a gate of zeros halves the shared expert, as halving its last matrix does. */
static void a_gate_scales_the_shared_expert(void **state)
{
    d9d_arena arena = {0};
    const d9d_family_config plain = config_of(mixture, &arena),
                            gated = config_of(gated_mixture, &arena);
    float got[T], want[T];
    char name[128];
    fixture a, b;

    (void)state;
    fixture_open(&a, &gated, D9D_WHOLE_MODEL);
    fixture_open(&b, &plain, D9D_WHOLE_MODEL);
    for (int l = 0; l < 3; l++) {
        (void)snprintf(name, sizeof(name), "model.layers.%d.mlp.shared_expert.gate.weight", l);
        memset(param(&a, name), 0, param_size(&a, name));
        (void)snprintf(name, sizeof(name),
                       "model.layers.%d.mlp.shared_expert.expert.down_proj.weight", l);
        for (size_t i = 0; i < param_size(&b, name) / sizeof(float); i++)
            param(&b, name)[i] *= 0.5f;
    }
    losses(&a, got);
    losses(&b, want);
    for (int i = 0; i < T; i++)
        assert_true(fabsf(got[i] - want[i]) <= 1e-6f * fabsf(want[i]));
    fixture_close(&a);
    fixture_close(&b);
    d9d_arena_release(&arena);
}

static void splits_of_a_vocabulary_are_one_vocabulary(void **state)
{
    d9d_arena arena = {0};
    d9d_family_config whole = config_of(dense, &arena), split = whole;
    const char *const kinds[] = {"model.embed_tokens.token_embedding", "lm_head.lm_head"};
    float got[T], want[T];
    char name[128];
    fixture a, b;

    (void)state;
    split_in_two(&split);
    fixture_open(&a, &split, D9D_WHOLE_MODEL);
    fixture_open(&b, &whole, D9D_WHOLE_MODEL);
    for (int k = 0; k < 2; k++) {
        size_t at = 0;
        char *all;

        (void)snprintf(name, sizeof(name), "%s.all.weight", kinds[k]);
        all = (char *)param(&b, name);
        for (int i = 0; i < 2; i++) {
            (void)snprintf(name, sizeof(name), "%s.%s.weight", kinds[k], two_splits[i].name);
            memcpy(all + at, param(&a, name), param_size(&a, name));
            at += param_size(&a, name);
        }
    }
    losses(&a, got);
    losses(&b, want);
    for (int i = 0; i < T; i++)
        assert_true(fabsf(got[i] - want[i]) <= 1e-6f * fabsf(want[i]));
    fixture_close(&a);
    fixture_close(&b);
    d9d_arena_release(&arena);
}

/* Qwen3-MoE with the other style of RoPE. */
static void interleaved_shape(const void *config, d9d_decoder_shape *s)
{
    const d9d_family *f = d9d_qwen3_moe_provider.family;

    if (f->shape != NULL)
        f->shape(config, s);
    s->rope.style = D9D_ROPE_INTERLEAVED;
}

/* The gradient along a random direction against the change of the loss along it. */
static void gradients_follow_the_loss(void **state)
{
    d9d_arena arena = {0};
    d9d_family_config c = config_of(gated_mixture, &arena);
    d9d_family interleaved = *d9d_qwen3_moe_provider.family;
    double derivative = 0, up = 0, down = 0, step = 3e-3;
    float host[T];
    d9d_model_out out;
    d9d_tensor seed;
    fixture f;

    (void)state;
    split_in_two(&c);
    interleaved.shape = interleaved_shape;
    c.family = &interleaved;
    fixture_open(&f, &c, D9D_WHOLE_MODEL);
    forward(&f, NULL, &out);
    for (int i = 0; i < T; i++)
        host[i] = 1;
    assert_ok(d9d_tensor_from_host(f.dev, D9D_F32, D9D_SHAPE(T), host, &seed));
    assert_ok(d9d_tape_backward(f.tape, &out.loss, &seed, 1, D9D_BACKWARD_FULL));
    d9d_tensor_release(&seed);
    d9d_tape_reset(f.tape);
    for (int side = 0; side < 2; side++) {
        double *sum = side == 0 ? &up : &down;

        for (size_t i = 0; i < f.params.n; i++) {
            const d9d_param *p = f.params.p[i];
            float *w = d9d_tensor_data(&p->local.data);
            const float *g = d9d_tensor_data(&p->local.grad);

            for (int64_t j = 0; j < d9d_tensor_numel(&p->local.data); j++) {
                double d = d9d_rng_normal((d9d_rng){11, p->id}, (uint64_t)j) * 0.05;

                w[j] = (float)(w[j] + (side == 0 ? step : -2 * step) * d);
                derivative += side == 0 ? d * (double)g[j] : 0;
            }
        }
        losses(&f, host);
        for (int i = 0; i < T; i++)
            *sum += (double)host[i];
    }
    assert_true(fabs((up - down) / (2 * step) - derivative) < 3e-3 * fabs(derivative));
    fixture_close(&f);
    d9d_arena_release(&arena);
}

/* Two stages, the hidden states handed over, are the whole model. */
static void stages_chain_to_the_whole_model(void **state)
{
    d9d_arena arena = {0};
    const d9d_family_config c = config_of(mixture, &arena);
    float got[T], want[T];
    d9d_model_out first, last;
    d9d_var *hidden;
    fixture whole, a, b;

    (void)state;
    fixture_open(&whole, &c, D9D_WHOLE_MODEL);
    fixture_open(&a, &c, (d9d_stage){0, 2});
    fixture_open(&b, &c, (d9d_stage){1, 2});
    assert_null(d9d_module_find(a.model->module, "model.layers.2.input_layernorm.weight"));
    assert_non_null(d9d_module_find(b.model->module, "model.layers.2.input_layernorm.weight"));
    assert_null(d9d_module_find(a.model->module, "model.norm.weight"));
    assert_null(d9d_module_find(b.model->module, "model.embed_tokens.token_embedding.all.weight"));
    forward(&a, NULL, &first);
    assert_null(first.loss);
    assert_ok(d9d_tape_leaf(b.tape, d9d_var_tensor(first.hidden), true, &hidden));
    forward(&b, hidden, &last);
    assert_ok(d9d_tensor_to_f32(d9d_var_tensor(last.loss), got));
    losses(&whole, want);
    assert_memory_equal(got, want, sizeof(got));
    fixture_close(&b);
    fixture_close(&a);
    fixture_close(&whole);
    d9d_arena_release(&arena);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_shared_expert_alone_is_a_dense_layer),
        cmocka_unit_test(a_gate_scales_the_shared_expert),
        cmocka_unit_test(splits_of_a_vocabulary_are_one_vocabulary),
        cmocka_unit_test(gradients_follow_the_loss),
        cmocka_unit_test(stages_chain_to_the_whole_model),
    };

    return cmocka_run_group_tests_name("qwen3 forms", tests, NULL, NULL);
}
