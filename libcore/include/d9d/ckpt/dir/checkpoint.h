/* checkpoint.h - a model folder (a directory of safetensors files) as a tensor source and as a
 * tensor sink.
 *
 * Reading uses model.safetensors.index.json and the files that it names; without an index it uses
 * model.safetensors.  Index and headers must agree.  EFORMAT: the index places a tensor in a file
 * that lacks it; a file holds a tensor that the index does not list; or a file name is not one
 * plain path component.  That component may be a symbolic link, as in the HuggingFace cache.  If
 * the directory has neither file but is a training checkpoint (d9d/checkpointer/checkpointer.h),
 * its parameters are read, assembled from the slices of all ranks.
 *
 * Writing makes "model.safetensors" when everything fits one shard; otherwise it makes
 * model-0000i-of-0000n.safetensors and the index.  Tensors are written in the order given, with
 * header metadata {"format": "pt"}.  The layout of every file is known before the first byte is
 * written.
 */
#ifndef D9D_CKPT_DIR_CHECKPOINT_H
#define D9D_CKPT_DIR_CHECKPOINT_H

#include "d9d/ckpt/dir/manifest.h"
#include "d9d/ckpt/mapper/mapper.h"
#include "d9d/ckpt/quant/dequant.h"
#include "d9d/comm/bootstrap.h"

#ifdef __cplusplus
extern "C" {
#endif

#define D9D_CHECKPOINT_INDEX_NAME "model.safetensors.index.json"
#define D9D_SHARD_BYTES           4000000000ull /* the default shard size: 4 GB */
#define D9D_MAX_SHARDS            99999         /* their names have five digits */

typedef struct d9d_checkpoint d9d_checkpoint;

D9D_API D9D_MUST_USE d9d_status d9d_checkpoint_open(const char *dir, d9d_checkpoint **out);
/* ENOTFOUND if a file tells that the folder is another thing: a run, adapters, a dataset. */
D9D_API D9D_MUST_USE d9d_status d9d_checkpoint_check_folder(const char *dir);
/* Opening in two steps, for callers that need only some tensors. list() reads the index alone;
 * load() then reads the headers of the files that hold any of `names` (NULL: of all files).
 * Unknown names are ignored.  Until its file's header is read, a tensor has a name and a file but
 * no shape. load() renumbers the tensors: take counts and sources after it. */
D9D_API D9D_MUST_USE d9d_status d9d_checkpoint_list(const char *dir, d9d_checkpoint **out);
D9D_API D9D_MUST_USE d9d_status d9d_checkpoint_load(d9d_checkpoint *c, const char *const *names,
                                                    size_t n);
/* From here on load() takes names of, and source() presents, the tensors that these are quantised
 * from (d9d/ckpt/quant/dequant.h), as `to`; all other functions are of what is stored.  With NONE
 * nothing changes. */
D9D_API D9D_MUST_USE d9d_status d9d_checkpoint_decode(d9d_checkpoint *c, const d9d_quantization *q,
                                                      d9d_dtype to);
/* Tensors that source() presents decoded. */
D9D_API size_t d9d_checkpoint_decoded(const d9d_checkpoint *c);
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

/* The directories that d9d_outdir_begin() may empty or replace: checkpoints, including those in
 * HuggingFace's layout. */
D9D_API const d9d_outdir_kind *d9d_checkpoint_kind(void);

/* A sink that writes shards of at most `shard_bytes` bytes of tensors into `dir`, which must exist.
 * A larger tensor gets a shard of its own.
 *
 *     D9D_TRY(d9d_shard_sink_create(dir, D9D_SHARD_BYTES, &s));
 *     D9D_TRY_OR(st, d9d_shard_sink_copy(s, "tokenizer.json", "hf/tokenizer.json"), out);
 *     sink = d9d_shard_sink_tensor_sink(s);
 *     D9D_TRY_OR(st, d9d_map_plan_run(plan, &sink, jobs, log), out);
 *     st = d9d_shard_sink_end(s);
 *
 * Files are written in the chunks of a manifest (manifest.h).  Each chunk is assembled in memory,
 * hashed, and written with direct I/O where the file system allows it.  So no file is read again
 * for its manifest, a file is open only while it is written, and each thread needs memory for one
 * chunk. */
typedef struct d9d_shard_sink d9d_shard_sink;
D9D_API D9D_MUST_USE d9d_status d9d_shard_sink_create(const char *dir, uint64_t shard_bytes,
                                                      d9d_shard_sink **out);
D9D_API void d9d_shard_sink_free(d9d_shard_sink *s);
/* Before the run: add a file with this text, or a copy of the regular file `path`.  `name` is in
 * `dir` or in one subdirectory of it: "1_Pooling/config.json". */
D9D_API D9D_MUST_USE d9d_status d9d_shard_sink_text(d9d_shard_sink *s, const char *name,
                                                    const char *text, size_t n);
D9D_API D9D_MUST_USE d9d_status d9d_shard_sink_copy(d9d_shard_sink *s, const char *name,
                                                    const char *path);
/* Before the run: resume an earlier run that had the same key.  `key` is a hash of everything that
 * decides the bytes of the outputs; the sink adds its own parameters.  The sink keeps a journal of
 * finished chunks in `dir`.  It reads the chunks that the journal lists and keeps those whose hash
 * agrees.  If the key differs, everything in `dir` is removed.  A line in `log` says which of the
 * two happened. */
D9D_API void d9d_shard_sink_resume(d9d_shard_sink *s, d9d_hash key, const d9d_log *log);
/* Before the run, with resume, on every rank: divide the chunks among the ranks, about the same
 * number of bytes each.  The run is then collective: rank 0 creates the files, and all ranks begin
 * or none does.  Only rank 0 writes the manifest, after all ranks have ended. */
D9D_API void d9d_shard_sink_ranks(d9d_shard_sink *s, d9d_bootstrap *bootstrap);
D9D_API d9d_tensor_sink d9d_shard_sink_tensor_sink(d9d_shard_sink *s); /* borrows s */
/* Close the files.  Every chunk (of this rank) must have been written. */
D9D_API D9D_MUST_USE d9d_status d9d_shard_sink_end(d9d_shard_sink *s);
/* After end(): write the manifest of all files, with the members of `extra`, and remove the
 * journal. */
D9D_API D9D_MUST_USE d9d_status d9d_shard_sink_manifest(d9d_shard_sink *s, const json_t *extra);

/* Auxiliary files: the files of a HuggingFace model in `src` besides weights and config.json, such
 * as the tokenizer's.  The table of names is in ckpt/dir/model_files.c; d9d-map(1) lists it.  Of
 * subdirectories only files in the table are taken, such as 1_Pooling/config.json.  Links to files
 * are followed, links to directories are not.  EPATH or ENOTFOUND if a listed name is a pipe, a
 * device or a dangling link.  Files larger than D9D_CHECKPOINT_AUX_FILE_MAX are left out.  One log
 * line names what is left out, except hidden files, safetensors weights and files that are written
 * anew.  `out`: paths relative to `src`, sorted, in the arena. */
#define D9D_CHECKPOINT_AUX_FILE_MAX (1ull << 30)
D9D_API D9D_MUST_USE d9d_status d9d_checkpoint_aux_files(const char *src, d9d_arena *a,
                                                         const d9d_log *log, d9d_fs_names *out);
/* Copies the auxiliary files of `src` to `dst`, byte for byte. */
D9D_API D9D_MUST_USE d9d_status d9d_checkpoint_copy_aux_files(const char *src, const char *dst,
                                                              const d9d_log *log);

/* --- verify and diff ---------------------------------------------------------- */

/* Checks that a directory is what was written, to the byte.  Findings are:
 *   - a file that is missing, longer, shorter or changed according to the manifest (manifest.h)
 *   - a manifest that is missing or changed
 *   - a file or directory that the manifest does not list, unless its name or its directory's name
 *     begins with a dot
 *   - a safetensors header that breaks a rule of the format (safetensors.h), and an index that
 *     does not agree with the headers
 *   - a floating-point number that is not finite
 *   - anything that cannot be read
 * Each finding is one sentence to `on_finding`, in an order that does not depend on `jobs`.
 * EVERIFY if there was any.  Every byte is read once. */
typedef void (*d9d_checkpoint_verify_fn)(void *arg, const char *sentence);
typedef struct d9d_checkpoint_verify_opts {
    int jobs; /* threads; 0: one per processor */
    const d9d_log *log;
    bool no_manifest; /* accept a directory without manifest; check headers, index and numbers */
    d9d_checkpoint_verify_fn on_finding;
    void *arg;
} d9d_checkpoint_verify_opts;

typedef struct d9d_checkpoint_verify_report {
    uint64_t files, tensors, bytes; /* that were read */
    uint64_t findings;
    bool hashed; /* hashes were checked, because there was a manifest or one was required */
} d9d_checkpoint_verify_report;

/* `report` may be NULL.  It is also filled when there are findings. */
D9D_API D9D_MUST_USE d9d_status d9d_checkpoint_verify(const char *dir,
                                                      const d9d_checkpoint_verify_opts *opt,
                                                      d9d_checkpoint_verify_report *report);

typedef enum d9d_checkpoint_diff_kind {
    D9D_CHECKPOINT_DIFF_EQUAL,  /* bit for bit */
    D9D_CHECKPOINT_DIFF_VALUES, /* same shape, different bits; dtypes may differ */
    D9D_CHECKPOINT_DIFF_DTYPE,  /* the same numbers in another dtype */
    D9D_CHECKPOINT_DIFF_SHAPE,
    D9D_CHECKPOINT_DIFF_ONLY_A,
    D9D_CHECKPOINT_DIFF_ONLY_B
} d9d_checkpoint_diff_kind;

/* One tensor of either directory.  Its pointers are valid only during the call. */
typedef struct d9d_checkpoint_tensor_diff {
    const char *name;
    d9d_checkpoint_diff_kind kind;
    const d9d_safetensors_tensor *a, *b; /* NULL where it is absent */
    uint64_t n_different; /* elements whose bits differ; across dtypes: whose numbers differ */
    double max_abs;       /* largest absolute difference; NaN when a difference is NaN */
} d9d_checkpoint_tensor_diff;

/* Calls `fn` for each tensor in order of name.  D9D_OK also when tensors differ: *n_different
 * counts all kinds but EQUAL. */
typedef void (*d9d_checkpoint_diff_fn)(void *arg, const d9d_checkpoint_tensor_diff *d);
D9D_API D9D_MUST_USE d9d_status d9d_checkpoint_diff(const char *a, const char *b, int jobs,
                                                    const d9d_log *log, d9d_checkpoint_diff_fn fn,
                                                    void *arg, uint64_t *n_different);

/* The same two as a report: one line for each finding or difference and a summary line, or one JSON
 * object.  EVERIFY if there were findings or differences; `out` is filled then too. */
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
