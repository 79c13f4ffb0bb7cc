/* metric_kinds.c - the list of built-in metrics.  See d9d/metric/metric.h. */
#include "metric/metric_kinds.h"

#define CHOICE(name) &d9di_metric_##name##_table,

const char *const d9d_metric_tag[] = {"name", NULL};
const d9d_table *const d9d_metric_choices[] = {D9DI_METRIC_KINDS(CHOICE) NULL};

d9d_status d9di_metric_check_columns(const char *name, const d9d_predictions *b,
                                     int64_t predictions, int64_t targets)
{
    const struct {
        const char *what;
        int64_t want, have;
    } sides[] = {{"prediction", predictions, b->prediction_columns},
                 {"target", targets, b->target != NULL ? b->target_columns : 0}};

    for (int i = 0; i < 2; i++)
        if (sides[i].want >= 0 && sides[i].want != sides[i].have)
            return D9D_FAIL(D9D_EINVAL, "%s: a %s of %lld numbers, must be %lld", name,
                            sides[i].what, (long long)sides[i].have, (long long)sides[i].want);
    return D9D_OK;
}

d9d_status d9di_metric_check_classes(const char *name, const d9d_predictions *b, int64_t n)
{
    const int64_t n_targets = b->rows * b->target_columns;

    for (int64_t i = 0; i < n_targets; i++)
        if (!d9di_metric_is_class(b->target[i], n))
            return D9D_FAIL(D9D_EINVAL, "%s: row %lld: the target %g is none of %lld classes", name,
                            (long long)(i / b->target_columns), b->target[i], (long long)n);
    return D9D_OK;
}
