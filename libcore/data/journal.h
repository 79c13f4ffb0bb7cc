/* journal.h - how far a run has come, so that the next one can go on. */
#ifndef D9DI_DATA_JOURNAL_H
#define D9DI_DATA_JOURNAL_H

#include "data/documents.h"
#include "data/sink.h"

typedef struct d9di_journal {
    d9d_hash job; /* of inputs and options: only the same run goes on */
    d9di_place place;
    d9di_documents documents;
    d9di_sink_state store;
    int64_t *source_bytes; /* [n_sources], of those that are behind */
    size_t n_sources;
} d9di_journal;

/* What `how` is, with the sizes and times of its inputs and the tokenizer's hash.
 * *repeatable is false when an input is no regular file. */
d9d_status d9di_journal_job(const d9d_shard_how *how, const d9d_hash *tokenizer, d9d_hash *out,
                            bool *repeatable);

d9d_status d9di_journal_write(const char *dir, const d9di_journal *j);
/* *found is false when there is none, or one that is of another job or cannot be read;
 * source_bytes must have room for n_sources. */
d9d_status d9di_journal_read(const char *dir, d9di_journal *j, bool *found);

#endif
