/* lr_table.c - the learning rates of a configuration, step by step.
 */
#include "d9d/sched/lr_table.h"
#include "d9d/base/num_format.h"

#include <inttypes.h>

enum { STEPS_DEFAULT = 1000 };

/* The sections of a training configuration that are read. */
struct lr_section {
    d9d_union lr_scheduler;
};

static const d9d_key section_keys[] = {
    D9D_KEY_UNION(struct lr_section, lr_scheduler, D9D_REQUIRED, d9d_lr_schedule_tag,
                  d9d_lr_schedule_choices, "how the learning rate changes"),
    D9D_KEY_END,
};
const d9d_table d9d_lr_table_section =
    D9D_TABLE(struct lr_section, "rates", section_keys, "the learning rate of a run");

/* Wrap or extract the lr_scheduler section of `doc`, whichever of the three forms it has. */
static json_t *section_extract(const json_t *doc)
{
    json_t *whole = (json_t *)(uintptr_t)doc, *lr_section = json_object_get(doc, "lr_scheduler");

    if (json_is_null(lr_section))
        lr_section = NULL;
    if (lr_section == NULL && json_object_get(doc, "optimizer") != NULL)
        return json_pack("{s:o}", "lr_scheduler", json_loads(D9D_LR_SCHEDULE_CONSTANT, 0, NULL));
    if (lr_section == NULL && json_object_get(doc, "phases") != NULL)
        return json_pack("{s:{s:s, s:O}}", "lr_scheduler", "name", "piecewise", "scheduler", whole);
    if (lr_section == NULL && json_object_get(doc, "scheduler") != NULL)
        lr_section = whole;
    return lr_section != NULL ? json_pack("{s:O}", "lr_scheduler", lr_section) : json_object();
}

static d9d_status base_find(const json_t *doc, const char *where, d9d_lr_table *out)
{
    const json_t *lr = json_object_get(json_object_get(doc, "optimizer"), "lr");

    out->is_lr = lr != NULL;
    out->base = 1;
    if (lr == NULL)
        return D9D_OK;
    if (!json_is_number(lr) || json_number_value(lr) < 0)
        return D9D_FAIL(D9D_ECONFIG, "%s: optimizer.lr: expected a number of at least 0", where);
    out->base = json_number_value(lr);
    return D9D_OK;
}

/* trainer.run.steps, or 0 if absent. */
static int64_t steps_of_run(const json_t *doc)
{
    const json_t *run = json_object_get(json_object_get(doc, "trainer"), "run");
    const json_int_t steps = json_integer_value(json_object_get(run, "steps"));

    return steps > 0 && steps <= D9D_LR_TABLE_STEPS_MAX ? steps : 0;
}

static int64_t steps_guess(const d9d_union *lr_section, const d9d_log *log)
{
    bool needs_total;
    const int64_t fixed = d9d_lr_schedule_fixed_steps(lr_section, &needs_total);
    int64_t steps = fixed < D9D_LR_TABLE_STEPS_MAX ? fixed : D9D_LR_TABLE_STEPS_MAX;

    if (!needs_total)
        return steps;
    steps = steps > STEPS_DEFAULT / 2 ? 2 * steps : STEPS_DEFAULT;
    if (steps > D9D_LR_TABLE_STEPS_MAX)
        steps = D9D_LR_TABLE_STEPS_MAX;
    d9d_log_info(log, "a phase is a share of the run, which is taken to be %" PRId64 " step%s long",
                 steps, D9D_PLURAL(steps));
    return steps;
}

static d9d_status table_create(const struct lr_section *s, const char *where, int64_t steps,
                               const d9d_log *log, d9d_arena *a, d9d_lr_table *out)
{
    const char *path = d9d_arena_printf(a, "%s: lr_scheduler", where);

    out->steps = steps > 0 ? steps : steps_guess(&s->lr_scheduler, log);
    return d9d_lr_schedule_create(&s->lr_scheduler, path != NULL ? path : where, out->steps,
                                  &out->lr);
}

d9d_status d9d_lr_table_load(const d9d_table *table, const json_t *doc, const char *where,
                             int64_t steps, const d9d_log *log, d9d_lr_table *out)
{
    json_t *part = section_extract(doc);
    d9d_lr_table v = {.lr = NULL};
    struct lr_section lr_section;
    d9d_status st;

    st = part != NULL ? d9d_config_bind(table, part, where, log, &v.arena, &lr_section)
                      : D9D_FAIL(D9D_ENOMEM, "%s: no memory for its schedule", where);
    if (st == D9D_OK)
        st = base_find(doc, where, &v);
    if (st == D9D_OK)
        st = table_create(&lr_section, where, steps > 0 ? steps : steps_of_run(doc), log, &v.arena,
                          &v);
    if (st == D9D_OK)
        *out = v;
    else
        d9d_lr_table_release(&v);
    json_decref(part);
    return st;
}

double d9d_lr_table_at(const d9d_lr_table *v, int64_t k)
{
    return v->base * d9d_lr_schedule_at(v->lr, k);
}

void d9d_lr_table_release(d9d_lr_table *v)
{
    d9d_lr_schedule_free(v->lr);
    d9d_arena_release(&v->arena);
}
