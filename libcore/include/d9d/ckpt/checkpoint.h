/* checkpoint.h - a directory of safetensors as one source, and as one sink.
 *
 * Reading takes model.safetensors, or model.safetensors.index.json and the files
 * that it names.  Index and headers must agree: a tensor that the index places in a
 * file that lacks it, one that no index entry names, and a name that is not one
 * plain path component are EFORMAT.  A symbolic link at that component is fine (the
 * HuggingFace cache is made of them).
 *
 * Writing makes "model.safetensors" when everything fits one shard, else
 * model-0000i-of-0000n.safetensors and the index, in the order given, with header
 * metadata {"format": "pt"}; the layout is known before the first byte.  Other
 * files of a source directory (config.json, tokenizer files, ...) are copied byte
 * for byte by d9d_checkpoint_copy_others().
 */
#ifndef D9D_CKPT_CHECKPOINT_H
#define D9D_CKPT_CHECKPOINT_H

#include "d9d/ckpt/mapper.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct d9d_checkpoint d9d_checkpoint;

D9D_API D9D_MUST_USE d9d_status d9d_checkpoint_open(const char *dir, d9d_checkpoint **out);
D9D_API void d9d_checkpoint_close(d9d_checkpoint *c);
D9D_API const char *d9d_checkpoint_dir(const d9d_checkpoint *c);
D9D_API size_t d9d_checkpoint_count(const d9d_checkpoint *c);
D9D_API const d9d_st_tensor *d9d_checkpoint_find(const d9d_checkpoint *c, const char *name);
D9D_API d9d_source d9d_checkpoint_source(d9d_checkpoint *c); /* borrows c */

/* A sink that writes shards of at most `shard_bytes` into `dir` (it must exist). */
typedef struct d9d_shard_sink d9d_shard_sink;
D9D_API D9D_MUST_USE d9d_status d9d_shard_sink_create(const char *dir, uint64_t shard_bytes,
                                                      d9d_shard_sink **out);
D9D_API d9d_sink d9d_shard_sink_sink(d9d_shard_sink *s);
/* Every declared byte must have been written: sync, close, write the index. */
D9D_API D9D_MUST_USE d9d_status d9d_shard_sink_end(d9d_shard_sink *s);
D9D_API void d9d_shard_sink_free(d9d_shard_sink *s);

/* Copy every regular file of `src` that is neither a safetensors file nor their index,
 * subdirectories left out; files named in `except` (NULL-ended) are left out too. */
D9D_API D9D_MUST_USE d9d_status d9d_checkpoint_copy_others(const char *src, const char *dst,
                                                           const char *const *except);

/* --- verify and diff ---------------------------------------------------------- */

typedef struct d9d_ckpt_finding {
    const char *what; /* one sentence */
} d9d_ckpt_finding;

/* Headers, index, hashes where a manifest has them, finiteness of every float.
 * Findings go to `found` one by one; EVERIFY when there was any. */
typedef void (*d9d_ckpt_found)(void *arg, const char *sentence);
D9D_API D9D_MUST_USE d9d_status d9d_checkpoint_verify(const char *dir, int jobs, const d9d_log *log,
                                                      d9d_ckpt_found found, void *arg);

/* Per tensor of either directory, in order of name. */
typedef struct d9d_ckpt_diff {
    const char *name;
    enum { D9D_DIFF_EQUAL, D9D_DIFF_VALUES, D9D_DIFF_SHAPE, D9D_DIFF_DTYPE, D9D_DIFF_ONLY_A,
           D9D_DIFF_ONLY_B } kind;
    double max_abs; /* VALUES: largest absolute difference, NaN when one side is not finite */
} d9d_ckpt_diff;
typedef void (*d9d_ckpt_diff_fn)(void *arg, const d9d_ckpt_diff *d);
D9D_API D9D_MUST_USE d9d_status d9d_checkpoint_diff(const char *a, const char *b, int jobs,
                                                    const d9d_log *log, d9d_ckpt_diff_fn fn,
                                                    void *arg, uint64_t *n_different);

#ifdef __cplusplus
}
#endif
#endif /* D9D_CKPT_CHECKPOINT_H */
