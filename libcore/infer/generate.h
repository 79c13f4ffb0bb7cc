/* generate.h - the task "generate" of d9d-infer.  See d9d/infer/infer.h. */
#ifndef D9DI_INFER_GENERATE_H
#define D9DI_INFER_GENERATE_H

#include "d9d/infer/infer.h"

/* As d9d_infer(), for this task. */
d9d_status d9di_generate(const d9d_infer_config *config, const json_t *resolved,
                         const d9d_job *where, d9d_infer_task_summary *out);

#endif /* D9DI_INFER_GENERATE_H */
