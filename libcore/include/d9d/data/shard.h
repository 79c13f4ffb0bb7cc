/* shard.h - text to dataset: what d9d-shard does.
 *
 *     inputs -> documents -> ids -> samples -> shards and spools -> index, manifest
 *
 * Documents are read in the order of the inputs, tokenised on all threads in chunks of
 * about 1 MiB, and written in their order again, so the bytes of a dataset depend on the
 * inputs, the options and the version, and on nothing else: not on the number of jobs, nor
 * on interruptions.
 *
 * From document to samples.  A document of n tokens has n - 1 positions (n where its labels
 * are given); one without a position is counted and left out.  One with more than
 * max_length positions is split into samples that follow each other without losing a target,
 * truncated, or dropped.  With `pack` whole documents are put together, best fit first, to
 * samples of at most `pack` positions; a segment is one document, and packs are closed at
 * the end of each block.
 *
 * Splits.  Document d goes to the split in whose share a random number of (seed, d) falls, so
 * a document is in one split whole, and in the same one whatever comes behind it.  Shares
 * are met about, not exactly.  Samples are then numbered split by split, and with a shuffle
 * seed permuted within each.
 *
 * A run works in "<out>.partial" and renames it at the end.  After each block of 16 chunks
 * its state goes to "journal.json" there.  The same command, run again after an
 * interruption, goes on from it if every input still has its size and time; any other
 * command starts over.  What comes from stdin is read from the start.
 */
#ifndef D9D_DATA_SHARD_H
#define D9D_DATA_SHARD_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "d9d/base/log.h"
#include "d9d/base/status.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef enum d9d_shard_format {
    D9D_SHARD_BY_NAME, /* text for names that end in .txt (.gz, .zst), else JSON lines */
    D9D_SHARD_JSONL,   /* a line: {"text": "..."} */
    D9D_SHARD_TEXT,    /* a document a file, or a line with `lines` */
    D9D_SHARD_TOKENS   /* a line: {"input_ids": [...]}, with "labels": [...] if targets are given */
} d9d_shard_format;

typedef enum d9d_overflow {
    D9D_OVERFLOW_SPLIT,
    D9D_OVERFLOW_TRUNCATE,
    D9D_OVERFLOW_DROP
} d9d_overflow;

/* Strings and arrays are borrowed. */
typedef struct d9d_shard_how {
    const char *const *inputs; /* paths; "-" is stdin; gzip and zstd are told by content */
    size_t n_inputs;
    const char *out;
    const char *tokenizer; /* NULL only with TOKENS: any id below 2^24 then, stored as u32 */
    d9d_shard_format format;
    bool lines;
    const char *text_key;   /* NULL: "text" */
    const char *append_eos; /* token behind every document; NULL: none */
    int64_t max_length;     /* positions of a sample; 0: any, or `pack` */
    d9d_overflow overflow;
    const int64_t *edges; /* ascending lengths that bound the buckets */
    size_t n_edges;
    int64_t pack;        /* 0: a sample is one document or a part of it */
    int64_t seed;        /* of shuffling; -1: samples in the order of their documents */
    const char *split;   /* "train=0.99,valid=0.01", shares that add up to 1; NULL: all train */
    int64_t shard_bytes; /* of a tokens file; 0: 1 GB */
    int jobs;            /* threads; 0: one a processor */
    bool replace;        /* a directory that is there */
} d9d_shard_how;

typedef struct d9d_shard_report {
    int64_t documents, too_short, dropped, truncated, split;
    int64_t samples, tokens, positions;
    uint32_t shards;
} d9d_shard_report;

/* ECONFIG for options that contradict each other and for an `out` that is not empty; what
 * is wrong with an input names its file, line and byte.  A run without one sample is
 * EFORMAT. */
D9D_API D9D_MUST_USE d9d_status d9d_shard_run(const d9d_shard_how *how, const d9d_log *log,
                                              d9d_shard_report *out);

#ifdef __cplusplus
}
#endif
#endif /* D9D_DATA_SHARD_H */
