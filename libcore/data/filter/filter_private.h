/* filter_private.h - the parts of d9d_filter_run(): reading, judging, writing. */
#ifndef D9DI_DATA_FILTER_FILTER_PRIVATE_H
#define D9DI_DATA_FILTER_FILTER_PRIVATE_H

#include "data/build/documents.h"
#include "data/filter/contamination.h"
#include "data/filter/duplicates.h"
#include "data/filter/minhash.h"
#include "data/filter/text_rules.h"

enum {
    D9DI_FILTER_EXAMPLES = 3,  /* of each rule, in the report */
    D9DI_FILTER_EXCERPT = 120, /* bytes of their texts */
    D9DI_FILTER_PLACES = 64,   /* documents that examples name, at most two each */
};

/* Scratch of one thread. */
typedef struct d9di_filter_worker {
    d9d_buf text, row;
    d9di_text_measures measures;
    d9di_text_words words;
    uint32_t *signature;
} d9di_filter_worker;

/* What is known of the documents of a chunk. */
typedef struct d9di_filter_chunk {
    d9di_document_chunk documents;
    D9D_VEC(int8_t) rules;    /* D9DI_TEXT_RULE_NONE or the first one that is broken, */
    D9D_VEC(d9d_hash) hashes; /* and of those that keep all of a text's rules: its hash, */
    D9D_VEC(uint64_t) keys;   /* and the keys of its bands */
} d9di_filter_chunk;

/* The run. */
typedef struct d9di_filter {
    const d9d_filter_opts *opts;
    d9d_shard_opts reading; /* the options of the reader */
    d9di_input_splits splits;
    double thresholds[D9DI_TEXT_RULES];
    d9di_contamination contamination;
    d9di_minhash minhash; /* bands 0: near duplicates stay */
    d9di_duplicates duplicates;
    D9D_VEC(int8_t) rules; /* of every document */
    d9d_filter_report *report;
    json_t *examples; /* by rule */
} d9di_filter;

/* The text of a document, in w->text; false in *readable if it is no record and that is skipped.
 * *raw and *n: the object that is written, or the text itself. */
d9d_status d9di_filter_get_text(const d9di_filter *f, d9di_filter_worker *w,
                                const d9di_document_chunk *c, const d9di_document_record *doc,
                                const char **raw, size_t *n, bool *readable);
/* Judges the documents of a chunk. */
d9d_status d9di_filter_judge_chunk(const d9di_filter *f, d9di_filter_worker *w,
                                   d9di_filter_chunk *c);
void d9di_filter_worker_release(d9di_filter_worker *w);
void d9di_filter_chunk_release(d9di_filter_chunk *c);

/* Reads all inputs again and writes what is kept to `out`; collects examples of the rest. */
d9d_status d9di_filter_write(d9di_filter *f, const d9d_log *log, d9di_out_file *out);
/* Writes report.json into `dir`. */
d9d_status d9di_filter_write_report(const d9di_filter *f, const char *dir);

#endif
