/* run_data.h - the datasets of a configuration's data section, and the stream they make. */
#ifndef D9DI_TASKS_RUN_DATA_H
#define D9DI_TASKS_RUN_DATA_H

#include "d9d/data/loader/prefetch.h"
#include "d9d/job/job.h"

typedef struct d9di_run_data {
    size_t n;
    d9d_dataset **datasets; /* [n] */
    d9d_index_set *skips;   /* [n] */
    const d9d_job_data_section *sections;
    d9d_loader_opts how;
    d9d_loader *loader;
} d9di_run_data;

/* `pack`: samples of about one length in a row, for the bucketed order.  Rows are padded so that
 * the ranks of `mesh` can share out their positions. */
d9d_status d9di_run_data_open(const d9d_list *sections,
                              const struct d9d_job_data_loading_section *c,
                              const d9d_parallel_degrees *mesh, int64_t pack, d9di_run_data *out);
void d9di_run_data_release(d9di_run_data *d);

/* Texts are looked at as a whole: d9d_dataset_set_no_targets().  ECONFIG for a dataset whose
 * samples are packed, where `single`, or have no labels, where they are needed. */
d9d_status d9di_run_data_set_no_targets(const d9di_run_data *d, bool single, bool labelled,
                                        const char *task);

/* What the positions of a row are padded to a multiple of: `wanted`, and whole numbers of them for
 * each rank, as d9d/nn/parallel_groups.h says. */
int64_t d9di_run_data_pad_multiple(const d9d_parallel_degrees *mesh, int64_t wanted);

/* EMISMATCH unless ids are below the vocabulary and samples within the positions of a model. */
d9d_status d9di_run_data_check(const d9di_run_data *d, int64_t vocab, int64_t positions);
/* ECONFIG where this host has no memory for a micro-batch of so many rows, however short they are.
 */
d9d_status d9di_run_data_check_rows(const d9di_run_data *d, int64_t rows);
/* How rank `rank` of `ranks` takes the stream from sample `first` on, until `end`. */
d9d_prefetcher_opts d9di_run_data_prefetch_opts(const struct d9d_job_data_loading_section *c,
                                                int64_t first, int64_t global, int64_t rank,
                                                int64_t ranks, int64_t rows, int64_t end);
/* Steps of `global` samples: `wanted`, or as many as there are when that is D9D_INT_NULL. */
d9d_status d9di_run_data_steps(const d9di_run_data *d, int64_t global, int64_t wanted,
                               int64_t *out);
/* What is padding of rows of `rows` samples in the bucketed order, and had they been shuffled, of
 * the beginning of the stream, as a sentence; nothing for other orders. */
d9d_status d9di_run_data_log_padding(const d9di_run_data *d, int64_t rows, const d9d_log *log);

/* "samples 3, 17, 4 of the split train": numbers as d9d-shard inspect takes them. */
typedef struct d9di_run_data_samples_text {
    char text[512]; /* eight numbers with their datasets, whatever these are */
} d9di_run_data_samples_text;
d9di_run_data_samples_text d9di_run_data_describe_samples(const d9di_run_data *d, int64_t first,
                                                          int64_t n);

#endif /* D9DI_TASKS_RUN_DATA_H */
