/* lr.c - see d9d/sched/lr.h. */
#include "d9d/sched/lr.h"

#include <stdlib.h>

#include "d9d/base/plugin_call.h"

struct d9d_lr_schedule {
    const d9d_lr_schedule_kind *kind;
    void *self;
};

d9d_status d9d_lr_schedule_create(const d9d_union *section, const char *where, int64_t total,
                                  d9d_lr_schedule **out)
{
    d9d_lr_schedule *lr = calloc(1, sizeof(*lr));
    d9d_status st;

    if (lr == NULL)
        return D9D_FAIL(D9D_ENOMEM, "%s: %zu bytes", where, sizeof(*lr));
    lr->kind = section->choice->row;
    st = D9D_PLUGIN_CALL(lr->kind->table->name, lr->kind, create, section->value, where, total,
                         &lr->self);
    if (st == D9D_OK)
        *out = lr;
    else
        free(lr);
    return st;
}

void d9d_lr_schedule_free(d9d_lr_schedule *lr)
{
    if (lr != NULL && lr->kind->free != NULL)
        lr->kind->free(lr->self);
    free(lr);
}

double d9d_lr_schedule_at(const d9d_lr_schedule *lr, int64_t step)
{
    return lr->kind->at(lr->self, step);
}

int64_t d9d_lr_schedule_fixed_steps(const d9d_union *section, bool *needs_total)
{
    const d9d_lr_schedule_kind *kind = section->choice->row;

    *needs_total = true;
    return kind->steps != NULL ? kind->steps(section->value, needs_total) : 0;
}
