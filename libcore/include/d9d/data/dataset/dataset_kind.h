/* dataset_kind.h - datasets that code makes: samples computed instead of read from a directory, and
 * streams.
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
 *
 * Streams.  A kind whose samples nobody has counted says D9D_DATASET_STREAM of them, and has
 * poll(). Sample k is still one and the same on every rank, in every run; but it may come later, or
 * never:
 *
 *     poll(k)     is sample k there, is it yet to come, or has the stream ended before it?
 *     forget(k)   nobody asks for a sample before k any more
 *     tell(k)     some bytes, with which another process finds sample k again: they are saved
 *     seek(k)     the same bytes: sample k and what follows is asked for next
 *
 * A run takes the samples of a stream in their order, once; it is as long as trainer.run.steps
 * says, or ends before, where the stream ends.  Each rank reads the whole stream and keeps what is
 * not forgotten, so that ranks need no messages about it.  Where reading is dear, they share it:
 *
 *     share()         from now on poll() knows what set_surveys() tells, and nothing else
 *     survey()        some bytes that this rank has found out for all, such as lengths of texts
 *     set_surveys()   those of all ranks: from them each knows the same samples
 *
 * Functions of a stream are called from several threads at a time.  "stream" is built in: JSON
 * lines of a growing file or folder, packed.
 */
#ifndef D9D_DATA_DATASET_DATASET_KIND_H
#define D9D_DATA_DATASET_DATASET_KIND_H

#include "d9d/config/config.h"
#include "d9d/data/dataset/dataset.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { D9D_DATASET_STREAM = -1 }; /* samples: nobody knows how many */

/* Zeroed before info() fills it in; must be the same on every rank. */
typedef struct d9d_dataset_info {
    int64_t samples; /* at least 1, or D9D_DATASET_STREAM */
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
    /* The number of each position's document, from 1 on, ascending: documents are packed, and see
     * nothing of each other.  Called as sample().  NULL: a sample is one document. */
    d9d_status (*documents)(void *self, int64_t k, int64_t length, int32_t *number);
    /* Of a stream, see above.  Does not wait.  length(), sample() and the others are called for
     * samples that are present and not forgotten. */
    d9d_status (*poll)(void *self, int64_t k, d9d_dataset_presence *out);
    void (*forget)(void *self, int64_t k); /* NULL: nothing to free */
    /* Appends at most D9D_DATASET_STATE_MAX bytes to `state`; k is 0 or follows a sample that was
     * present, and is not forgotten. */
    d9d_status (*tell)(void *self, int64_t k, d9d_buf *state);
    /* Called before any sample is read.  NULL, as tell(): the stream cannot be read again, and a
     * run of it does not resume. */
    d9d_status (*seek)(void *self, int64_t k, const void *state, size_t n);
    /* As d9d_dataset_share(), d9d_dataset_survey_make() and d9d_dataset_survey_set().  All or none;
     * NULL: every rank finds all samples by itself. */
    void (*share)(void *self);
    d9d_status (*survey)(void *self, int rank, int ranks, bool needed, d9d_buf *out);
    d9d_status (*set_surveys)(void *self, const d9d_dataset_survey *all, int ranks, bool *more);
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
