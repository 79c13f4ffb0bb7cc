/* absent_values.h - values of a field that are not there.
 *
 * NaN, for which null stands in the lines of a dataset, is no value.  A text without all its values
 * counts for nothing: it is no target, and has no loss.
 */
#ifndef D9DI_TASKS_ABSENT_VALUES_H
#define D9DI_TASKS_ABSENT_VALUES_H

#include "d9d/tape/tape.h"

/* Rows of `values` [R, columns] that d9d_field_row_is_present() refuses leave the mask [R, 1], and
 * zeros replace NaNs, since a NaN times 0 would be one. */
d9d_status d9di_absent_values_mask(d9d_tape *t, int64_t columns, d9d_var **values, d9d_var **mask);

#endif /* D9DI_TASKS_ABSENT_VALUES_H */
