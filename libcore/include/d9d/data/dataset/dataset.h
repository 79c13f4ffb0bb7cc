/* dataset.h - a directory of token samples, as d9d-shard writes it.
 *
 *     manifest.json       d9d.dataset.v1: what it was made of and how, counts, splits,
 *                         and every other file's size and XXH3-128
 *     index.lmdb          where each sample is
 *     tokens-00000.bin    ids, little endian, u16 where the vocabulary fits, else u32
 *     labels-00000.bin    i32, aligned with the tokens, where targets were given
 *     tokenizer.json      the tokenizer's file, byte for byte
 *     chat.json           the chat template's, where chats were read
 *
 * Samples are numbered 0, 1, 2, ...; a split is a range of numbers, so that the splits
 * "train" and "valid" of one directory are samples [0, a) and [a, a + b).  A dataset that
 * was not split has the one split "train".
 *
 * A sample is one or, when documents are packed, several segments.  Without labels the
 * target is the next token: a segment of n stored tokens has n - 1 positions, ids t[0 .. n-2]
 * and targets t[1 .. n-1].  With labels a segment of n tokens has n positions.  The length of
 * a sample is its number of positions.
 *
 * index.lmdb is written once and never opened for writing again.  It is read without locks, so
 * that a read-only or network file system will do, and without trust: its size and hash are those
 * of the manifest, and what it says is compared with the file as it is followed.  Two databases:
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

#ifdef __cplusplus
extern "C" {
#endif

typedef struct d9d_dataset d9d_dataset;

/* Open one split; NULL is the first.  Thousands of shard files are mapped, what there is beyond is
 * opened when a sample is read.  Everything in the manifest, the sizes of all files and
 * the hash of the index are checked; the hashes of the shards are d9d_dataset_verify()'s.
 * ENOTFOUND, EFORMAT, ECONFIG (no such split).  A handle is for one thread at a time. */
D9D_API D9D_MUST_USE d9d_status d9d_dataset_open(const char *dir, const char *split,
                                                 d9d_dataset **out);
D9D_API void d9d_dataset_close(d9d_dataset *ds);

D9D_API const char *d9d_dataset_dir(const d9d_dataset *ds);
/* Samples of the split. */
D9D_API int64_t d9d_dataset_count(const d9d_dataset *ds);
/* Hash of manifest.json: names the whole content, as the manifest has all other hashes. */
D9D_API d9d_hash d9d_dataset_hash(const d9d_dataset *ds);
/* Every id and label is below it: the tokenizer's ids, or without one just the largest id or
 * label that was given, plus one. */
D9D_API int64_t d9d_dataset_vocab(const d9d_dataset *ds);
/* Length of the longest sample of the split, in positions. */
D9D_API int64_t d9d_dataset_max_length(const d9d_dataset *ds);
/* Positions of the split. */
D9D_API int64_t d9d_dataset_positions(const d9d_dataset *ds);
/* Have its documents labels of their own, given with them? */
D9D_API bool d9d_dataset_has_labels(const d9d_dataset *ds);
/* From here on a document without labels has all its tokens for positions, and no targets: for
 * what looks at texts as a whole.  Before its samples are looked at. */
D9D_API void d9d_dataset_set_no_targets(d9d_dataset *ds);
/* Whether a sample may have several segments. */
D9D_API bool d9d_dataset_is_packed(const d9d_dataset *ds);

/* EMISMATCH, with both hashes, unless the dataset was made with the tokenizer of this file.
 * A dataset of given ids, made without one, fits every tokenizer. */
D9D_API D9D_MUST_USE d9d_status d9d_dataset_check_tokenizer(const d9d_dataset *ds,
                                                            const char *path);

typedef struct d9d_sample {
    int64_t number; /* in the dataset, not in the split */
    int64_t length; /* positions */
    uint32_t shard, bucket;
    uint64_t offset; /* of its first token in the shard */
    uint32_t stored; /* tokens */
    uint32_t n_segments;
    const uint32_t *segments; /* stored tokens of each; in the handle until the next call */
} d9d_sample;

/* Sample k of the split, 0 <= k < d9d_dataset_count().  EFORMAT when its record does not
 * fit the shards. */
D9D_API D9D_MUST_USE d9d_status d9d_dataset_sample(d9d_dataset *ds, int64_t k, d9d_sample *out);

/* Write the sample's `length` positions: ids, targets (-100: does not count), positions that
 * restart with each segment, and segment numbers from 1 (may be NULL).  EFORMAT for an id or
 * a label outside the vocabulary, EIO where a file has been cut since it was opened. */
D9D_API D9D_MUST_USE d9d_status d9d_sample_expand(const d9d_dataset *ds, const d9d_sample *s,
                                                  int32_t *ids, int32_t *labels, int32_t *positions,
                                                  int32_t *segments);

/* --- for d9d-shard inspect -------------------------------------------------------------- */

/* The manifest and the summaries of the index, with how many positions have a target, as JSON text
 * and for people; appended. */
D9D_API D9D_MUST_USE d9d_status d9d_dataset_describe(d9d_dataset *ds, d9d_buf *out);
D9D_API D9D_MUST_USE d9d_status d9d_dataset_print(d9d_dataset *ds, d9d_buf *out);
/* Sample k of the split: a line for each position with id, target and token, or one JSON
 * object with "input_ids", "labels" and "position_ids". */
D9D_API D9D_MUST_USE d9d_status d9d_sample_print(d9d_dataset *ds, int64_t k, bool json,
                                                 d9d_buf *out);

/* Sample k of the split as text, what is trained between "\u27e6" and "\u27e7", with pictures of
 * control characters other than newlines and tabs; a line parts documents.  ECONFIG without a
 * tokenizer. */
D9D_API D9D_MUST_USE d9d_status d9d_sample_print_text(d9d_dataset *ds, int64_t k, d9d_buf *out);
/* The first words of document `place` of sample k of the split, in at most so many bytes, on one
 * line, behind which stands "\u2026" where there are more; nothing without a tokenizer.  EINVAL
 * where the sample has no such document. */
D9D_API D9D_MUST_USE d9d_status d9d_sample_print_excerpt(d9d_dataset *ds, int64_t k, int64_t place,
                                                         size_t bytes, d9d_buf *out);
/* The share of padding in batches of `batch` samples whose lengths are rounded up to a
 * multiple, in each order of d9d/data/loader/loader.h, and with every sample padded to the edge of
 * its bucket, for people or as JSON. */
D9D_API D9D_MUST_USE d9d_status d9d_dataset_print_padding(d9d_dataset *ds, int64_t batch,
                                                          int64_t multiple, bool json,
                                                          d9d_buf *out);

/* --- for d9d-shard export ------------------------------------------------------------------ */

/* Write a split as OUT.bin and OUT.idx, the token files of Megatron-LM, each document a
 * sequence.  ECONFIG where there are labels, and where one of the two is there already, unless it
 * is to be replaced. */
D9D_API D9D_MUST_USE d9d_status d9d_dataset_export_megatron(const char *dir, const char *split,
                                                            const char *out, bool replace,
                                                            const d9d_log *log);

/* --- for d9d-shard verify ------------------------------------------------------------------ */

/* Check every byte: hashes of all files, every record, every id and label, and that the
 * counts of the manifest are those of the samples.  EVERIFY, or what opening says. */
D9D_API D9D_MUST_USE d9d_status d9d_dataset_verify(const char *dir, const d9d_log *log);

#ifdef __cplusplus
}
#endif
#endif /* D9D_DATA_DATASET_DATASET_H */
