/* classify.c - a custom task as a plugin: text classification.
 *
 *     {"plugin": "libclassify.so", "task": {"name": "classify", "num_labels": 3},
 *      "metrics": [{"name": "accuracy", "problem": "multiclass", "num_classes": 3}], ...}
 *
 * Any model gets a head, "score.weight" [labels, H], on its last hidden states.  A sample's class
 * is the label of the judged position, such as the last; the other positions have label -100:
 *
 *     {"input_ids": [17, 4, 9], "labels": [-100, -100, 2]}
 */
#include <d9d/op/op.h>
#include <d9d/tasks/plugin.h>

typedef struct section {
    int64_t num_labels;
} section;
static const d9d_key keys[] = {
    D9D_KEY_INT(section, num_labels, D9D_REQUIRED, 2, 1 << 16, "classes"),
    D9D_KEY_END,
};
static const d9d_table table = D9D_TABLE(section, "classify", keys, "the class of a text");

/* Adds the head to the last pipeline stage, whose model owns it. */
static d9d_status extend(void *self, d9d_model *m, const d9d_model_opts *options)
{
    if (!d9d_stage_is_last(m->stage))
        return D9D_OK;
    D9D_TRY(d9d_model_add_linear(m, "score", options->dtype, 0.02, m->hidden,
                                 ((const section *)self)->num_labels));
    d9d_model_find_linear(m, "score")->weight.spec.adaptable =
        false; /* the loss needs the plain matrix, without LoRA */
    return D9D_OK;
}

/* Computes the losses of positions that have a class, and the scores for metrics. */
static d9d_status judge(d9d_block_linear *score, d9d_tape *t, d9d_var *h, const d9d_model_in *in,
                        d9d_model_out *out)
{
    d9d_param *head = &score->weight;
    d9d_tensor labels = d9d_tensor_reshape(in->labels, D9D_SHAPE(d9d_tensor_numel(in->labels)));
    const d9d_op_vocab_opts opts = {.ignore = D9D_IGNORE_INDEX};
    d9d_status st;

    D9D_TRY_OR(st, d9d_param_unit_unshard(&score->module, t), out);
    D9D_TRY_OR(st, d9d_op_linear(t, h, head, &out->logits), out);
    D9D_TRY_OR(st, d9d_op_linear_cross_entropy(t, h, &head, 1, &labels, &opts, &out->loss), out);
    st = d9d_param_unit_reshard(&score->module, t);
out:
    d9d_tensor_release(&labels);
    return st;
}

static d9d_status forward(void *self, d9d_model *m, d9d_tape *t, const d9d_model_in *in,
                          d9d_model_out *out)
{
    d9d_model_in unlabelled = *in; /* so the model computes no loss of its own */
    d9d_var *h;

    (void)self; /* the configuration section, as there is no open() */
    unlabelled.labels = NULL;
    D9D_TRY(m->ops->forward(m, t, &unlabelled, out));
    if (!d9d_stage_is_last(m->stage))
        return D9D_OK;
    if (m->groups.tp != NULL)
        return D9D_FAIL(D9D_ENOTSUP, "classify: over %d tensor-parallel ranks",
                        d9d_comm_size(m->groups.tp));
    D9D_TRY(d9d_op_reshape(t, out->hidden, D9D_SHAPE(d9d_tensor_numel(in->ids), m->hidden), &h));
    return judge(d9d_model_find_linear(m, "score"), t, h, in, out);
}

static const d9d_train_task task = {
    .size = sizeof(task), .table = &table, .extend = extend, .forward = forward};
static const d9d_train_task *const tasks[] = {&task, NULL};
D9D_PLUGIN(.train_tasks = tasks);
