/* convert.h - one checkpoint directory into another: what d9d-map does.
 *
 *     d9d_convert_opts opt = D9D_CONVERT_DEFAULTS;
 *     opt.to = D9D_CONVERT_D9D;
 *     D9D_TRY(d9d_convert_open("hf/qwen3", &opt, &c));        // headers are read, all is checked
 *     D9D_TRY(d9d_convert_run(c, "ckpt/qwen3", false, 0, log));      // written whole or not at all
 *     d9d_convert_close(c);
 *
 * The model family is found from config.json, unless a description says what to do.  The
 * destination gets the weights, the rewritten config.json, a manifest (manifest.h), and the other
 * files of the model (d9d_checkpoint_aux_files()) byte for byte.
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
    D9D_CONVERT_EXPERTS_UNCHANGED, /* as the source has them, or as the source's own source had them
                                    */
    D9D_CONVERT_EXPERTS_SEPARATE,
    D9D_CONVERT_EXPERTS_FUSED
} d9d_convert_experts;

typedef struct d9d_convert_opts {
    d9d_convert_to to; /* OTHER: the layout that the source is not in */
    d9d_convert_experts expert_layout;
    bool cast; /* floating tensors become `dtype` */
    d9d_dtype dtype;
    d9d_cast_overflow overflow; /* of casts, these and a description's */
    uint64_t shard_bytes;
    /* A description of the mapping (ckpt/mapper_spec.h) in place of the model family: config.json
     * need not be there, and is patched where the description says so; with `to` or `experts` it is
     * ECONFIG.  NULL: none. */
    const char *mapper;
    /* Of a source without a config.json, such as a training checkpoint: the model's, or the
     * directory that has it; its other files go along.  NULL: the source's own. */
    const char *config;
    /* Adapters to merge (adapters.h): of a directory, or these, borrowed; NULL: none. */
    const char *adapter;
    const d9d_adapters *adapters;
    const d9d_log *log; /* hears what does not fit, sentence by sentence; may be NULL */
} d9d_convert_opts;
#define D9D_CONVERT_DEFAULTS ((d9d_convert_opts){.shard_bytes = D9D_SHARD_BYTES})

typedef struct d9d_convert d9d_convert;

/* Plan: nothing but headers and config.json is read.  EMISMATCH when tensors are missing,
 * unused or mis-shaped. */
D9D_API D9D_MUST_USE d9d_status d9d_convert_open(const char *src, const d9d_convert_opts *opt,
                                                 d9d_convert **out);
/* The same for a source of this model (borrowed), to which `doc` belongs: the config.json that is
 * to be rewritten; NULL where HuggingFace's format cannot say the model, then the layout is D9D. */
D9D_API D9D_MUST_USE d9d_status d9d_convert_open_model(const char *src, const d9d_model_spec *m,
                                                       const json_t *doc,
                                                       const d9d_convert_opts *opt,
                                                       d9d_convert **out);
/* The same for random weights of the model in `config`, a config.json or a
 * directory with one.  Without opt->cast the dtype is the config's; OTHER is HF. */
D9D_API D9D_MUST_USE d9d_status d9d_convert_open_random(const char *config, uint64_t seed,
                                                        const d9d_convert_opts *opt,
                                                        d9d_convert **out);
/* The same for a checkpoint of that model of which only the shapes are known: in the layout D9D
 * where opt->to is HF, else in HuggingFace's with opt->experts.  It can be planned, not run. */
D9D_API D9D_MUST_USE d9d_status d9d_convert_open_shapes(const char *config,
                                                        const d9d_convert_opts *opt,
                                                        d9d_convert **out);
D9D_API void d9d_convert_close(d9d_convert *c);
D9D_API const d9d_map_plan *d9d_convert_plan(const d9d_convert *c); /* borrowed */

typedef struct d9d_convert_run_opts {
    bool replace;        /* else a `dst` with files is ECONFIG; it changes at once */
    int jobs;            /* threads; 0: one a processor, but 6 at most where files are copied */
    d9d_bootstrap *boot; /* every rank runs the same conversion, and makes its share; NULL: alone */
    const d9d_log *log;
} d9d_convert_run_opts;

/* Work in DST.partial, from where an interrupted run of the same conversion goes on, on any
 * number of ranks; then rename it.  With ranks collective: all fail where one does. */
D9D_API D9D_MUST_USE d9d_status d9d_convert_run(d9d_convert *c, const char *dst,
                                                const d9d_convert_run_opts *opt);

#ifdef __cplusplus
}
#endif
#endif /* D9D_CONVERT_CONVERT_H */
