/* run_sources.h - the datasets of a run, as its directory tells of them. */
#ifndef D9DI_REPORT_RUN_SOURCES_H
#define D9DI_REPORT_RUN_SOURCES_H

#include "d9d/base/json.h"
#include "d9d/data/dataset/dataset.h"

/* The names are borrowed from the run's configuration or from what stands in their place. */
typedef struct d9di_run_source {
    const char *dir, *split;
    const char *made; /* by what, in the place of a directory; NULL: `dir` is one */
    d9d_dataset *ds;  /* from d9di_run_source_open() on */
} d9di_run_source;

typedef struct d9di_run_sources {
    json_t *config;
    d9di_run_source *sources;
    size_t n;
} d9di_run_sources; /* zero-initialised is empty */

/* A file of the run directory; `run` is that or a file in it. */
d9d_status d9di_run_sources_file_path(d9d_arena *a, const char *run, const char *name,
                                      const char **out);
/* config.json's, `dirs` in place of its directories unless there are none.  ENOTFOUND, EFORMAT;
 * ECONFIG for another number of them than the run had. */
d9d_status d9di_run_sources_read(d9d_arena *a, const char *run, const char *const *dirs,
                                 size_t n_dirs, d9di_run_sources *out);
void d9di_run_sources_release(d9di_run_sources *s);
/* Once.  ENOTFOUND also where samples are made. */
d9d_status d9di_run_source_open(d9di_run_source *s);

#endif /* D9DI_REPORT_RUN_SOURCES_H */
