/* small_task.h - the task by which a small model is certified, named by the head that it needs. */
#ifndef D9DI_SMALL_TASK_H
#define D9DI_SMALL_TASK_H

#include "d9d/base/json.h"
#include "d9d/model/provider.h"
#include "tasks/tasks.h"

/* The task of this name: ECONFIG where there is none. */
d9d_status d9di_small_task_find(const char *name, d9d_head_kind *out);
/* Ids below this are the model's tokens, and as labels its classes; `vocab` if those are the
 * task's. */
int64_t d9di_small_task_ids(const d9d_model_spec *spec, d9d_head_kind head, int64_t vocab);
/* Its section as a job has it, for a model with so many ids; NULL: out of memory. */
json_t *d9di_small_task_section(d9d_head_kind head, int64_t ids);
/* Rows of a micro-batch, of which a job takes two or one where any number will do. */
int64_t d9di_small_task_rows(d9d_head_kind head, int64_t wanted);
/* Open the task itself; its section is in the arena. */
d9d_status d9di_small_task_open(d9d_head_kind head, int64_t ids, d9d_arena *a, d9di_task *out);

#endif /* D9DI_SMALL_TASK_H */
