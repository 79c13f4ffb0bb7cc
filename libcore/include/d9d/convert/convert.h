/* convert.h - convert one checkpoint directory to another: what d9d-map does.
 *
 *     d9d_convert_opts opt = D9D_CONVERT_DEFAULTS;
 *     opt.to = D9D_CONVERT_D9D;
 *     D9D_TRY(d9d_convert_open("hf/qwen3", &opt, &c));        // headers are read, all is checked
 *     D9D_TRY(d9d_convert_run(c, "ckpt/qwen3", &run));        // atomic: complete or not there
 *     d9d_convert_close(c);
 *
 * config.json determines the model family, unless a mapper description replaces it.  The
 * destination gets the weights, the rewritten config.json, a manifest (d9d/ckpt/dir/manifest.h),
 * and the other files of the model (d9d_checkpoint_aux_files()), byte for byte.
 */
#ifndef D9D_CONVERT_CONVERT_H
#define D9D_CONVERT_CONVERT_H

#include "d9d/ckpt/dir/checkpoint.h"
#include "d9d/model/lora/adapters.h"
#include "d9d/model/provider.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef enum d9d_convert_to { D9D_CONVERT_OTHER, D9D_CONVERT_D9D, D9D_CONVERT_HF } d9d_convert_to;
typedef enum d9d_convert_experts {
    D9D_CONVERT_EXPERTS_UNCHANGED, /* as in the source, or as in the checkpoint that it was
                                      converted from */
    D9D_CONVERT_EXPERTS_SEPARATE,
    D9D_CONVERT_EXPERTS_FUSED
} d9d_convert_experts;

typedef struct d9d_convert_opts {
    d9d_convert_to to; /* OTHER: the layout that the source does not have */
    d9d_convert_experts expert_layout;
    bool cast; /* convert floating-point tensors to `dtype` */
    d9d_dtype dtype;
    d9d_cast_overflow overflow; /* for casts, these and those of a mapper description */
    uint64_t shard_bytes;
    /* A mapper description (d9d/ckpt/mapper/mapper_spec.h) in place of the model family.
     * config.json is optional, and is patched as the description says.  With `to` or
     * `expert_layout` it is ECONFIG. NULL: none. */
    const char *mapper;
    /* For a source without a config.json, such as a training checkpoint: the model's config.json,
     * or the directory that has it, whose other files are copied too.  NULL: the source's own. */
    const char *config;
    /* A HuggingFace folder of the same model, of which the output has all that the family does not
     * compute, such as the vision model of a multimodal one: those tensors, config.json, and the
     * files that the source lacks.  Layout and types are the folder's.  With `mapper`,
     * `expert_layout` or the layout D9D it is ECONFIG.  NULL: none. */
    const char *into;
    /* Adapters to merge (d9d/model/lora/adapters.h): a directory, or adapters in memory, borrowed;
     * NULL: none. */
    const char *adapter;
    const d9d_adapters *adapters;
    const d9d_adapter_kind *const *adapter_kinds; /* of plugins: d9d_adapters_read(); or NULL */
    /* Providers' sections that a config.json is read by; NULL: d9d_model_choices. */
    const d9d_table *const *choices;
    const d9d_log *log; /* receives one message for each mismatch; may be NULL */
} d9d_convert_opts;
#define D9D_CONVERT_DEFAULTS ((d9d_convert_opts){.shard_bytes = D9D_SHARD_BYTES})

typedef struct d9d_convert d9d_convert;

/* Plan a conversion; only headers and config.json are read.  EMISMATCH when tensors are missing,
 * unused or mis-shaped. */
D9D_API D9D_MUST_USE d9d_status d9d_convert_open(const char *src, const d9d_convert_opts *opt,
                                                 d9d_convert **out);
/* The same for a source of this model (borrowed).  `doc` is its config.json, which is rewritten;
 * NULL if HuggingFace's format cannot express the model: the layout is then D9D. */
D9D_API D9D_MUST_USE d9d_status d9d_convert_open_model(const char *src, const d9d_model_spec *m,
                                                       const json_t *doc,
                                                       const d9d_convert_opts *opt,
                                                       d9d_convert **out);
/* The same for random weights of the model in `config`, a config.json or a directory with one.
 * Without opt->cast the dtype is that of the file; OTHER is HF. */
D9D_API D9D_MUST_USE d9d_status d9d_convert_open_random(const char *config, uint64_t seed,
                                                        const d9d_convert_opts *opt,
                                                        d9d_convert **out);
/* The same for a checkpoint of that model with known shapes and no data: in the layout D9D if
 * opt->to is HF, else in HuggingFace's with opt->expert_layout.  It can be planned, not run. */
D9D_API D9D_MUST_USE d9d_status d9d_convert_open_shapes(const char *config,
                                                        const d9d_convert_opts *opt,
                                                        d9d_convert **out);
D9D_API void d9d_convert_close(d9d_convert *c);
D9D_API const d9d_map_plan *d9d_convert_plan(const d9d_convert *c); /* borrowed */

/* What only the numbers of a source can tell, before a run: the head of a tied model is its
 * embedding.  EMISMATCH. */
D9D_API D9D_MUST_USE d9d_status d9d_convert_check_data(const d9d_convert *c);

typedef struct d9d_convert_run_opts {
    bool replace; /* if false, a `dst` with files is ECONFIG; if true, it is replaced atomically */
    int jobs;     /* threads; 0: one for each processor, but at most 6 where files are copied */
    d9d_bootstrap
        *bootstrap; /* every rank runs the same conversion and makes its share; NULL: one process */
    const d9d_log *log;
} d9d_convert_run_opts;

/* Run the conversion in DST.partial, then rename it.  An interrupted run of the same conversion is
 * resumed from there, on any number of ranks.  Collective over opt->bootstrap: all ranks fail if
 * one does. */
D9D_API D9D_MUST_USE d9d_status d9d_convert_run(d9d_convert *c, const char *dst,
                                                const d9d_convert_run_opts *opt);

#ifdef __cplusplus
}
#endif
#endif /* D9D_CONVERT_CONVERT_H */
