/* run_sources.h - the datasets of a run, from its config.json. */
#ifndef D9DI_REPORT_RUN_SOURCES_H
#define D9DI_REPORT_RUN_SOURCES_H

#include "d9d/base/json.h"
#include "d9d/data/dataset/dataset.h"

/* Names are borrowed from the run's configuration, or from the caller's directories. */
typedef struct d9di_run_source {
    const char *dir, *split;
    const char *made; /* the kind of a synthetic dataset; NULL: `dir` is a directory */
    d9d_dataset *ds;  /* set by d9di_run_source_open() */
} d9di_run_source;

typedef struct d9di_run_sources {
    json_t *config;
    d9di_run_source *sources;
    size_t n;
} d9di_run_sources; /* zero-initialised: empty */

/* The path of a file in the run directory; `run` is the directory or a file in it. */
d9d_status d9di_run_sources_file_path(d9d_arena *a, const char *run, const char *name,
                                      const char **out);
/* Reads the datasets of config.json; `dirs`, if any, replace their directories.  ENOTFOUND,
 * EFORMAT; ECONFIG if the number of `dirs` differs from the run's. */
d9d_status d9di_run_sources_read(d9d_arena *a, const char *run, const char *const *dirs,
                                 size_t n_dirs, d9di_run_sources *out);
void d9di_run_sources_release(d9di_run_sources *s);
/* Call once.  ENOTFOUND also for a synthetic dataset. */
d9d_status d9di_run_source_open(d9di_run_source *s);

#endif /* D9DI_REPORT_RUN_SOURCES_H */
