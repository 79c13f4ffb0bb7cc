/* spike_documents.h - the recorded documents of spikes. */
#ifndef D9DI_REPORT_SPIKE_DOCUMENTS_H
#define D9DI_REPORT_SPIKE_DOCUMENTS_H

#include "d9d/report/report.h"
#include "report/run_sources.h"

typedef struct d9di_spike_documents {
    const d9d_run_reader *run;
    const d9d_report_spikes_opts *opts;
    d9d_arena arena;
    d9di_run_sources sources;
} d9di_spike_documents; /* zero-initialise all but `run` and `opts` */

/* Sets out[i] to the recorded documents of step[i], as JSON in report.h's form; NULL without a
 * record.  Steps ascend. */
d9d_status d9di_spike_documents_find(d9di_spike_documents *d, const int64_t *step, size_t n,
                                     json_t **out);
/* Appends them as text. */
d9d_status d9di_spike_documents_print(const json_t *documents, d9d_buf *out);
void d9di_spike_documents_release(d9di_spike_documents *d);

#endif /* D9DI_REPORT_SPIKE_DOCUMENTS_H */
