/* dataset.h - a directory of token samples, as d9d-shard writes it.
 *
 *     manifest.json       d9d.dataset.v1: what it was made of and how, counts, splits,
 *                         and every other file's size and XXH3-128
 *     index.lmdb          where each sample is
 *     tokens-00000.bin    ids, little endian, u16 where the vocabulary fits, else u32
 *     labels-00000.bin    i32, aligned with the tokens, where targets were given
 *     fields-00000.bin    values of named tensors, where samples have some, and
 *     documents-00000.bin where those of each document are (d9d/data/dataset/field.h)
 *     tokenizer.json      the tokenizer's file, byte for byte
 *     chat_template.jinja the chat template, where chats were read
 *
 * Samples are numbered 0, 1, 2, ...; a split is a range of numbers, so that the splits "train" and
 * "valid" of one directory are samples [0, a) and [a, a + b).  A dataset that was not split has the
 * one split "train".
 *
 * A sample is one or, when documents are packed, several segments.  Without labels the target is
 * the next token: a segment of n stored tokens has n - 1 positions, ids t[0 .. n-2] and targets t[1
 * .. n-1].  With labels a segment of n tokens has n positions.  The length of a sample is its
 * number of positions.
 *
 * index.lmdb is written once and never opened for writing again.  It is read without locks, so that
 * read-only and network file systems work.  It is not trusted: its size and hash must match the
 * manifest, and each record is checked against the file.  It holds two databases:
 *
 *     "samples"   number, u64 big endian -> u32 shard, u32 bucket, u64 offset in tokens,
 *                 u32 stored tokens, u32 segments, and when these are not one, the stored
 *                 tokens of each, u32; all little endian
 *     "summary"   split -> JSON: samples, positions, longest, and how many samples have
 *                 lengths in [2^i, 2^(i+1))
 *
 *     D9D_TRY(d9d_dataset_open("data/demo", "train", &ds));
 *     D9D_TRY(d9d_dataset_sample(ds, 0, &sample));
 *     D9D_TRY(d9d_sample_expand(ds, &sample, ids, labels, positions, NULL));
 *     d9d_dataset_close(ds);
 */
#ifndef D9D_DATA_DATASET_DATASET_H
#define D9D_DATA_DATASET_DATASET_H

#include <stdbool.h>
#include <stdint.h>

#include "d9d/base/hash.h"
#include "d9d/base/log.h"
#include "d9d/base/mem.h"
#include "d9d/data/dataset/field.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct d9d_dataset d9d_dataset;

/* Opens one split; NULL: the first.  Up to 8192 shard files are mapped; further ones are opened
 * when a sample is read.  Checks the manifest, the sizes of all files and the hash of the index;
 * d9d_dataset_verify() checks the hashes of the shards.  ENOTFOUND, EFORMAT, ECONFIG (no such
 * split).  A handle is for one thread at a time. */
D9D_API D9D_MUST_USE d9d_status d9d_dataset_open(const char *dir, const char *split,
                                                 d9d_dataset **out);
D9D_API void d9d_dataset_close(d9d_dataset *ds);

D9D_API const char *d9d_dataset_dir(const d9d_dataset *ds);
/* Number of samples of the split. */
D9D_API int64_t d9d_dataset_count(const d9d_dataset *ds);
/* Hash of manifest.json.  It identifies the whole content, since the manifest contains all other
 * hashes. */
D9D_API d9d_hash d9d_dataset_hash(const d9d_dataset *ds);
/* Hash of what its samples are, in all splits and in their order, and of the tokenizer that their
 * ids are of.  It is the same when the dataset is made again of the same samples, whatever the
 * names of its inputs or the version that makes it. */
D9D_API d9d_hash d9d_dataset_samples_hash(const d9d_dataset *ds);
/* Vocabulary size: every id and label is less.  It is the tokenizer's; without a tokenizer it is
 * the largest given id or label plus one. */
D9D_API int64_t d9d_dataset_vocab(const d9d_dataset *ds);
/* Length of the longest sample of the split, in positions. */
D9D_API int64_t d9d_dataset_max_length(const d9d_dataset *ds);
/* Number of positions of the split. */
D9D_API int64_t d9d_dataset_positions(const d9d_dataset *ds);
/* True if the documents were given with labels of their own. */
D9D_API bool d9d_dataset_has_labels(const d9d_dataset *ds);
/* Named tensors of its samples, borrowed; n 0: it has none. */
D9D_API d9d_field_list d9d_dataset_fields(const d9d_dataset *ds);
/* Gives a document without labels one position per token and no targets, for tasks on whole texts.
 * Call it before any sample is read. */
D9D_API void d9d_dataset_set_no_targets(d9d_dataset *ds);
/* The same, and the target of each token but the last is the next one: texts that a language model
 * and tasks on whole texts learn from together. */
D9D_API void d9d_dataset_set_last_token(d9d_dataset *ds);
/* NULL if its samples are all documents of its input in their order, one each, as far as the
 * manifest tells; else what d9d-shard did to that, as in "its samples were shuffled". */
D9D_API const char *d9d_dataset_reordered(const d9d_dataset *ds);
/* True if a sample may have several segments. */
D9D_API bool d9d_dataset_is_packed(const d9d_dataset *ds);
/* Segments of a record of answers (d9d/tasks/preference.h), of which a sample has whole ones; 0:
 * segments are documents of their own. */
D9D_API int64_t d9d_dataset_record_documents(const d9d_dataset *ds);

/* Whether special tokens of the tokenizer stand around its documents (d9d-shard
 * --add-special-tokens).  Unknown: chats, given ids, and what older versions made. */
typedef enum d9d_dataset_special {
    D9D_DATASET_SPECIAL_UNKNOWN,
    D9D_DATASET_SPECIAL_NONE,
    D9D_DATASET_SPECIAL_ADDED
} d9d_dataset_special;
D9D_API d9d_dataset_special d9d_dataset_get_special(const d9d_dataset *ds);

/* Checks that the dataset was made with the tokenizer file `path`: EMISMATCH names both hashes.  A
 * dataset of given ids, made without tokenizer, fits every tokenizer. */
D9D_API D9D_MUST_USE d9d_status d9d_dataset_check_tokenizer(const d9d_dataset *ds,
                                                            const char *path);

/* The dataset's tokenizer, which it owns and loads at the first call; NULL: it was made of given
 * ids. */
struct d9d_tokenizer;
D9D_API D9D_MUST_USE d9d_status d9d_dataset_tokenizer(d9d_dataset *ds,
                                                      const struct d9d_tokenizer **out);

typedef struct d9d_sample {
    int64_t number; /* in the dataset, not in the split */
    int64_t length; /* positions */
    uint32_t shard, bucket;
    uint64_t offset; /* offset of its first token in the shard, in tokens */
    uint32_t stored; /* tokens */
    uint32_t n_segments;
    const uint32_t
        *segments; /* stored tokens of each segment; valid until the next call on the handle */
} d9d_sample;

/* Reads the record of sample k of the split, 0 <= k < d9d_dataset_count().  EFORMAT if it does not
 * fit the shards. */
D9D_API D9D_MUST_USE d9d_status d9d_dataset_sample(d9d_dataset *ds, int64_t k, d9d_sample *out);

/* Writes the sample's `length` positions: ids, targets (-100: ignored), positions that restart with
 * each segment, and segment numbers from 1 (may be NULL).  EFORMAT: an id or a label is outside the
 * vocabulary.  EIO: a file was truncated after it was opened. */
D9D_API D9D_MUST_USE d9d_status d9d_sample_expand(const d9d_dataset *ds, const d9d_sample *s,
                                                  int32_t *ids, int32_t *labels, int32_t *positions,
                                                  int32_t *segments);

/* The fields of a sample's documents. */
typedef struct d9d_sample_fields d9d_sample_fields;
/* Reads them.  Segment i of the sample, of which there is one where the sample has no list, has the
 * values d9d_sample_fields_get(); they stay valid until the close.  Concurrent calls are fine, with
 * the segments of `s` the caller's.  EFORMAT, EIO. */
D9D_API D9D_MUST_USE d9d_status d9d_sample_fields_open(const d9d_dataset *ds, const d9d_sample *s,
                                                       d9d_sample_fields **out);
D9D_API const d9d_field_values *d9d_sample_fields_get(const d9d_sample_fields *f, size_t segment);
D9D_API void d9d_sample_fields_close(d9d_sample_fields *f);

/* --- streams (d9d/data/dataset/dataset_kind.h) --------------------------------------------- */

typedef enum d9d_dataset_presence {
    D9D_DATASET_PENDING, /* it is not there yet */
    D9D_DATASET_PRESENT,
    D9D_DATASET_ENDED /* the stream has ended before it */
} d9d_dataset_presence;
enum { D9D_DATASET_STATE_MAX = 512 };

/* True if nobody knows how many samples it has; d9d_dataset_count() is then 2^62. */
D9D_API bool d9d_dataset_is_stream(const d9d_dataset *ds);
/* Of a stream; for several threads at a time.  The last sample that is awaited is k. */
D9D_API D9D_MUST_USE d9d_status d9d_dataset_poll(d9d_dataset *ds, int64_t k,
                                                 d9d_dataset_presence *out);
/* Waits until sample k is there.  ECONFIG: the stream ends before it.  EINVAL: interrupted. */
D9D_API D9D_MUST_USE d9d_status d9d_dataset_wait(d9d_dataset *ds, int64_t k);
/* On: waiting calls fail, now and from now on.  Off: they wait again. */
D9D_API void d9d_dataset_interrupt(d9d_dataset *ds, bool on);
/* The ranks of a job share the work of finding its samples: before any is polled, by all of them.
 * From now on poll() says what surveys have told.  False: it cannot be shared. */
D9D_API bool d9d_dataset_share(d9d_dataset *ds);
/* What one rank has found. */
typedef struct d9d_dataset_survey {
    const void *data;
    size_t n;
} d9d_dataset_survey;
/* Of a shared stream: reads on, and appends what this rank finds for all.  `needed`: samples are
 * awaited, so that damage in the way is an error.  Then the surveys of all ranks; *more is false if
 * nothing new is known.  All ranks make the same calls, and know the same after each. */
D9D_API D9D_MUST_USE d9d_status d9d_dataset_survey_make(d9d_dataset *ds, int rank, int ranks,
                                                        bool needed, d9d_buf *out);
D9D_API D9D_MUST_USE d9d_status d9d_dataset_survey_set(d9d_dataset *ds,
                                                       const d9d_dataset_survey *all, int ranks,
                                                       bool *more);
/* No sample before k is asked for any more. */
D9D_API void d9d_dataset_forget(d9d_dataset *ds, int64_t k);
/* Appends where sample k is found again; and the same in another process.  ENOTSUP: the stream
 * cannot be read again.  Else as the kind's functions. */
D9D_API D9D_MUST_USE d9d_status d9d_dataset_tell(d9d_dataset *ds, int64_t k, d9d_buf *state);
D9D_API D9D_MUST_USE d9d_status d9d_dataset_seek(d9d_dataset *ds, int64_t k, const void *state,
                                                 size_t n);

/* --- for d9d-shard inspect -------------------------------------------------------------- */

/* Appends the manifest, the summaries of the index and the number of targets: as JSON (describe) or
 * for people (print). */
D9D_API D9D_MUST_USE d9d_status d9d_dataset_describe(d9d_dataset *ds, d9d_buf *out);
D9D_API D9D_MUST_USE d9d_status d9d_dataset_print(d9d_dataset *ds, d9d_buf *out);
/* Appends sample k of the split: one line per position with id, target and token, or one JSON
 * object with "input_ids", "labels" and "position_ids". */
D9D_API D9D_MUST_USE d9d_status d9d_sample_print(d9d_dataset *ds, int64_t k, bool json,
                                                 d9d_buf *out);

/* Appends sample k of the split as text, trained text between "\u27e6" and "\u27e7".  Control
 * characters other than newlines and tabs are shown as symbols; a line separates documents.
 * ECONFIG without a tokenizer. */
D9D_API D9D_MUST_USE d9d_status d9d_sample_print_text(d9d_dataset *ds, int64_t k, d9d_buf *out);
/* Appends the first words of document `place` of sample k of the split on one line of at most
 * `bytes` bytes, with "\u2026" if it was truncated.  Appends nothing without a tokenizer.  EINVAL
 * if the sample has no such document. */
D9D_API D9D_MUST_USE d9d_status d9d_sample_print_excerpt(d9d_dataset *ds, int64_t k, int64_t place,
                                                         size_t bytes, d9d_buf *out);

/* --- for d9d-shard export ------------------------------------------------------------------ */

/* Writes a split as OUT.bin and OUT.idx, the token files of Megatron-LM, one sequence per document.
 * ECONFIG: the dataset has labels or fields, or an output exists and `replace` is not set. */
D9D_API D9D_MUST_USE d9d_status d9d_dataset_export_megatron(const char *dir, const char *split,
                                                            const char *out, bool replace,
                                                            const d9d_log *log);

/* --- for d9d-shard verify ------------------------------------------------------------------ */

/* Checks every byte: hashes of all files, every record, every id and label, and the counts of the
 * manifest.  EVERIFY, or the errors of d9d_dataset_open(). */
D9D_API D9D_MUST_USE d9d_status d9d_dataset_verify(const char *dir, const d9d_log *log);

#ifdef __cplusplus
}
#endif
#endif /* D9D_DATA_DATASET_DATASET_H */
