/* grpo.c - the task "grpo": losses of sampled completions.  See d9d/tasks/grpo.h. */
#include "d9d/tasks/grpo.h"

#include <math.h>
#include <stdlib.h>

#include "d9d/op/loss.h"
#include "d9d/op/op.h"
#include "tasks/grpo_batch.h"
#include "tasks/tasks.h"

typedef d9d_grpo_section section;

typedef struct grpo {
    const section *c;
    int64_t iteration; /* of the next forward */
    D9D_VEC(d9d_tensor)
    before; /* [micro-batches] log-probabilities of a round's first step; empty
               where a round has one step */
} grpo;

static d9d_status grpo_open(const void *config, void **self)
{
    grpo *g = calloc(1, sizeof(*g));

    if (g == NULL)
        return D9D_FAIL(D9D_ENOMEM, "task grpo: no memory");
    g->c = config;
    *self = g;
    return D9D_OK;
}

static void grpo_close(void *self)
{
    grpo *g = self;

    for (size_t i = 0; i < g->before.len; i++)
        d9d_tensor_release(&g->before.data[i]);
    D9D_VEC_RELEASE(&g->before);
    free(g);
}

static void grpo_select(void *self, int64_t iteration)
{
    ((grpo *)self)->iteration = iteration;
}

/* --- log-probabilities ------------------------------------------------------------------------ */

/* Temperature divides logits: exact as a factor of the hidden states, where nothing else follows
 * their product with the head. */
static d9d_status check_head(const section *c, const d9d_model *m)
{
    if (m->lm_head == NULL)
        return D9D_FAIL(D9D_ENOTSUP, "task grpo: the model %s does not show its head",
                        m->ops->name);
    if (c->temperature != 1 && (m->lm_head->softcap > 0 || m->lm_head->bias != NULL))
        return D9D_FAIL(D9D_ENOTSUP,
                        "task grpo: task.temperature is %g, and the head of %s has a %s: only 1 is "
                        "supported",
                        c->temperature, m->ops->name,
                        m->lm_head->softcap > 0 ? "soft cap" : "bias");
    return D9D_OK;
}

/* The whole model comes first, before anything is spent. */
static d9d_status grpo_extend(void *self, d9d_model *m, const d9d_model_opts *options)
{
    (void)options;
    return d9d_stage_is_last(m->stage) ? check_head(((const grpo *)self)->c, m) : D9D_OK;
}

/* Of the targets, [B, S, 1]; 0 without one. */
static d9d_status log_probs_make(const section *c, const d9d_model *m, d9d_tape *t,
                                 const d9d_model_in *in, d9d_var *hidden, d9d_var **y)
{
    const d9d_shape *s = &in->labels->shape;
    d9d_model_in plain = *in;
    d9d_model_out out = {.hidden = NULL};

    plain.pick = NULL;
    plain.loss_is_root = false;
    D9D_TRY(d9d_op_scale(t, hidden, (float)(1 / c->temperature), &out.hidden));
    D9D_TRY(d9d_model_loss(m->lm_head, t, &plain, &out));
    D9D_TRY(d9d_op_affine(t, out.loss, -1.0f, 0, y));
    return d9d_op_reshape(t, *y, D9D_SHAPE(s->dim[0], s->dim[1], 1), y);
}

static d9d_status reference_log_probs(const section *c, d9d_tape *t, const d9d_model_in *in,
                                      d9d_var **y)
{
    d9d_status st;

    *y = NULL;
    if (in->reference == NULL)
        return D9D_OK;
    D9D_TRY(check_head(c, in->reference->model));
    d9d_tape_begin_reference(t);
    st = log_probs_make(c, in->reference->model, t, in, in->reference->out.hidden, y);
    d9d_tape_end_reference(t);
    return st;
}

/* The first step of a round keeps its own for the others. */
static d9d_status old_log_probs(grpo *g, d9d_tape *t, int64_t micro, d9d_var *own, d9d_var **old)
{
    *old = NULL;
    if (g->c->num_iterations == 1)
        return D9D_OK;
    while ((int64_t)g->before.len <= micro)
        D9D_TRY(D9D_VEC_PUSH(&g->before, (d9d_tensor){.storage = NULL}));
    if (g->iteration > 0)
        return d9d_tape_leaf(t, &g->before.data[micro], false, old);
    d9d_tensor_release(&g->before.data[micro]);
    g->before.data[micro] = d9d_tensor_ref(d9d_var_tensor(own));
    return D9D_OK;
}

/* --- columns ---------------------------------------------------------------------------------- */

/* Columns [k, k + n) of x [B, S, C]. */
static d9d_status take_columns(d9d_tape *t, d9d_var *x, int64_t k, int64_t n, d9d_var **y)
{
    const d9d_shape *s = &d9d_var_tensor(x)->shape;

    return d9d_op_concat(t, &(d9d_op_concat_input){x, k, n}, 1, D9D_SHAPE(s->dim[0], s->dim[1], n),
                         y);
}

/* |log-probability in the first step - the sampler's|. */
static d9d_status difference_make(d9d_tape *t, const d9d_op_policy_in *p, d9d_var *columns,
                                  d9d_var **y)
{
    d9d_var *x, *sampled;

    D9D_TRY(take_columns(t, columns, D9DI_GRPO_SAMPLED, 1, &sampled));
    D9D_TRY(d9d_op_detach(t, p->old != NULL ? p->old : p->own, &x));
    D9D_TRY(d9d_op_sub(t, x, sampled, &x));
    return d9d_op_abs(t, x, y);
}

/* The columns of the metric "grpo". */
static d9d_status predictions_make(d9d_tape *t, const d9d_op_policy_in *in,
                                   const d9d_op_policy_out *p, d9d_var *columns, d9d_var *mask,
                                   d9d_var **y)
{
    enum { HOST = D9DI_GRPO_COLUMNS - D9DI_GRPO_MASK, ALL = D9DI_GRPO_COMPUTED + HOST };
    const d9d_shape *s = &d9d_var_tensor(in->own)->shape;
    d9d_op_concat_input all[D9DI_GRPO_COMPUTED + 1];
    d9d_var *x[D9DI_GRPO_COMPUTED] = {p->low, p->high, p->kl, NULL};

    D9D_TRY(difference_make(t, in, columns, &x[D9DI_GRPO_DIFFERENCE]));
    if (x[D9DI_GRPO_KL] == NULL)
        D9D_TRY(d9d_op_affine(t, mask, 0, 0, &x[D9DI_GRPO_KL]));
    for (int i = 0; i < D9DI_GRPO_COMPUTED; i++) {
        D9D_TRY(d9d_op_detach(t, x[i], &x[i]));
        D9D_TRY(d9d_op_mul(t, mask, x[i], &x[i])); /* [B, 1, 1] of sequences too */
        all[i] = (d9d_op_concat_input){x[i], 0, 1};
    }
    all[D9DI_GRPO_COMPUTED] = (d9d_op_concat_input){columns, D9DI_GRPO_MASK, HOST};
    D9D_TRY(d9d_op_concat(t, all, D9DI_GRPO_COMPUTED + 1, D9D_SHAPE(s->dim[0], s->dim[1], ALL), y));
    return d9d_op_reshape(t, *y, D9D_SHAPE(s->dim[0] * s->dim[1], ALL), y);
}

/* --- the task --------------------------------------------------------------------------------- */

d9d_op_policy_opts d9di_grpo_policy_opts(const section *c)
{
    return (d9d_op_policy_opts){
        .cispo = c->loss_type == D9D_GRPO_LOSS_CISPO,
        .sequence = c->importance_sampling_level == 1,
        .beta = (float)c->beta,
        .epsilon_low = (float)c->epsilon,
        .epsilon_high = (float)(isnan(c->epsilon_high) ? c->epsilon : c->epsilon_high),
        .delta = isnan(c->delta) ? 0 : (float)c->delta,
    };
}

static d9d_status losses_make(grpo *g, d9d_model *m, d9d_tape *t, const d9d_model_in *in,
                              d9d_var *columns, d9d_model_out *out)
{
    const d9d_op_policy_opts opts = d9di_grpo_policy_opts(g->c);
    d9d_op_policy_in p = {.cp = m->groups.cp};
    d9d_op_policy_out done;
    d9d_var *mask;

    D9D_TRY(log_probs_make(g->c, m, t, in, out->hidden, &p.own));
    D9D_TRY(reference_log_probs(g->c, t, in, &p.ref));
    D9D_TRY(old_log_probs(g, t, in->micro, p.own, &p.old));
    D9D_TRY(take_columns(t, columns, D9DI_GRPO_ADVANTAGE, 1, &p.advantage));
    D9D_TRY(take_columns(t, columns, D9DI_GRPO_WEIGHT, 1, &p.weight));
    D9D_TRY(take_columns(t, columns, D9DI_GRPO_SHARE, 1, &p.share));
    D9D_TRY(take_columns(t, columns, D9DI_GRPO_MASK, 1, &mask));
    D9D_TRY(d9d_op_policy_gradient(t, &opts, &p, &done));
    out->loss = done.loss;
    return predictions_make(t, &p, &done, columns, mask, &out->logits);
}

static d9d_status grpo_forward(void *self, d9d_model *m, d9d_tape *t, const d9d_model_in *in,
                               d9d_model_out *out)
{
    const d9d_model_field *tokens = d9d_model_find_field(in, D9DI_GRPO_TOKENS),
                          *rows = d9d_model_find_field(in, D9DI_GRPO_ROWS);
    d9d_model_in plain = *in;
    d9d_var *columns;

    plain.labels = NULL;
    D9D_TRY(m->ops->forward(m, t, &plain, out));
    if (!d9d_stage_is_last(m->stage))
        return D9D_OK;
    D9D_TRY(d9d_tape_leaf(t, &tokens->value, false, &columns));
    D9D_TRY(losses_make(self, m, t, in, columns, out));
    out->labels = &rows->value;
    return D9D_OK;
}

static int64_t grpo_targets(void *self, const d9d_batch *b)
{
    return d9di_grpo_targets(((const grpo *)self)->c, b);
}

static void grpo_reference(void *self, d9d_task_reference *out)
{
    const section *c = ((const grpo *)self)->c;

    *out = (d9d_task_reference){c->beta > 0, c->reference.checkpoint, false};
}

static const d9d_grpo_section *grpo_generation(void *self)
{
    return ((const grpo *)self)->c;
}

static d9d_status section_check(const void *value, const char *path)
{
    const section *c = value;

    if (c->reference.given && c->beta == 0)
        return D9D_FAIL(D9D_ECONFIG, "%s.reference: beta is 0, so that nothing reads it", path);
    if (c->reward_weights.n > 0 && c->reward_weights.n != c->rewards.n)
        return D9D_FAIL(D9D_ECONFIG, "%s.reward_weights: %zu for %zu rewards", path,
                        c->reward_weights.n, c->rewards.n);
    if (c->loss_type == D9D_GRPO_LOSS_CISPO && c->importance_sampling_level == 1)
        return D9D_FAIL(D9D_ECONFIG,
                        "%s.importance_sampling_level: \"sequence\" has no meaning for the loss "
                        "\"cispo\"",
                        path);
    return D9D_OK;
}

static const char *grpo_micro_batch_term(void *self)
{
    return ((const grpo *)self)->c->loss_type == D9D_GRPO_LOSS_BNPO ? "the mean of bnpo" : NULL;
}

static const d9d_train_task task = {.size = sizeof(d9d_train_task),
                                    .table = &d9di_grpo_table,
                                    .open = grpo_open,
                                    .close = grpo_close,
                                    .extend = grpo_extend,
                                    .forward = grpo_forward,
                                    .targets = grpo_targets,
                                    .reference = grpo_reference,
                                    .generation = grpo_generation,
                                    .select = grpo_select,
                                    .micro_batch_term = grpo_micro_batch_term};

static const char *const loss_types[] = {"grpo", "bnpo", "dr_grpo", "dapo", "cispo", NULL};
static const char *const levels[] = {"token", "sequence", NULL};
static const char *const scales[] = {"group", "batch", "none", NULL};
static const d9d_key token_elem = {
    .kind = D9D_KIND_INT, .min = 0, .max = INT32_MAX, .doc = "a token"};
static const d9d_key reward_elem = {.kind = D9D_KIND_UNION,
                                    .names = d9d_reward_tag,
                                    .choices = d9d_reward_choices,
                                    .doc = "a function of completions"};
static const d9d_key weight_elem = {
    .kind = D9D_KIND_REAL, .min = -1e6, .max = 1e6, .doc = "of a reward"};

static const d9d_key keys[] = {
    D9D_KEY_LIST(section, rewards, D9D_REQUIRED, &reward_elem,
                 "what a completion is worth: the sum of these", .min = 1, .max = 64),
    D9D_KEY_LIST(section, reward_weights, "[]", &weight_elem, "of each reward; none: 1 each",
                 .max = 64),
    D9D_KEY_INT(section, num_generations, "8", 2, 1 << 16, "completions of each prompt"),
    D9D_KEY_INT(section, num_iterations, "1", 1, 1 << 16,
                "steps that learn from the same completions"),
    D9D_KEY_INT(section, max_completion_length, "512", 1, 1 << 24, "most tokens of a completion"),
    D9D_KEY_INT(section, generation_batch_size, "null", 1, 1 << 20,
                "completions that a rank decodes at a time; null: those of a micro-batch",
                .flags = D9D_NULLABLE),
    D9D_KEY_REAL(section, temperature, "1", 0, 1e6, "of sampling, and of the log-probabilities",
                 .flags = D9D_ABOVE_MIN | D9D_FLOAT32),
    D9D_KEY_INT(section, top_k, "0", 0, INT32_MAX,
                "draw from so many of the likeliest tokens; 0: from all"),
    D9D_KEY_REAL(section, top_p, "1", 0, 1,
                 "draw from the likeliest tokens that have this share of the probability",
                 .flags = D9D_ABOVE_MIN),
    D9D_KEY_BOOL(section, stop_at_eos, "true",
                 "stop at the eos_token_id of the generation_config.json beside the weights, or of "
                 "the config.json where there is none"),
    D9D_KEY_LIST(section, stop_tokens, "[]", &token_elem, "tokens to stop at too"),
    D9D_KEY_BOOL(section, mask_truncated_completions, "false",
                 "do not learn from completions that did not stop"),
    D9D_KEY_ENUM(section, loss_type, "\"dapo\"", loss_types, "what the losses are divided by"),
    D9D_KEY_ENUM(section, importance_sampling_level, "\"token\"", levels,
                 "of the ratios: each token's, or the mean of a completion (GSPO)"),
    D9D_KEY_ENUM(section, scale_rewards, "\"group\"", scales,
                 "whose standard deviation divides the advantages"),
    D9D_KEY_REAL(section, epsilon, "0.2", 0, 1e6, "ratios are clipped below 1 - epsilon",
                 .flags = D9D_FLOAT32),
    D9D_KEY_REAL(section, epsilon_high, "null", 0, 1e6,
                 "and above 1 + epsilon_high, of cispo epsilon_high; null: epsilon",
                 .flags = D9D_NULLABLE | D9D_FLOAT32),
    D9D_KEY_REAL(section, delta, "null", 0, 1e6,
                 "the largest ratio also where clipping has no effect; null: any",
                 .flags = D9D_NULLABLE | D9D_ABOVE_MIN | D9D_FLOAT32),
    D9D_KEY_REAL(section, beta, "0", 0, 1e6, "of the KL divergence from the reference",
                 .flags = D9D_FLOAT32),
    D9D_KEY_CUSTOM(section, reference, "null", &d9di_task_reference_key_kind,
                   "with beta: \"start\", as null, the weights that the run begins with, or "
                   "{\"checkpoint\": \"DIR\"}, a model folder"),
    D9D_KEY_INT(section, seed, "0", 0, 9007199254740992.0, "of sampling"),
    D9D_KEY_INT(section, log_completions, "1", 0, 1 << 20,
                "prompts of a recorded step whose completions go to completions.jsonl"),
    D9D_KEY_END,
};

const d9d_table d9di_grpo_table = {.name = "grpo",
                                   .size = sizeof(section),
                                   .keys = keys,
                                   .doc = "rewards of completions that the job generates",
                                   .check = section_check,
                                   .row = &task};
