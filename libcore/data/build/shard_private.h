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
typedef struct d9di_shares {
    struct {
        char name[64];
        double upto;
    } split[D9DI_MAX_SPLITS];
    int64_t counts[D9DI_MAX_SPLITS]; /* for d9di_join_how */
    size_t n;
} d9di_shares;

/* What becomes of documents that are too long, and the most positions of one that is not. */
d9d_overflow d9di_overflow_of(const d9d_shard_how *how);
int64_t d9di_longest_document(const d9d_shard_how *how);

/* Options that contradict each other are ECONFIG. */
d9d_status d9di_shard_check(const d9d_shard_how *how, d9di_shares *shares);
/* The share of a document, and the key of its samples. */
void d9di_shares_pick(const d9di_shares *shares, int64_t seed, const uint32_t *ids, size_t n,
                      size_t *split, uint32_t *key);

/* Tokenise the documents of a chunk: ids, labels and what belongs to which document.  `tok`
 * is NULL for given ids without a tokenizer.  A failure names the input, line and byte. */
typedef struct d9di_tokenise {
    const d9d_shard_how *how;
    const d9di_pieces *pieces;
    const d9d_tokenizer *tok;
    d9di_chat *chat; /* NULL but for chats */
    uint32_t vocab;
    bool has_eos;
    uint32_t eos;
} d9di_tokenise;
typedef struct d9di_worker {
    d9d_tokenizer_scratch *scratch; /* NULL without a tokenizer */
    d9d_buf text;
    d9di_messages messages;
    d9di_rendering rendering;
} d9di_worker;
d9d_status d9di_tokenise_chunk(const d9di_tokenise *t, d9di_worker *w, d9di_text_chunk *c);

/* --- what is to be done, and where ------------------------------------------------------------ */

enum { D9DI_MAX_BESIDE = 8 };

typedef struct d9di_plan {
    const d9d_shard_how *how;
    d9di_shares shares;
    d9di_tokenise tokenise; /* owns its tokenizer */
    d9di_pieces pieces;
    int64_t part;
    d9d_hash job;
    bool repeatable; /* every input is a file */
    d9di_unit_how unit;
    d9di_packer_how packer;                 /* of units */
    d9di_data_file beside[D9DI_MAX_BESIDE]; /* what a dataset has beside its tokens */
    size_t n_beside;
    d9di_packer_how packs; /* of what is made of all units; of size 0: units have packs */
} d9di_plan;               /* zero-initialised may be released */

d9d_status d9di_plan_make(const d9d_shard_how *how, d9di_plan *out);
void d9di_plan_release(d9di_plan *p);
/* Whether the piece is for this task. */
bool d9di_plan_has(const d9di_plan *p, size_t piece);
/* EIO unless all inputs of this task are what they were when it was planned. */
d9d_status d9di_plan_check_inputs(const d9di_plan *p);
/* The manifest of what is planned. */
d9d_status d9di_plan_manifest(const d9di_plan *p, d9di_manifest *out);

/* plan.json of a working directory or a part. */
typedef struct d9di_plan_file {
    d9d_hash job;
    int64_t pieces, task, tasks;
    int64_t shard_bytes; /* 0: not said */
    int64_t counts[D9DI_MAX_SPLITS];
    d9di_manifest manifest;
} d9di_plan_file; /* zero-initialised may be released */
d9d_status d9di_plan_write(const d9di_plan *p, const char *dir);
d9d_status d9di_plan_read(const char *dir, d9di_plan_file *out);
void d9di_plan_file_release(d9di_plan_file *f);

/* What lies beside the tokenizer, and the template, with their hashes. */
d9d_status d9di_beside_look(d9di_plan *p);
/* Copy all of it; EFORMAT, with both hashes, for what is not as it was. */
d9d_status d9di_beside_copy(const d9di_plan *p, const char *dir);
d9d_status d9di_beside_take(const char *from, const char *to, d9d_hash want);

/* How documents of this recipe are packed. */
d9di_packer_how d9di_plan_packer(const d9di_recipe *recipe, size_t n_splits, bool wide);

/* --- doing it ----------------------------------------------------------------------------------
 */

/* Make every unit of the plan's pieces that is not there yet.  *progressed: some are there,
 * even after a failure. */
d9d_status d9di_shard_work(const d9di_plan *p, const d9d_log *log, bool *progressed);

/* --- a working directory that is kept for the next run ------------------------------------------
 */

/* Locked, and free of what killed runs left in it.  EIO when another process has the lock. */
d9d_status d9di_workdir_begin(d9d_outdir *o, const char *path, bool replace);
/* Nothing of an earlier run stays in it. */
d9d_status d9di_workdir_clear(const d9d_outdir *o);
/* Keep it if it was not committed and `keep`, or if another run has it. */
void d9di_workdir_release(d9d_outdir *o, bool keep);

/* Write manifest.json. */
d9d_status d9di_manifest_write(const d9di_manifest *m, const char *dir);
/* Say what was made. */
void d9di_shard_say(const d9di_manifest *m, const char *out, const d9d_log *log,
                    d9d_shard_report *report);

#endif
