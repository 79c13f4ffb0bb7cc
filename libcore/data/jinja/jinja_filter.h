/* jinja_filter.h - what filters of sequences share. */
#ifndef D9DI_DATA_JINJA_JINJA_FILTER_H
#define D9DI_DATA_JINJA_JINJA_FILTER_H

#include "data/jinja/jinja_run.h"

/* The member of v at a path like "function.name" or 0; UNSET and None: v. */
d9d_status d9di_jinja_follow_path(d9di_jinja_run *r, const d9di_jinja_value *v,
                                  const d9di_jinja_value *path, d9di_jinja_value *out);

#endif
