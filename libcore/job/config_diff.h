/* config_diff.h - where two configurations are not the same. */
#ifndef D9DI_JOB_CONFIG_DIFF_H
#define D9DI_JOB_CONFIG_DIFF_H

#include "d9d/base/json.h"

/* A member "trainer.run.steps" that a and b have otherwise, NULL where one has none.  True ends the
 * search. */
typedef bool d9di_config_diff_fn(void *self, const char *path, const json_t *of_a,
                                 const json_t *of_b);

/* Tells of each member that is another one in the order in which they stand, of lists as a whole.
 * Did `on_difference` end it? */
bool d9di_config_diff(json_t *a, json_t *b, d9di_config_diff_fn *on_difference, void *self);

/* A value in a sentence, short, in `b`. */
const char *d9di_config_diff_format(const json_t *v, d9d_buf *b);

#endif /* D9DI_JOB_CONFIG_DIFF_H */
