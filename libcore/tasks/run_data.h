/* run_data.h - the datasets of a configuration's data section, blended into one sample stream. */
#ifndef D9DI_TASKS_RUN_DATA_H
#define D9DI_TASKS_RUN_DATA_H

#include "d9d/data/loader/prefetch.h"
#include "d9d/job/job.h"

typedef struct d9di_run_data {
    size_t n;
    d9d_dataset **datasets; /* [n] */
    d9d_index_set *skips;   /* [n] */
    const d9d_job_data_section *sections;
    d9d_loader_opts opts;
    d9d_loader *loader;
} d9di_run_data;

/* Opens the datasets.  `pack`: group samples of similar length, for the bucketed order.  Rows are
 * padded so that the ranks of `mesh` can split the positions. */
d9d_status d9di_run_data_open(const d9d_list *sections,
                              const struct d9d_job_data_loading_section *c,
                              const d9d_parallel_degrees *mesh, int64_t pack, d9di_run_data *out);
void d9di_run_data_release(d9di_run_data *d);

/* Uses texts as a whole: d9d_dataset_set_no_targets().  ECONFIG for a dataset with packed samples
 * if `single`, or without labels if they are required. */
d9d_status d9di_run_data_set_no_targets(const d9di_run_data *d, bool single, bool labelled,
                                        const char *task);

/* Warns of two datasets of texts, among these and those of `other` (NULL: none), of which one has
 * the tokenizer's special tokens around its documents and the other has none. */
void d9di_run_data_warn_special(const d9di_run_data *d, const d9di_run_data *other,
                                const d9d_log *log);
/* Warns of a dataset of texts without special tokens whose tokenizer, that of the model to be, puts
 * some around a prompt: what is learnt and what is asked would begin in different ways. */
d9d_status d9di_run_data_warn_bare(const d9di_run_data *d, const d9d_log *log);

/* The multiple to which the positions of a row are padded: a multiple of `wanted` that divides
 * evenly over the ranks (d9d/nn/parallel_groups.h). */
int64_t d9di_run_data_pad_multiple(const d9d_parallel_degrees *mesh, int64_t wanted);

/* EMISMATCH unless token ids are below `vocab` and samples fit into the model's positions. */
d9d_status d9di_run_data_check(const d9di_run_data *d, int64_t vocab, int64_t positions);
/* Lets every sequence begin with the model's virtual tokens, if it has any.  EMISMATCH if samples
 * do not fit into its positions then, ENOTSUP as d9d_loader_set_virtual_tokens(). */
d9d_status d9di_run_data_add_prompt(const d9di_run_data *d, const d9d_model *m);
/* EMISMATCH if a dataset was made with a tokenizer that gives ids to other tokens than that of the
 * folder of the weights does, or that beside hf_config, which goes to the export.  NULL, or a
 * folder without a tokenizer, fits all. */
d9d_status d9di_run_data_check_tokenizer(const d9di_run_data *d, const char *source,
                                         const char *hf_config);
/* ECONFIG if this host has no memory for a micro-batch of this many rows, however short. */
d9d_status d9di_run_data_check_rows(const d9di_run_data *d, int64_t rows);
/* Prefetcher options for rank `rank` of `ranks`: the stream from sample `first` up to `end`. */
d9d_prefetcher_opts d9di_run_data_prefetch_opts(const struct d9d_job_data_loading_section *c,
                                                int64_t first, int64_t global, int64_t rank,
                                                int64_t ranks, int64_t rows, int64_t end);
/* ENOTSUP for a stream, of which inference does not know the end. */
d9d_status d9di_run_data_check_end(const d9di_run_data *d);
/* Number of steps of `global` samples: `wanted`, or the whole stream if that is D9D_INT_NULL. */
d9d_status d9di_run_data_steps(const d9di_run_data *d, int64_t global, int64_t wanted,
                               int64_t *out);
/* Logs the padding in batches of `rows` samples at the beginning of the stream, for the bucketed
 * order and for a shuffled one.  Logs nothing for other orders. */
d9d_status d9di_run_data_log_padding(const d9di_run_data *d, int64_t rows, const d9d_log *log);

/* Text such as "samples 3, 17, 4 of the split train", with numbers that d9d-shard inspect
 * accepts. */
typedef struct d9di_run_data_samples_text {
    char text[512]; /* room for eight numbers with their datasets */
} d9di_run_data_samples_text;
d9di_run_data_samples_text d9di_run_data_describe_samples(const d9di_run_data *d, int64_t first,
                                                          int64_t n);

#endif /* D9DI_TASKS_RUN_DATA_H */
