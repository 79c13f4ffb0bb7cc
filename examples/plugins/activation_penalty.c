/* activation_penalty.c - a task as a plugin that carries a number of each layer to the loss.
 *
 *     {"plugin": "libactivation_penalty.so",
 *      "task": {"name": "penalized_lm", "coefficient": 0.01}, ...}
 *
 * The loss of a token is that of causal_lm, plus coefficient times the mean square of its hidden
 * states, summed over the layers: large activations cost something (activation regularisation).
 *
 * The sum grows with each layer.  Through a pipeline it travels beside the hidden states:
 *
 *     stage k  --[ hidden | penalty ]-->  stage k + 1
 *
 * The model knows nothing of it.  Any model that calls d9d_model_in.hook after each layer will do.
 */
#include <d9d/op/loss.h>
#include <d9d/op/math.h>
#include <d9d/op/op.h>
#include <d9d/tasks/plugin.h>

typedef struct section {
    double coefficient;
} section;
static const d9d_key keys[] = {
    D9D_KEY_REAL(section, coefficient, D9D_REQUIRED, 0, 1e6, "of the mean squares"),
    D9D_KEY_END,
};
static const d9d_table table =
    D9D_TABLE(section, "penalized_lm", keys, "next tokens, by small hidden states");

/* The sum so far, [B, S, 1] or with tensor-parallel ranks [B S / tp, 1]. */
static d9d_status stage_tensors(void *self, const d9d_model *m, int stage, d9d_stage_spec *out,
                                size_t *n)
{
    (void)self, (void)m, (void)stage;
    out[(*n)++] = (d9d_stage_spec){
        .name = "penalty", .per = D9D_STAGE_PER_HIDDEN, .dtype = D9D_F32, .rank = 1, .shape = {1}};
    return D9D_OK;
}

static d9d_status add_layer(void *arg, d9d_tape *t, int64_t layer, d9d_var *x)
{
    d9d_var **sum = arg, *y;

    (void)layer;
    D9D_TRY(d9d_op_cast(t, x, D9D_F32, &y));
    D9D_TRY(d9d_op_square(t, y, &y));
    D9D_TRY(d9d_op_mean(t, y, -1, &y));
    return *sum != NULL ? d9d_op_add(t, *sum, y, sum) : (*sum = y, D9D_OK);
}

/* The rows of all tensor-parallel ranks, [T, 1].  Each of them has every loss, so that a gradient
 * is the mean over the ranks: of their sum, which the gather's backward is, one in n. */
static d9d_status gather_rows(const d9d_model *m, d9d_tape *t, d9d_var *x, d9d_var **y)
{
    const float n = (float)d9d_comm_size(m->groups.tp);
    d9d_var *constant;

    if (n == 1) {
        *y = x;
        return D9D_OK;
    }
    D9D_TRY(d9d_op_all_gather_rows(t, x, m->groups.tp, "penalty", y));
    D9D_TRY(d9d_op_detach(t, *y, &constant));
    D9D_TRY(d9d_op_affine(t, constant, 1 - 1 / n, 0, &constant));
    D9D_TRY(d9d_op_affine(t, *y, 1 / n, 0, y));
    return d9d_op_add(t, *y, constant, y);
}

/* loss += coefficient * penalty, where the label counts. */
static d9d_status add_penalty(const section *c, const d9d_model *m, d9d_tape *t,
                              const d9d_model_in *in, d9d_var *penalty, d9d_var **loss)
{
    const d9d_shape *s = &d9d_var_tensor(*loss)->shape;
    d9d_var *labels, *mask;

    D9D_TRY(gather_rows(m, t, penalty, &penalty));
    D9D_TRY(d9d_op_reshape(t, penalty, *s, &penalty));
    D9D_TRY(d9d_tape_leaf(t, in->labels, false, &labels));
    D9D_TRY(d9d_op_reshape(t, labels, *s, &labels));
    D9D_TRY(d9d_op_ge(t, labels, 0, &mask));
    D9D_TRY(d9d_op_mul(t, penalty, mask, &penalty));
    D9D_TRY(d9d_op_affine(t, penalty, (float)c->coefficient, 0, &penalty));
    return d9d_op_add(t, *loss, penalty, loss);
}

static d9d_status forward(void *self, d9d_model *m, d9d_tape *t, const d9d_model_in *in,
                          d9d_model_out *out)
{
    d9d_var *sum = d9d_model_find_passed(in, "penalty");
    const d9d_hidden_state_hook hook = {add_layer, &sum};
    d9d_model_in hooked = *in;

    hooked.hook = &hook;
    hooked.loss_is_root = false; /* the loss goes on from here */
    D9D_TRY(m->ops->forward(m, t, &hooked, out));
    if (sum == NULL)
        return D9D_FAIL(D9D_ENOTSUP, "penalized_lm: %s tells nothing of its layers", m->ops->name);
    if (!d9d_stage_is_last(m->stage))
        return d9d_model_pass(out, "penalty", sum);
    return add_penalty(self, m, t, in, sum, &out->loss);
}

static const d9d_train_task task = {
    .size = sizeof(task), .table = &table, .forward = forward, .stage_tensors = stage_tensors};
static const d9d_train_task *const tasks[] = {&task, NULL};
D9D_PLUGIN(.train_tasks = tasks);
