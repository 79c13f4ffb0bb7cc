/* shard_private.h - the parts of a run of d9d_shard_run(). */
#ifndef D9DI_DATA_BUILD_SHARD_PRIVATE_H
#define D9DI_DATA_BUILD_SHARD_PRIVATE_H

#include "data/build/documents.h"
#include "data/build/packer.h"
#include "data/build/shard_fields.h"
#include "data/build/shard_unit.h"
#include "data/chat/chat_private.h"

#define D9DI_MAX_TASKS INT64_C(2147483647) /* tasks that share the inputs */

/* Cumulative shares of the splits.  A document goes to the first split whose `upto` is above its
 * random number in [0, 1), a function of the seed and its ids.  Splits of given size have no share;
 * at assembly they take documents from the others. */
typedef struct d9di_shard_splits {
    struct {
        char name[64];
        double upto;
    } split[D9DI_MAX_SPLITS];
    int64_t counts[D9DI_MAX_SPLITS]; /* see d9di_assemble_opts */
    size_t n;
} d9di_shard_splits;

/* True if inputs are rendered by a chat template.  Documents of a record of answers; 0: records are
 * single documents. */
bool d9di_shard_has_chats(const d9d_shard_opts *opts);
int64_t d9di_shard_record_documents(const d9d_shard_opts *opts);
/* The effective policy for documents that are too long, and the most positions of one that is
 * not. */
d9d_shard_overflow d9di_shard_resolve_overflow(const d9d_shard_opts *opts);
int64_t d9di_shard_max_document(const d9d_shard_opts *opts);

/* ECONFIG if options contradict each other. */
d9d_status d9di_shard_check(const d9d_shard_opts *opts, d9di_shard_splits *shares);
/* ECONFIG if the inputs have no such fields. */
d9d_status d9di_shard_check_fields(const d9d_shard_opts *opts, d9d_field_list fields);
/* Picks the split of a document, and the key of its samples. */
void d9di_shard_pick_split(const d9di_shard_splits *shares, int64_t seed,
                           const d9di_shard_document *doc, size_t *split, uint32_t *key);

/* Tokenises the documents of a chunk: ids, labels and their ranges per document.  `tok` is NULL for
 * given ids without tokenizer.  Errors name the input, line and byte. */
typedef struct d9di_shard_tokenizer {
    const d9d_shard_opts *opts;
    const d9di_input_splits *input_splits;
    const d9d_tokenizer *tok;
    d9di_chat *chat; /* NULL unless inputs are chats */
    const d9di_shard_fields *fields;
    uint32_t vocab;
    bool has_eos;
    uint32_t eos;
    bool adds_special;
    size_t n_special; /* special tokens of a document, if they are added */
} d9di_shard_tokenizer;
typedef struct d9di_shard_worker {
    d9d_tokenizer_scratch *scratch; /* NULL without a tokenizer */
    d9d_buf text, pair, row;        /* texts of a record; the object of a table's row */
    d9d_token_ids texts[2];         /* their ids */
    d9di_chat_rendering rendering;
    d9di_shard_field_values values;
} d9di_shard_worker;
/* True if some documents are texts. */
bool d9di_shard_has_texts(const d9d_shard_opts *opts);
/* Sets what t->tok adds to a document; an end that it adds is not appended again.  ECONFIG if it
 * cannot be added, or leaves no room for a text. */
d9d_status d9di_shard_special_plan(d9di_shard_tokenizer *t);
/* Appends the ids of a document's text and of its pair (NULL: there is none), special tokens and
 * truncation included. */
d9d_status d9di_shard_encode_texts(const d9di_shard_tokenizer *t, d9di_shard_worker *w,
                                   const d9d_buf *text, const d9d_buf *pair, d9d_token_ids *out,
                                   d9di_document_record *doc);
d9d_status d9di_shard_tokenize_chunk(const d9di_shard_tokenizer *t, d9di_shard_worker *w,
                                     d9di_document_chunk *c);

/* --- the plan ------------------------------------------------------------ */

enum { D9DI_MAX_AUX_FILES = 7 };

typedef struct d9di_shard_plan {
    const d9d_shard_opts *opts;
    d9di_shard_splits splits;
    d9di_shard_tokenizer tokenizer; /* owns its tokenizer */
    d9di_shard_fields fields;
    d9di_input_splits input_splits;
    int64_t unit_bytes;
    d9d_hash job;
    bool repeatable; /* every input is a regular file */
    d9di_shard_unit_opts unit;
    d9di_packer_opts packer;                         /* packing of units */
    d9di_dataset_file aux_files[D9DI_MAX_AUX_FILES]; /* the dataset's auxiliary files */
    size_t n_aux_files;
    d9di_packer_opts packs; /* packing at assembly; size 0: units are packed already */
} d9di_shard_plan;          /* zero-initialised may be released */

d9d_status d9di_shard_plan_init(const d9d_shard_opts *opts, const d9d_log *log,
                                d9di_shard_plan *out);
void d9di_shard_plan_release(d9di_shard_plan *p);
/* True if this task processes the input split. */
bool d9di_shard_plan_has_split(const d9di_shard_plan *p, size_t input_split);
/* EIO unless all inputs of this task are unchanged since they were planned. */
d9d_status d9di_shard_plan_check_inputs(const d9di_shard_plan *p);
/* Fills the manifest with what is planned. */
d9d_status d9di_shard_plan_manifest(const d9di_shard_plan *p, d9di_dataset_manifest *out);

/* plan.json of a working directory or of a task's part. */
typedef struct d9di_shard_plan_file {
    d9d_hash job;
    int64_t n_input_splits, task, tasks;
    int64_t shard_bytes; /* 0: unknown */
    int64_t counts[D9DI_MAX_SPLITS];
    d9di_dataset_manifest manifest;
} d9di_shard_plan_file; /* zero-initialised may be released */
d9d_status d9di_shard_plan_write(const d9di_shard_plan *p, const char *dir);
d9d_status d9di_shard_plan_read(const char *dir, d9di_shard_plan_file *out);
void d9di_shard_plan_file_release(d9di_shard_plan_file *f);

/* Finds the tokenizer's auxiliary files and the template, with their hashes. */
d9d_status d9di_shard_aux_files_find(d9di_shard_plan *p);
/* Copies them all.  EFORMAT, with both hashes, if one has changed. */
d9d_status d9di_shard_aux_files_copy(const d9di_shard_plan *p, const char *dir);
d9d_status d9di_shard_aux_file_copy(const char *from, const char *to, d9d_hash want);

/* The packing options of a recipe. */
d9di_packer_opts d9di_shard_plan_packer(const d9di_dataset_recipe *recipe, size_t n_splits,
                                        bool wide, d9d_field_list fields);

/* --- making units
 * ----------------------------------------------------------------------------------
 */

/* Makes every missing unit of the plan's input splits.  *progressed: some units exist, even after a
 * failure. */
d9d_status d9di_shard_make_units(const d9di_shard_plan *p, const d9d_log *log, bool *progressed);

/* --- the working directory, kept for a resume ---------------------------------------------- */

/* Opens and locks it, and removes leftovers of killed runs.  EIO if another process holds the
 * lock. */
d9d_status d9di_shard_workdir_open(d9d_outdir *o, const char *path, bool replace);
/* Removes everything of an earlier run. */
d9d_status d9di_shard_workdir_clear(const d9d_outdir *o);
/* Releases it; keeps the directory if it was not committed and `keep`, or if another run has it. */
void d9di_shard_workdir_release(d9d_outdir *o, bool keep);

/* Writes manifest.json. */
d9d_status d9di_dataset_manifest_write(const d9di_dataset_manifest *m, const char *dir);
/* Logs what was made. */
void d9di_shard_log_result(const d9di_dataset_manifest *m, const char *out, const d9d_log *log,
                           d9d_shard_report *report);

#endif
