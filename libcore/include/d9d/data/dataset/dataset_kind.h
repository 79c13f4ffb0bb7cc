/* dataset_kind.h - synthetic datasets: samples computed by code instead of read from a directory.
 *
 *     "data": {"dataset": "sums", "source": {"name": "sums", "digits": 3}, "order": "shuffled"}
 *
 * A dataset kind is a table of functions that give the number of samples and the content of sample
 * k.  Sample k is a function of the configuration section and k alone, on any rank, thread and
 * machine.  A kind has no state: order, blend, ranks and the position for a resume are the loader's
 * (d9d/data/loader/loader.h).
 *
 *     static d9d_status facts(void *self, d9d_dataset_info *out) { ... how many, how long ... }
 *     static d9d_status sample(void *self, int64_t k, int64_t length, int32_t *ids,
 *                              int32_t *labels) { ... }
 *     static const d9d_dataset_kind sums = {sizeof(sums), &table, .facts = facts,
 *                                           .sample = sample};
 *
 * "random" is built in: tokens for benchmarks without data.  Plugins add others.
 */
#ifndef D9D_DATA_DATASET_DATASET_KIND_H
#define D9D_DATA_DATASET_DATASET_KIND_H

#include "d9d/config/config.h"
#include "d9d/data/dataset/dataset.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Zeroed before info() fills it in; must be the same on every rank. */
typedef struct d9d_dataset_info {
    int64_t samples; /* at least 1 */
    int64_t longest; /* positions of the longest sample, at least 1 */
    int64_t vocab;   /* ids and labels are less */
    d9d_hash hash;   /* of everything else that decides the samples; 0: nothing else.  A run resumes
                        only with the same hash */
    d9d_field_list fields; /* named tensors of each sample, borrowed; none is ragged */
} d9d_dataset_info;

/* Members may be NULL only where noted. */
typedef struct d9d_dataset_kind {
    size_t size;            /* sizeof(d9d_dataset_kind) */
    const d9d_table *table; /* key table of its section */
    /* `config` is the bound section.  NULL: `self` is the section. */
    d9d_status (*open)(const void *config, void **self);
    void (*close)(void *self); /* NULL: nothing to free */
    d9d_status (*info)(void *self, d9d_dataset_info *out);
    /* Positions of sample k, 1 <= n <= longest.  Never called concurrently.  NULL: always the
     * longest. */
    d9d_status (*length)(void *self, int64_t k, int64_t *out);
    /* Writes ids [length] and labels [length], the target of each position; -100: ignored.  Called
     * from several threads concurrently. */
    d9d_status (*sample)(void *self, int64_t k, int64_t length, int32_t *ids, int32_t *labels);
    /* Writes the values of the info's fields: values[i] is [length, shape] where field i is per
     * token or target, else [shape].  Called from several threads concurrently.  NULL: no fields.
     */
    d9d_status (*fields)(void *self, int64_t k, int64_t length, void *const *values);
} d9d_dataset_kind;

/* "name", and the built-in choices of the key "source": tables whose `row` is their kind. */
D9D_API extern const char *const d9d_dataset_tag[];
D9D_API extern const d9d_table *const d9d_dataset_choices[]; /* NULL-ended */

/* Opens a dataset of a bound section, which is borrowed; `name` is its name in messages.  It is
 * read and closed like any other, with one segment per sample; the functions for d9d-shard do not
 * apply.  ECONFIG: info() returned impossible numbers. */
D9D_API D9D_MUST_USE d9d_status d9d_dataset_synthesize(const d9d_union *section, const char *name,
                                                       d9d_dataset **out);

#ifdef __cplusplus
}
#endif
#endif /* D9D_DATA_DATASET_DATASET_KIND_H */
