/* counting_plugin.c - a plugin for integrity.bats: a task with a state, the number of its forwards.
 */
#include <d9d/tasks/plugin.h>

static int64_t forwards;

static const d9d_key keys[] = {D9D_KEY_END};
static const d9d_table table = {.name = "counting", .keys = keys, .doc = "counts its forwards"};

static d9d_status forward(void *self, d9d_model *m, d9d_tape *t, const d9d_model_in *in,
                          d9d_model_out *out)
{
    (void)self;
    forwards++;
    return m->ops->forward(m, t, in, out);
}
static const d9d_checkpointer_rank_state *state(void *self, size_t *n)
{
    static const d9d_checkpointer_rank_state states[] = {
        {.name = "forwards",
         .dtype = D9D_I64,
         .n = 1,
         .reduce_op = D9D_COMM_SUM,
         .data = &forwards},
    };

    (void)self;
    *n = 1;
    return states;
}
static const d9d_train_task task = {
    .size = sizeof(task), .table = &table, .forward = forward, .state = state};
static const d9d_train_task *const tasks[] = {&task, NULL};
D9D_PLUGIN(.train_tasks = tasks);
