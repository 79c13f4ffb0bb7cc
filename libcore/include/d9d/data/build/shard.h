/* shard.h - text to dataset: what d9d-shard does.
 *
 *     inputs -> documents -> ids -> samples -> shards and spools -> index, manifest
 *
 * The inputs are cut into pieces of a part's bytes (libcore/data/build/input_splits.h), whose
 * documents are read in order, tokenised on all threads in chunks of about 1 MiB, and written in
 * their order to the shards of the piece.  What is made of a piece depends on nothing outside it,
 * so the bytes of a dataset depend on the inputs, the options and the version: not on the number of
 * jobs or of tasks that share the pieces, nor on interruptions.
 *
 *     inputs   | a.jsonl           | b.jsonl.zst |
 *     pieces   | 0     | 1     | 2 | 3           |
 *     tasks    | 0             | 1               |   --task 0/2, --task 1/2
 *     shards   | 0     | 1     | 2 | 3  | 4  | 5 |   one index over all
 *
 * From document to samples.  A document of n tokens has n - 1 positions (n where its labels
 * are given); one without a position is counted and left out.  One with more than
 * max_length positions is split into samples that follow each other without losing a target,
 * truncated, or dropped.  A chat is truncated by whole turns, behind the last trained one that
 * fits, and dropped when none does; that is the default for chats, as a part that begins in the
 * middle of an answer teaches the wrong thing.  With `pack` several documents are put together to
 * samples of at most `pack` positions (libcore/data/build/packer.h); a segment is one document.
 *
 * Splits.  A document goes to the split in whose share a random number of the seed and its ids
 * falls, so a document is in one split whole, equal ones are in the same, and what stands
 * around it is of no matter.  Shares are met about, not exactly.  The ids are those that are kept:
 * documents that are equal when truncated are equal ones.
 *
 * A split of a given number of samples takes documents before the others share what is left: those
 * of the least random numbers, so many that their samples come as close to the number as whole
 * documents allow, and at least one.  Which these are is known when all inputs are read.  With
 * `pack` documents therefore stay as they are until then; those of such a split are packed
 * together, the others piece by piece.  (It takes the space of all tokens once more while it
 * lasts.)  Samples are then numbered split by split, and with a shuffle seed permuted within each.
 *
 * A run works in "<out>.partial" and renames it at the end.  The same command, run again after
 * an interruption, goes on behind the pieces that are whole, if every input still has its size
 * and time; any other command starts over.  What comes from stdin is read from the start.  An input
 * that is changed between the beginning of a run and its last byte is EIO, and nothing is kept.
 * Memory is bounded, whatever the size of the inputs and of the index.
 *
 * Bad records.  A record that cannot become ids ends the run, or with D9D_SHARD_ON_ERROR_SKIP is
 * left out, counted by reason in the report and in manifest.json, and listed in skipped.jsonl of
 * the dataset, the first 1000 of all inputs.  What damages more than a record ends the run in any
 * case: an input that cannot be read or decompressed, a line of more than 256 MiB, options that
 * contradict what records have.
 */
#ifndef D9D_DATA_BUILD_SHARD_H
#define D9D_DATA_BUILD_SHARD_H

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
    D9D_SHARD_TOKENS,  /* a line: {"input_ids": [...]}, with "labels": [...] if targets are given */
    D9D_SHARD_CHAT,    /* a line: {"messages": [{"role": "user", "content": "..."}, ...]} */
    D9D_SHARD_MEGATRON /* NAME.bin with NAME.idx beside it: token files of Megatron-LM */
} d9d_shard_format;

typedef enum d9d_shard_pack_mode {
    D9D_SHARD_PACK_BEST_FIT, /* whole documents, so that little room is left */
    D9D_SHARD_PACK_CONCAT    /* documents one behind the other, cut where a sample is full */
} d9d_shard_pack_mode;

typedef enum d9d_shard_overflow {
    D9D_SHARD_OVERFLOW_BY_FORMAT, /* chats are truncated, other documents split */
    D9D_SHARD_OVERFLOW_SPLIT,
    D9D_SHARD_OVERFLOW_TRUNCATE, /* a chat behind the last trained turn that fits */
    D9D_SHARD_OVERFLOW_DROP
} d9d_shard_overflow;

typedef enum d9d_shard_on_error {
    D9D_SHARD_ON_ERROR_STOP,
    D9D_SHARD_ON_ERROR_SKIP
} d9d_shard_on_error;

/* Why a record is bad. */
typedef enum d9d_shard_bad_record {
    D9D_SHARD_BAD_UTF8,   /* its text is no UTF-8 */
    D9D_SHARD_BAD_JSON,   /* its line is not one JSON object */
    D9D_SHARD_BAD_MEMBER, /* a member that is read is not there */
    D9D_SHARD_BAD_VALUE, /* a member has a value that cannot be used, an id above the vocabulary say
                          */
    D9D_SHARD_BAD_CHAT,  /* the template does not say how to render it */
    D9D_SHARD_BAD_TEXT,  /* the tokenizer refuses its text */
    D9D_SHARD_BAD_REASONS
} d9d_shard_bad_record;
/* "not_utf8", "not_json", "no_member", "bad_value", "chat_not_rendered", "not_tokenized". */
D9D_API const char *d9d_shard_bad_record_name(d9d_shard_bad_record reason);

/* Strings and arrays are borrowed. */
typedef struct d9d_shard_opts {
    const char *const *inputs; /* paths; "-" is stdin; gzip and zstd are told by content */
    size_t n_inputs;
    const char *out;
    const char *tokenizer; /* NULL only with TOKENS: any id below 2^24 then, stored as u32 */
    d9d_shard_format format;
    bool lines;
    const char *text_key;   /* NULL: "text" */
    const char *label_key;  /* of JSON lines: the class, an integer, which becomes the label of the
                               last position, the others having none; NULL: none */
    const char *append_eos; /* token behind every document; NULL: none */
    const char *chat;       /* template of chats (d9d/data/chat/chat.h) */
    int64_t max_length;     /* positions of a sample; 0: any, or `pack` */
    d9d_shard_overflow overflow;
    const int64_t *edges; /* ascending lengths that bound the buckets */
    size_t n_edges;
    int64_t pack; /* 0: a sample is one document or a part of it */
    d9d_shard_pack_mode pack_mode;
    int64_t pack_window; /* documents that best fit chooses among; 0: 10000 */
    int64_t seed;        /* of shuffling; -1: samples in the order of their documents */
    /* "train=0.99,valid=0.01", shares that add up to 1; or about how many samples, 2 or more, such
     * as "valid=500" beside them.  Without a share what is left goes to "train", or to "rest" when
     * that has a number.  NULL: all train */
    const char *split;
    int64_t shard_bytes; /* of a tokens file; 0: 1 GB */
    int64_t unit_bytes;  /* of input, after which a shard ends in any case; 0: 256 MiB */
    int64_t task, tasks; /* make the part of this task alone; tasks 0: all */
    int64_t jobs;        /* threads; 0: one a processor */
    bool replace;        /* a directory that is there */
    d9d_shard_on_error on_error;
} d9d_shard_opts;

typedef struct d9d_shard_report {
    int64_t documents, too_short, dropped, truncated, split;
    int64_t turns_lost, targets_lost; /* of documents that were dropped or truncated */
    int64_t samples, tokens, positions;
    uint32_t shards;
    int64_t skipped[D9D_SHARD_BAD_REASONS];
} d9d_shard_report;

/* ECONFIG for options that contradict each other and for an `out` that is not empty; what
 * is wrong with an input names its file, line and byte.  A run without one sample is
 * EFORMAT, but not a task. */
D9D_API D9D_MUST_USE d9d_status d9d_shard_run(const d9d_shard_opts *how, const d9d_log *log,
                                              d9d_shard_report *out);

/* One dataset of the directories that runs with `task` 0, 1, ... made, given in any order: the
 * same bytes as those of a run without tasks.  Token files are linked where that can be, and
 * copied else; the parts are left as they are.  ECONFIG when parts are missing or given twice,
 * EMISMATCH when they are of different inputs or options, EFORMAT when one is not what it was when
 * it was made. */
D9D_API D9D_MUST_USE d9d_status d9d_shard_merge(const char *const *parts, size_t n_parts,
                                                const char *out, bool replace, const d9d_log *log,
                                                d9d_shard_report *report);

#ifdef __cplusplus
}
#endif
#endif /* D9D_DATA_BUILD_SHARD_H */
