/* certify.h - what holds of a family of models, measured on a small one: d9d-map certify.
 *
 *     llama: llama, causal_lm, 4 layers, 35104 parameters, random weights
 *     check        result   figure    limit
 *     files        ok       0         0         39 tensors, 140416 bytes, config.json
 *     golden       skipped  -         -         no --golden FOLDER of vectors
 *     gradients    ok       3.1e-04   0.01      39 tensors, the worst model.layers.0.self_attn...
 *     recompute    ok       0         0         loss and 39 gradients, full and selective
 *     steps        ok       0.291     0.99      loss 5.1468 to 1.5002 in 8 steps, resumed at 4
 *     ...
 *
 * The small model is on the CPU in float32.  Its config.json is made from the family's tables, or
 * is that of a folder, with fewer and narrower layers where that is large.  Its weights are random,
 * or those of the folder where nothing had to be made smaller.  It and what the checks write are in
 * a folder of their own under TMPDIR, or /tmp, which is removed at the end.  If a certificate is
 * killed, the next one removes it.
 *
 * A figure passes if it is not above its limit.  A check that does not apply, such as generation by
 * an encoder, is skipped and says why.
 *
 * The losses are those of the model's own head, or of a task's: causal_lm, masked_lm,
 * classification or embedding.  A family is certified as what it is, a causal or a masked language
 * model, unless a task is named, and a folder by the class in its config.json.
 *
 *     check       figure
 *     files       tensors that differ, or are missing, after HuggingFace's layout, the suite's, and
 *                 back; config.json must be the same too
 *     golden      largest distance from stored float64 vectors (d9d/certify/golden.h), or of the
 *                 losses of ten steps of AdamW; where "outputs" is large, the layers differ
 *     gradients   of each tensor along random directions, against finite differences of the loss:
 *                 the median of a tensor's differences, relative to what a gradient of this norm
 *                 has along one; that of the worst tensor.  Directions along which the loss has a
 *                 jump or a kink tell nothing, and others are drawn
 *     recompute   elements of loss and gradients that differ with activation checkpointing
 *     steps       last loss over the first, of AdamW on one repeated batch; a run that was resumed
 *                 must end with the same bits
 *     adapters    loss of a model with merged LoRA adapters, against that of model and adapters,
 *                 relative; new adapters must change no bit, and saving and loading neither
 *     generation  how far below the largest logit of a recomputed prefix the token is that greedy
 *                 decoding with the KV cache took, relative to the logits
 *     memory      measured peak of a training step against the planned one, relative
 *     meshes      losses and gradient norms on all ranks against one, relative
 *
 * The ranks of a launch run the last check together, on the first of a list of meshes that the
 * family accepts, such as data_parallel_shard 2, tensor_parallel 2 for four.  Rank 0 runs the
 * others before, alone.  All ranks need the folder of rank 0: with several hosts, TMPDIR is shared.
 */
#ifndef D9D_CERTIFY_CERTIFY_H
#define D9D_CERTIFY_CERTIFY_H

#include "d9d/base/json.h"
#include "d9d/comm/bootstrap.h"
#include "d9d/tasks/plugin.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef enum d9d_certificate_result {
    D9D_CERTIFICATE_OK,
    D9D_CERTIFICATE_FAILED,
    D9D_CERTIFICATE_SKIPPED
} d9d_certificate_result;

/* One line of the certificate. */
typedef struct d9d_certificate_check {
    const char *name;
    d9d_certificate_result result;
    double figure, limit; /* NaN: none */
    const char *detail;   /* what was compared, what failed, or why it was skipped */
} d9d_certificate_check;

enum { D9D_CERTIFICATE_CHECKS = 9 };

typedef struct d9d_certificate {
    const char *family, *model_type; /* name of its section; of its config.json */
    const char *source;              /* the operand: a family, or a folder */
    const char *task;                /* whose losses are certified: "causal_lm" */
    bool shrunk;                     /* the folder's configuration was made smaller */
    bool own_weights;                /* the folder's weights; false: random */
    int64_t layers, parameters;
    uint64_t seed;
    json_t *config; /* the small model's config.json; released with the certificate */
    d9d_certificate_check check[D9D_CERTIFICATE_CHECKS];
    size_t n;
} d9d_certificate;

typedef struct d9d_certify_opts {
    d9d_plugins *plugins;     /* whose families are certified too; never NULL */
    const char *golden;       /* a folder of golden vectors, or NULL */
    const char *task;         /* "classification"; NULL: that of the model's own head */
    uint64_t seed;            /* of weights, tokens and directions */
    d9d_bootstrap *bootstrap; /* its ranks, all of which call; never NULL */
    const d9d_log *log;
} d9d_certify_opts;

/* Names and meanings of the checks, in order; ends with a NULL name. */
typedef struct d9d_certificate_about {
    const char *name, *text;
} d9d_certificate_about;
D9D_API extern const d9d_certificate_about d9d_certificate_abouts[];

/* Certify a family (a model_type, or the name of its section) or the model of a folder.  Strings
 * are in the arena; d9d_certificate_release() frees the rest.  Collective over the bootstrap; the
 * certificate is rank 0's.  EVERIFY if a check failed, and the certificate is filled then too, and
 * after a signal, without checks; ECONFIG, ENOTSUP and ENOTFOUND for what is no family and no
 * folder, before anything is made. */
D9D_API D9D_MUST_USE d9d_status d9d_certify(const char *model, const d9d_certify_opts *opts,
                                            d9d_arena *a, d9d_certificate *out);
D9D_API void d9d_certificate_release(d9d_certificate *c);

/* Append the certificate as text, in the form above; d9d_certificate_json() returns it as
 * d9d.certificate.v1. */
D9D_API D9D_MUST_USE d9d_status d9d_certificate_print(const d9d_certificate *c, d9d_buf *out);
D9D_API json_t *d9d_certificate_json(const d9d_certificate *c); /* NULL if out of memory */

#ifdef __cplusplus
}
#endif
#endif /* D9D_CERTIFY_CERTIFY_H */
