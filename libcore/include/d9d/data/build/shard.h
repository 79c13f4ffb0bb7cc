/* shard.h - tokenises text and chats into a dataset: the work of d9d-shard.
 *
 *     inputs -> documents -> ids -> samples -> shards and spools -> index, manifest
 *
 * Objects of JSON stand on lines, or in one array; a row of *.csv or *.tsv is an object, whose
 * names the first row gives (libcore/data/io/framing.h).
 *
 * The inputs are divided into units of `unit_bytes` (libcore/data/build/input_splits.h).  The
 * documents of a unit are read in order, tokenised on all threads in chunks of about 1 MiB, and
 * written in input order to the unit's shards.  The output of a unit depends on nothing outside it.
 * So the bytes of a dataset depend on the inputs, the options and the version, but not on the
 * number of jobs or tasks, nor on interruptions.
 *
 *     inputs   | a.jsonl           | b.jsonl.zst |
 *     units    | 0     | 1     | 2 | 3           |
 *     tasks    | 0             | 1               |   --task 0/2, --task 1/2
 *     shards   | 0     | 1     | 2 | 3  | 4  | 5 |   one index over all
 *
 * From document to samples.  A document of n tokens has n - 1 positions (n if its labels are
 * given); one without a position is counted and left out.  A document with more than max_length
 * positions is split into consecutive samples that lose no target, truncated, or dropped.  A chat
 * is truncated after the last trained turn that fits, and dropped if none fits.  Truncation is the
 * default for chats, since a sample that begins in the middle of an answer teaches the wrong thing.
 * With `pack` several documents are packed into samples of at most `pack` positions
 * (libcore/data/build/packer.h); a segment is one document.
 *
 * Special tokens stand around a document as HF's tokenizers puts them there: at its beginning and
 * at its end, wherever it is split.  A truncated document keeps them.  Packed documents have their
 * own each.
 *
 * Records of answers (preference, unpaired) have several documents, which stay in one sample: a
 * record without room for all of them is dropped and counted.  An absent answer is one token
 * without a target (d9d/tasks/preference.h).
 *
 * Splits.  A random number computed from the seed and a document's ids selects its split by share.
 * So a document is in one split as a whole, equal documents are in the same split, and neighbours
 * do not matter.  Shares are met approximately.  The ids are those that are kept: documents that
 * are equal after truncation count as equal.
 *
 * A split with a given number of samples is filled first; the other splits share the rest.  It
 * takes the documents with the least random numbers, at least one, so that its samples come as
 * close to the number as whole documents allow.  Its members are known only when all inputs are
 * read.  With `pack`, documents therefore stay unpacked until then, which temporarily doubles the
 * disk space of the tokens.  Such a split is packed as a whole, the others unit by unit.  Finally
 * samples are numbered split by split and, with a shuffle seed, permuted within each split.
 *
 * A run works in "<out>.partial" and renames it at the end.  After an interruption the same command
 * continues after the finished units, if every input still has its size and modification time; any
 * other command starts over.  Input from stdin is read from the start.  An input that changes
 * between the start of a run and its last byte is EIO, and no output is kept.  Memory is bounded,
 * whatever the size of the inputs and of the index.
 *
 * Bad records.  A record that cannot be tokenised ends the run.  With D9D_SHARD_ON_ERROR_SKIP it is
 * left out and counted by reason in the report and in manifest.json; the dataset's skipped.jsonl
 * lists the first 1000 of all inputs.  Three errors always end the run: an input that cannot be
 * read or decompressed, a line of more than 256 MiB, and options that contradict the records.
 */
#ifndef D9D_DATA_BUILD_SHARD_H
#define D9D_DATA_BUILD_SHARD_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "d9d/base/log.h"
#include "d9d/base/status.h"
#include "d9d/data/io/bad_record.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef enum d9d_shard_format {
    D9D_SHARD_BY_NAME,  /* text for names that end in .txt (.gz, .zst), otherwise JSON lines */
    D9D_SHARD_JSONL,    /* one object per line: {"text": "..."} */
    D9D_SHARD_TEXT,     /* one document per file, or per line with `lines` */
    D9D_SHARD_TOKENS,   /* per line: {"input_ids": [...]}, with "labels": [...] if targets are given
                         */
    D9D_SHARD_CHAT,     /* per line: {"messages": [{"role": "user", "content": "..."}, ...]}, or a
                           layout of another project (libcore/data/io/chat_layout.h) */
    D9D_SHARD_MEGATRON, /* NAME.bin with NAME.idx: token files of Megatron-LM */
    D9D_SHARD_ARRAYS,   /* per line: an object with the members of `fields` alone.  A sample has as
                           many   positions as its fields per token have rows, or else one, of id 0
                           and,   if no   class is given, label 0 */
    D9D_SHARD_PREFERENCE, /* per line: {"prompt", "chosen", "rejected"}, two documents of a record
                             (libcore/data/io/preference_layout.h) */
    D9D_SHARD_UNPAIRED    /* per line: {"prompt", "completion", "label": true}, four documents: the
                             answer, desirable or not, and the answer of another record */
} d9d_shard_format;

typedef enum d9d_shard_pack_mode {
    D9D_SHARD_PACK_BEST_FIT, /* whole documents, best fit: little padding */
    D9D_SHARD_PACK_CONCAT    /* documents concatenated and split where a sample is full */
} d9d_shard_pack_mode;

typedef enum d9d_shard_overflow {
    D9D_SHARD_OVERFLOW_BY_FORMAT, /* chats are truncated, other documents split */
    D9D_SHARD_OVERFLOW_SPLIT,
    D9D_SHARD_OVERFLOW_TRUNCATE, /* a chat: after the last trained turn that fits */
    D9D_SHARD_OVERFLOW_DROP
} d9d_shard_overflow;

typedef enum d9d_shard_on_error {
    D9D_SHARD_ON_ERROR_STOP,
    D9D_SHARD_ON_ERROR_SKIP
} d9d_shard_on_error;

/* HF's add_special_tokens: what the tokenizer's post_processor puts around a text. */
typedef enum d9d_shard_add_special {
    D9D_SHARD_ADD_SPECIAL_BY_FORMAT, /* texts have them; a chat's template writes its own, and ids
                                        are as they are given */
    D9D_SHARD_ADD_SPECIAL_YES,
    D9D_SHARD_ADD_SPECIAL_NO
} d9d_shard_add_special;

/* Strings and arrays are borrowed. */
typedef struct d9d_shard_opts {
    const char *const *inputs; /* paths; "-" is stdin; gzip and zstd are detected by content */
    size_t n_inputs;
    const char *out;
    const char *tokenizer; /* NULL only with TOKENS: then any id below 2^24, stored as u32 */
    d9d_shard_format format;
    bool lines;
    const char *text_key;      /* NULL: "text" */
    const char *text_pair_key; /* JSON lines: key of a second text; NULL: there is none */
    d9d_shard_add_special add_special;
    const char *label_key;  /* JSON lines: key of the class, an integer, which becomes the label of
                               the last position; other positions have none.  NULL: no classes */
    const char *append_eos; /* token appended to every document, unless the tokenizer's special
                               tokens end with it; NULL: none */
    const char *chat_template; /* chats: d9d/data/chat/chat.h; NULL: that beside the tokenizer */
    const char *chat_kwargs; /* chats: a JSON object, more variables of the template; NULL: none */
    const char *chat_date;   /* chats: what the template's strftime_now() prints; NULL: an error */
    int64_t max_length;      /* maximal positions of a sample; 0: unlimited, or `pack` */
    d9d_shard_overflow overflow;
    const int64_t *edges; /* ascending lengths: the upper bounds of the length buckets */
    size_t n_edges;
    int64_t pack; /* positions of a packed sample; 0: a sample is one document or a part of it */
    d9d_shard_pack_mode pack_mode;
    int64_t pack_window; /* documents among which best fit chooses; 0: 10000 */
    int64_t seed;        /* shuffle seed; -1: samples in the order of their documents */
    /* "train=0.99,valid=0.01": shares that add up to 1.  "valid=500": an approximate number of
     * samples, 2 or more; may stand with shares.  If no split has a share, the remaining documents
     * go to "train", or to "rest" if "train" has a number.  NULL: all to "train" */
    const char *split;
    int64_t shard_bytes; /* size of a tokens file; 0: 1 GB */
    int64_t unit_bytes;  /* input bytes of a unit, at whose end a shard always ends; 0: 256 MiB */
    int64_t task, tasks; /* make the units of this task only; tasks 0: all */
    int64_t jobs;        /* threads; 0: one per processor */
    bool replace;        /* replace an existing directory */
    /* A JSON file that declares named tensors of each sample, {"fields": [...]}, in the keys of
     * d9d_shard_fields_table; JSON lines have their values.  NULL: none. */
    const char *fields;
    d9d_shard_on_error on_error;
} d9d_shard_opts;

typedef struct d9d_shard_report {
    int64_t documents, too_short, dropped, truncated, split;
    int64_t turns_lost, targets_lost; /* of dropped or truncated documents */
    int64_t special_twice; /* texts that began with the tokenizer's special tokens already */
    int64_t samples, tokens, positions;
    uint32_t shards;
    int64_t skipped[D9D_SHARD_BAD_REASONS];
} d9d_shard_report;

/* The keys of the file `fields`. */
struct d9d_table;
D9D_API extern const struct d9d_table d9d_shard_fields_table;

/* Builds a dataset.  ECONFIG: options contradict each other, or `out` is not empty.  Errors in an
 * input name its file, line and byte.  A run without any sample is EFORMAT; a task without samples
 * is not an error. */
D9D_API D9D_MUST_USE d9d_status d9d_shard_run(const d9d_shard_opts *opts, const d9d_log *log,
                                              d9d_shard_report *out);

/* Merges the outputs of the runs with `task` 0, 1, ..., given in any order, into one dataset: the
 * same bytes as a run without tasks.  Token files are hard-linked where possible, otherwise copied;
 * the parts are not changed.  ECONFIG: parts are missing or given twice.  EMISMATCH: they have
 * different inputs or options.  EFORMAT: a part was changed after it was made. */
D9D_API D9D_MUST_USE d9d_status d9d_shard_merge(const char *const *parts, size_t n_parts,
                                                const char *out, bool replace, const d9d_log *log,
                                                d9d_shard_report *report);

#ifdef __cplusplus
}
#endif
#endif /* D9D_DATA_BUILD_SHARD_H */
