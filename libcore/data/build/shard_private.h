/* shard_private.h - the parts of a run of d9d_shard_run(). */
#ifndef D9DI_DATA_BUILD_SHARD_PRIVATE_H
#define D9DI_DATA_BUILD_SHARD_PRIVATE_H

#include "data/build/documents.h"
#include "data/build/packer.h"
#include "data/build/shard_unit.h"
#include "data/chat/chat_private.h"

#define D9DI_MAX_TASKS INT64_C(2147483647) /* that inputs are dealt to */

/* Shares of the splits, cumulated: a document goes to the first split whose `upto` is above
 * its random number in [0, 1), which is a function of the seed and its ids.  Splits of given
 * size have no share; when all are joined, they take samples from the others. */
typedef struct d9di_shard_splits {
    struct {
        char name[64];
        double upto;
    } split[D9DI_MAX_SPLITS];
    int64_t counts[D9DI_MAX_SPLITS]; /* for d9di_assemble_opts */
    size_t n;
} d9di_shard_splits;

/* What becomes of documents that are too long, and the most positions of one that is not. */
d9d_shard_overflow d9di_shard_resolve_overflow(const d9d_shard_opts *how);
int64_t d9di_shard_max_document(const d9d_shard_opts *how);

/* Options that contradict each other are ECONFIG. */
d9d_status d9di_shard_check(const d9d_shard_opts *how, d9di_shard_splits *shares);
/* The share of a document, and the key of its samples. */
void d9di_shard_pick_split(const d9di_shard_splits *shares, int64_t seed, const uint32_t *ids,
                           size_t n, size_t *split, uint32_t *key);

/* Tokenise the documents of a chunk: ids, labels and what belongs to which document.  `tok`
 * is NULL for given ids without a tokenizer.  A failure names the input, line and byte. */
typedef struct d9di_shard_tokenizer {
    const d9d_shard_opts *how;
    const d9di_input_splits *input_splits;
    const d9d_tokenizer *tok;
    d9di_chat *chat; /* NULL but for chats */
    uint32_t vocab;
    bool has_eos;
    uint32_t eos;
} d9di_shard_tokenizer;
typedef struct d9di_shard_worker {
    d9d_tokenizer_scratch *scratch; /* NULL without a tokenizer */
    d9d_buf text;
    d9di_chat_messages messages;
    d9di_chat_rendering rendering;
} d9di_shard_worker;
d9d_status d9di_shard_tokenize_chunk(const d9di_shard_tokenizer *t, d9di_shard_worker *w,
                                     d9di_document_chunk *c);

/* --- what is to be done, and where ------------------------------------------------------------ */

enum { D9DI_MAX_AUX_FILES = 8 };

typedef struct d9di_shard_plan {
    const d9d_shard_opts *how;
    d9di_shard_splits splits;
    d9di_shard_tokenizer tokenizer; /* owns its tokenizer */
    d9di_input_splits input_splits;
    int64_t unit_bytes;
    d9d_hash job;
    bool repeatable; /* every input is a file */
    d9di_shard_unit_opts unit;
    d9di_packer_opts packer;                         /* of units */
    d9di_dataset_file aux_files[D9DI_MAX_AUX_FILES]; /* what a dataset has beside its tokens */
    size_t n_aux_files;
    d9di_packer_opts packs; /* of what is made of all units; of size 0: units have packs */
} d9di_shard_plan;          /* zero-initialised may be released */

d9d_status d9di_shard_plan_init(const d9d_shard_opts *how, d9di_shard_plan *out);
void d9di_shard_plan_release(d9di_shard_plan *p);
/* Whether the piece is for this task. */
bool d9di_shard_plan_has_split(const d9di_shard_plan *p, size_t input_split);
/* EIO unless all inputs of this task are what they were when it was planned. */
d9d_status d9di_shard_plan_check_inputs(const d9di_shard_plan *p);
/* The manifest of what is planned. */
d9d_status d9di_shard_plan_manifest(const d9di_shard_plan *p, d9di_dataset_manifest *out);

/* plan.json of a working directory or a part. */
typedef struct d9di_shard_plan_file {
    d9d_hash job;
    int64_t n_input_splits, task, tasks;
    int64_t shard_bytes; /* 0: not said */
    int64_t counts[D9DI_MAX_SPLITS];
    d9di_dataset_manifest manifest;
} d9di_shard_plan_file; /* zero-initialised may be released */
d9d_status d9di_shard_plan_write(const d9di_shard_plan *p, const char *dir);
d9d_status d9di_shard_plan_read(const char *dir, d9di_shard_plan_file *out);
void d9di_shard_plan_file_release(d9di_shard_plan_file *f);

/* What lies beside the tokenizer, and the template, with their hashes. */
d9d_status d9di_shard_aux_files_find(d9di_shard_plan *p);
/* Copy all of it; EFORMAT, with both hashes, for what is not as it was. */
d9d_status d9di_shard_aux_files_copy(const d9di_shard_plan *p, const char *dir);
d9d_status d9di_shard_aux_file_copy(const char *from, const char *to, d9d_hash want);

/* How documents of this recipe are packed. */
d9di_packer_opts d9di_shard_plan_packer(const d9di_dataset_recipe *recipe, size_t n_splits,
                                        bool wide);

/* --- doing it ----------------------------------------------------------------------------------
 */

/* Make every unit of the plan's pieces that is not there yet.  *progressed: some are there,
 * even after a failure. */
d9d_status d9di_shard_make_units(const d9di_shard_plan *p, const d9d_log *log, bool *progressed);

/* --- a working directory that is kept for the next run ------------------------------------------
 */

/* Locked, and free of what killed runs left in it.  EIO when another process has the lock. */
d9d_status d9di_shard_workdir_open(d9d_outdir *o, const char *path, bool replace);
/* Nothing of an earlier run stays in it. */
d9d_status d9di_shard_workdir_clear(const d9d_outdir *o);
/* Keep it if it was not committed and `keep`, or if another run has it. */
void d9di_shard_workdir_release(d9d_outdir *o, bool keep);

/* Write manifest.json. */
d9d_status d9di_dataset_manifest_write(const d9di_dataset_manifest *m, const char *dir);
/* Say what was made. */
void d9di_shard_log_result(const d9di_dataset_manifest *m, const char *out, const d9d_log *log,
                           d9d_shard_report *report);

#endif
