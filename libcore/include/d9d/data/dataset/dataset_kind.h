/* dataset_kind.h - samples that a program makes, in the place of a directory of them.
 *
 *     "data": {"dataset": "sums", "source": {"name": "sums", "digits": 3}, "order": "shuffled"}
 *
 * A kind of dataset is a table of functions: how many samples there are, and what sample k is.
 * Sample k is a function of the section and k alone, on any rank, thread and machine; so the order,
 * the blend, the ranks' parts and the place at which a run goes on are the loader's affair, whose
 * state is one number (d9d/data/loader/loader.h), and a kind has none.
 *
 *     static d9d_status facts(void *self, d9d_dataset_info *out) { ... how many, how long ... }
 *     static d9d_status sample(void *self, int64_t k, int64_t length, int32_t *ids,
 *                              int32_t *labels) { ... }
 *     static const d9d_dataset_kind sums = {sizeof(sums), &table, .facts = facts,
 *                                           .sample = sample};
 *
 * "random" is built in: tokens for measuring without data.  Others come from plugins.
 */
#ifndef D9D_DATA_DATASET_DATASET_KIND_H
#define D9D_DATA_DATASET_DATASET_KIND_H

#include "d9d/config/config.h"
#include "d9d/data/dataset/dataset.h"

#ifdef __cplusplus
extern "C" {
#endif

/* All of it zero before it is filled in; the same on every rank. */
typedef struct d9d_dataset_info {
    int64_t samples; /* at least 1 */
    int64_t longest; /* positions of the longest sample, at least 1 */
    int64_t vocab;   /* ids and labels are below it */
    d9d_hash hash;   /* of what samples are made of besides the three above; 0: nothing else.  A run
                      * goes on with the same alone */
} d9d_dataset_info;

/* A member that may be NULL says so. */
typedef struct d9d_dataset_kind {
    size_t size;            /* sizeof(d9d_dataset_kind) */
    const d9d_table *table; /* of its section */
    /* `config` is the section, bound.  NULL: `self` is the section. */
    d9d_status (*open)(const void *config, void **self);
    void (*close)(void *self); /* NULL: nothing to free */
    d9d_status (*info)(void *self, d9d_dataset_info *out);
    /* Positions of sample k, from 1 to the longest; one call at a time.  NULL: the longest. */
    d9d_status (*length)(void *self, int64_t k, int64_t *out);
    /* ids [length], and the target of each position: -100 does not count.  Called by several
     * threads at once. */
    d9d_status (*sample)(void *self, int64_t k, int64_t length, int32_t *ids, int32_t *labels);
} d9d_dataset_kind;

/* "name", and the built-in choices of the key "source": tables whose `row` is their kind. */
D9D_API extern const char *const d9d_dataset_tag[];
D9D_API extern const d9d_table *const d9d_dataset_choices[]; /* NULL-ended */

/* A dataset of a bound section, which is borrowed; `name` is what sentences call it.  It is closed
 * and read as any other, with one segment a sample; what is said for d9d-shard alone is not for
 * it.  ECONFIG for facts that cannot be. */
D9D_API D9D_MUST_USE d9d_status d9d_dataset_synthesize(const d9d_union *section, const char *name,
                                                       d9d_dataset **out);

#ifdef __cplusplus
}
#endif
#endif /* D9D_DATA_DATASET_DATASET_KIND_H */
