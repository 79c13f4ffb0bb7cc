/* wrong_stages_plugin.c - a task whose stages do not pass on what they declare, for
 * stage_tensors.bats. */
#include <string.h>

#include <d9d/op/op.h>
#include <d9d/tasks/plugin.h>

enum { SHAPE, MISSING, UNKNOWN, NAME, FIELD, CONSTANT };
typedef struct section {
    int way;
} section;
static const char *const ways[] = {"shape", "missing",  "unknown", "name",
                                   "field", "constant", NULL};
static const d9d_key keys[] = {
    D9D_KEY_ENUM(section, way, "\"shape\"", ways, "what is wrong"),
    D9D_KEY_END,
};
static const d9d_table table = D9D_TABLE(section, "wrong_stages", keys, "wrong stages");

static d9d_status stage_tensors(void *self, const d9d_model *m, int stage, d9d_stage_spec *out,
                                size_t *n)
{
    const int way = ((const section *)self)->way;

    (void)m, (void)stage;
    out[(*n)++] =
        (d9d_stage_spec){.name = way == NAME ? "hidden" : "extra",
                         .per = way == FIELD ? D9D_STAGE_PER_DOCUMENT : D9D_STAGE_PER_MICRO_BATCH,
                         .field = way == FIELD ? "image" : NULL,
                         .dtype = way == CONSTANT ? D9D_I32 : D9D_F32,
                         .rank = 1,
                         .shape = {2},
                         .constant = way != CONSTANT};
    return D9D_OK;
}

static d9d_status pass_array(d9d_tape *t, d9d_model_out *out, const char *name, int64_t n)
{
    const float zeros[3] = {0};
    d9d_tensor x;
    d9d_var *v;
    d9d_status st;

    D9D_TRY(d9d_tensor_from_host(d9d_tape_device(t), D9D_F32, D9D_SHAPE(n), zeros, &x));
    st = d9d_tape_leaf(t, &x, false, &v);
    d9d_tensor_release(&x);
    return st == D9D_OK ? d9d_model_pass(out, name, v) : st;
}

static d9d_status forward(void *self, d9d_model *m, d9d_tape *t, const d9d_model_in *in,
                          d9d_model_out *out)
{
    const int way = ((const section *)self)->way;

    D9D_TRY(m->ops->forward(m, t, in, out));
    if (d9d_stage_is_last(m->stage) || way == MISSING)
        return D9D_OK;
    if (way == UNKNOWN)
        D9D_TRY(pass_array(t, out, "other", 2));
    return pass_array(t, out, "extra", way == SHAPE ? 3 : 2);
}

static const d9d_train_task task = {
    .size = sizeof(task), .table = &table, .forward = forward, .stage_tensors = stage_tensors};
static const d9d_train_task *const tasks[] = {&task, NULL};
D9D_PLUGIN(.train_tasks = tasks);
