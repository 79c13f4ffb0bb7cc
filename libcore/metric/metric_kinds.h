/* metric_kinds.h - the built-in metrics, and their checks of a batch. */
#ifndef D9DI_METRIC_METRIC_KINDS_H
#define D9DI_METRIC_METRIC_KINDS_H

#include "d9d/metric/metric.h"

#define D9DI_METRIC_KINDS(X)                                                                       \
    X(sum)                                                                                         \
    X(mean)                                                                                        \
    X(min)                                                                                         \
    X(max)                                                                                         \
    X(binary_auroc)                                                                                \
    X(multilabel_auroc)                                                                            \
    X(accuracy)                                                                                    \
    X(precision)                                                                                   \
    X(recall)                                                                                      \
    X(f1) X(fbeta) X(confusion_matrix) X(mse) X(mae) X(r2) X(pearson) X(rewards) X(grpo) X(tokens)

#define D9DI_METRIC_DECLARE(name) extern const d9d_table d9di_metric_##name##_table;
D9DI_METRIC_KINDS(D9DI_METRIC_DECLARE)
#undef D9DI_METRIC_DECLARE

/* True if v is one of the classes 0 to n - 1. */
static inline bool d9di_metric_is_class(double v, int64_t n)
{
    return v >= 0 && v < (double)n && v == (double)(int64_t)v;
}
/* EINVAL unless predictions and targets have these numbers of columns; -1: any number. */
d9d_status d9di_metric_check_columns(const char *name, const d9d_predictions *b,
                                     int64_t predictions, int64_t targets);
/* EINVAL unless every target is one of n classes. */
d9d_status d9di_metric_check_classes(const char *name, const d9d_predictions *b, int64_t n);

#endif /* D9DI_METRIC_METRIC_KINDS_H */
