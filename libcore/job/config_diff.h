/* config_diff.h - the differences between two configurations. */
#ifndef D9DI_JOB_CONFIG_DIFF_H
#define D9DI_JOB_CONFIG_DIFF_H

#include "d9d/base/json.h"

/* Called for a member such as "trainer.run.steps" that differs in a and b; NULL where one has none.
 * Return true to stop. */
typedef bool d9di_config_diff_fn(void *self, const char *path, const json_t *of_a,
                                 const json_t *of_b);

/* Calls on_difference for each member that differs, in document order; lists are compared as a
 * whole. True if on_difference stopped it. */
bool d9di_config_diff(json_t *a, json_t *b, d9di_config_diff_fn *on_difference, void *self);

/* Formats a value, shortened for a message, in `b`. */
const char *d9di_config_diff_format(const json_t *v, d9d_buf *b);

#endif /* D9DI_JOB_CONFIG_DIFF_H */
