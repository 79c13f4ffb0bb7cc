/* checkpoint.h - a directory of safetensors as one source, and as one sink.
 *
 * Reading takes model.safetensors.index.json and the files that it names, or else
 * model.safetensors.  Index and headers must agree: a tensor that the index places in a
 * file that lacks it, one that no index entry names, and a name that is not one plain
 * path component are EFORMAT.  A symbolic link at that component is fine (the HuggingFace
 * cache is made of them).  Where neither is there, a training checkpoint
 * (d9d/checkpointer/checkpointer.h) gives its parameters, put together from the slices of all
 * ranks.
 *
 * Writing makes "model.safetensors" when everything fits one shard, else
 * model-0000i-of-0000n.safetensors and the index, in the order given, with header
 * metadata {"format": "pt"}; the layout of every file is known before the first byte.
 */
#ifndef D9D_CKPT_DIR_CHECKPOINT_H
#define D9D_CKPT_DIR_CHECKPOINT_H

#include "d9d/ckpt/dir/manifest.h"
#include "d9d/ckpt/mapper/mapper.h"
#include "d9d/comm/bootstrap.h"

#ifdef __cplusplus
extern "C" {
#endif

#define D9D_CHECKPOINT_INDEX_NAME "model.safetensors.index.json"
#define D9D_SHARD_BYTES           4000000000ull /* the usual shard size: 4 GB */
#define D9D_MAX_SHARDS            99999         /* their names have five digits */

typedef struct d9d_checkpoint d9d_checkpoint;

D9D_API D9D_MUST_USE d9d_status d9d_checkpoint_open(const char *dir, d9d_checkpoint **out);
/* The same in two steps, for those who need a part of it: first what there is, from the index
 * alone; then the headers of the files that have any of `names` (NULL: of all).  Names that are
 * not there are passed over.  A tensor of a file whose header is not read has a name and a
 * place, and no shape.  Loading numbers the tensors anew: take counts and sources after it. */
D9D_API D9D_MUST_USE d9d_status d9d_checkpoint_list(const char *dir, d9d_checkpoint **out);
D9D_API D9D_MUST_USE d9d_status d9d_checkpoint_load(d9d_checkpoint *c, const char *const *names,
                                                    size_t n);
D9D_API void d9d_checkpoint_close(d9d_checkpoint *c);
D9D_API const char *d9d_checkpoint_dir(const d9d_checkpoint *c);
/* Tensors in order of file name, then of offset. */
D9D_API size_t d9d_checkpoint_count(const d9d_checkpoint *c);
D9D_API const d9d_safetensors_tensor *d9d_checkpoint_at(const d9d_checkpoint *c, size_t i);
D9D_API const d9d_safetensors_tensor *d9d_checkpoint_find(const d9d_checkpoint *c,
                                                          const char *name);
D9D_API const char *d9d_checkpoint_file_path(const d9d_checkpoint *c,
                                             size_t i); /* path of its file */
D9D_API D9D_MUST_USE d9d_status d9d_checkpoint_read(const d9d_checkpoint *c, size_t i, uint64_t at,
                                                    void *dst, uint64_t n);
D9D_API d9d_tensor_source d9d_checkpoint_source(d9d_checkpoint *c); /* borrows c */

/* What d9d_outdir_begin() may empty or replace: checkpoints, of HuggingFace's layout too. */
D9D_API const d9d_outdir_kind *d9d_checkpoint_kind(void);

/* A sink that writes shards of at most `shard_bytes` of tensors into `dir`, which must
 * exist; a tensor that is larger gets a shard of its own.
 *
 *     D9D_TRY(d9d_shard_sink_create(dir, D9D_SHARD_BYTES, &s));
 *     D9D_TRY_OR(st, d9d_shard_sink_copy(s, "tokenizer.json", "hf/tokenizer.json"), out);
 *     sink = d9d_shard_sink_tensor_sink(s);
 *     D9D_TRY_OR(st, d9d_map_plan_run(plan, &sink, jobs, log), out);
 *     st = d9d_shard_sink_end(s);
 *
 * Files are written by the chunks of a manifest (manifest.h).  A chunk is put together in
 * memory, hashed, and written past the page cache where the file system allows: so no file is
 * read again for its manifest, a file is open only while it is written, and memory is a chunk a
 * thread. */
typedef struct d9d_shard_sink d9d_shard_sink;
D9D_API D9D_MUST_USE d9d_status d9d_shard_sink_create(const char *dir, uint64_t shard_bytes,
                                                      d9d_shard_sink **out);
D9D_API void d9d_shard_sink_free(d9d_shard_sink *s);
/* Before the run: more files, of this text, or the bytes of the regular file `path`; in `dir`, or
 * in a directory of it: "1_Pooling/config.json". */
D9D_API D9D_MUST_USE d9d_status d9d_shard_sink_text(d9d_shard_sink *s, const char *name,
                                                    const char *text, size_t n);
D9D_API D9D_MUST_USE d9d_status d9d_shard_sink_copy(d9d_shard_sink *s, const char *name,
                                                    const char *path);
/* Before the run: go on where an earlier run with this key stopped.  `key` is a hash of all
 * that decides the bytes of the outputs; the sink adds what it knows itself.  A journal of
 * finished chunks is kept in `dir`; those that are in it are read and, if their hash agrees,
 * not made again.  With another key everything in `dir` is removed.  `log` hears which it is. */
D9D_API void d9d_shard_sink_resume(d9d_shard_sink *s, d9d_hash key, const d9d_log *log);
/* Before the run, with resume, on every rank: each makes chunks of its own, as many bytes as the
 * others.  The run is collective then: rank 0 makes the files, and all begin or none.  Only
 * rank 0 takes the manifest, after all have ended. */
D9D_API void d9d_shard_sink_ranks(d9d_shard_sink *s, d9d_bootstrap *boot);
D9D_API d9d_tensor_sink d9d_shard_sink_tensor_sink(d9d_shard_sink *s); /* borrows s */
/* Every chunk (of this rank) must have been written: close the files. */
D9D_API D9D_MUST_USE d9d_status d9d_shard_sink_end(d9d_shard_sink *s);
/* Then: the manifest of all files.  The journal goes. */
D9D_API D9D_MUST_USE d9d_status d9d_shard_sink_manifest(d9d_shard_sink *s, const json_t *extra);

/* What goes with the tensors: of the directory `src` the files that a HuggingFace model has by
 * their names (the table in ckpt/dir/model_files.c, whose names d9d-map(1) lists), besides weights
 * and config.json.  No directory goes along but for its files that are in the table, such as
 * 1_Pooling/config.json.  Links to files are followed, links to directories are not.  EPATH or
 * ENOTFOUND where a name of the table is of a pipe, a device, or a link to nothing.  Larger files
 * than D9D_CHECKPOINT_AUX_FILE_MAX are left behind.  One line of the log names what is left behind,
 * but for hidden files, weights in safetensors and what is written anew.  Paths within `src`,
 * sorted, in the arena. */
#define D9D_CHECKPOINT_AUX_FILE_MAX (1ull << 30)
D9D_API D9D_MUST_USE d9d_status d9d_checkpoint_aux_files(const char *src, d9d_arena *a,
                                                         const d9d_log *log, d9d_fs_names *out);
/* Copy them, byte for byte. */
D9D_API D9D_MUST_USE d9d_status d9d_checkpoint_copy_aux_files(const char *src, const char *dst,
                                                              const d9d_log *log);

/* --- verify and diff ---------------------------------------------------------- */

/* Is a directory what was written, to the byte?  Findings are:
 *   - a file that is missing, longer, shorter or changed by the manifest (manifest.h), the manifest
 *     itself changed or missing, and a file that it does not list, whatever it is, unless its name
 *     or that of its directory begins with a dot
 *   - headers of safetensors files that break a rule of the format (safetensors.h), and an index
 *     that does not agree with them
 *   - a floating-point number that is not finite
 *   - what cannot be read
 * Each is one sentence to `found`, in an order that does not depend on `jobs`; EVERIFY when there
 * was any.  Every byte is read once. */
typedef void (*d9d_checkpoint_verify_fn)(void *arg, const char *sentence);
typedef struct d9d_checkpoint_verify_opts {
    int jobs; /* threads; 0: one a processor */
    const d9d_log *log;
    bool no_manifest; /* there need not be one: headers, index and numbers are checked */
    d9d_checkpoint_verify_fn on_finding;
    void *arg;
} d9d_checkpoint_verify_opts;

typedef struct d9d_checkpoint_verify_report {
    uint64_t files, tensors, bytes; /* that were read */
    uint64_t findings;
    bool hashed; /* there was a manifest, or had to be one */
} d9d_checkpoint_verify_report;

/* `report` may be NULL and is filled also where there are findings. */
D9D_API D9D_MUST_USE d9d_status d9d_checkpoint_verify(const char *dir,
                                                      const d9d_checkpoint_verify_opts *opt,
                                                      d9d_checkpoint_verify_report *report);

typedef enum d9d_checkpoint_diff_kind {
    D9D_CHECKPOINT_DIFF_EQUAL,  /* bit for bit */
    D9D_CHECKPOINT_DIFF_VALUES, /* same shape, other bits; dtypes may differ */
    D9D_CHECKPOINT_DIFF_DTYPE,  /* the same numbers in another dtype */
    D9D_CHECKPOINT_DIFF_SHAPE,
    D9D_CHECKPOINT_DIFF_ONLY_A,
    D9D_CHECKPOINT_DIFF_ONLY_B
} d9d_checkpoint_diff_kind;

/* One tensor of either directory; what it points at lives as long as the call. */
typedef struct d9d_checkpoint_tensor_diff {
    const char *name;
    d9d_checkpoint_diff_kind kind;
    const d9d_safetensors_tensor *a, *b; /* NULL where it is absent */
    uint64_t n_different; /* elements whose bits differ; of two dtypes: whose numbers do */
    double max_abs;       /* largest absolute difference; NaN when a difference is NaN */
} d9d_checkpoint_tensor_diff;

/* In order of name.  Equal sets give D9D_OK; *n_different counts all but EQUAL. */
typedef void (*d9d_checkpoint_diff_fn)(void *arg, const d9d_checkpoint_tensor_diff *d);
D9D_API D9D_MUST_USE d9d_status d9d_checkpoint_diff(const char *a, const char *b, int jobs,
                                                    const d9d_log *log, d9d_checkpoint_diff_fn fn,
                                                    void *arg, uint64_t *n_different);

/* Both as a report: a line a finding or difference and one that sums up, or one JSON object.
 * `out` is filled also where the status is EVERIFY: there were findings, or differences. */
D9D_API D9D_MUST_USE d9d_status d9d_checkpoint_verify_print(const char *dir,
                                                            const d9d_checkpoint_verify_opts *opt,
                                                            bool json, d9d_buf *out);
D9D_API D9D_MUST_USE d9d_status d9d_checkpoint_diff_print(const char *a, const char *b, int jobs,
                                                          const d9d_log *log, bool json,
                                                          d9d_buf *out);

#ifdef __cplusplus
}
#endif
#endif /* D9D_CKPT_DIR_CHECKPOINT_H */
