/* certify_parts.h - what the checks of a certificate share.  Each is one file and one function.
 *
 * A check sets figure, limit and detail; it passes if the figure is not above the limit.  One that
 * does not apply calls d9di_certify_skip().  One that returns a failure has failed with that
 * sentence, unless the failure is of this machine (memory, disk, a signal): that ends the
 * certificate.
 */
#ifndef D9DI_CERTIFY_PARTS_H
#define D9DI_CERTIFY_PARTS_H

#include "certify/small_model.h"
#include "d9d/certify/certify.h"

typedef struct d9di_certify {
    const d9d_certify_opts *opts;
    struct d9d_preemption *signals;
    const d9d_table *const *choices;
    const d9d_model_provider *provider;
    d9d_certificate *out;
    d9d_arena *arena;        /* of the certificate */
    const char *dir;         /* a folder of its own; each check works in one of its name below it */
    const char *folder;      /* the small model, in HuggingFace's files */
    const char *untrainable; /* why it cannot be trained, or NULL */
    d9d_head_kind head;      /* of the task by which it is certified */
    bool head_in_files;      /* the class in config.json has it */
    bool has_experts;
    int64_t vocab, length; /* ids; positions of a sequence */
} d9di_certify;

typedef d9d_status d9di_certify_fn(d9di_certify *c, d9d_certificate_check *out);

d9di_certify_fn d9di_certify_files, d9di_certify_golden, d9di_certify_gradients,
    d9di_certify_recompute, d9di_certify_steps, d9di_certify_adapters, d9di_certify_generation,
    d9di_certify_memory, d9di_certify_meshes;

/* ECONFIG if --golden names a folder of another family. */
d9d_status d9di_certify_golden_check(const d9di_certify *c);

/* The check does not apply; this is why. */
d9d_status d9di_certify_skip(d9d_certificate_check *out, const char *why);
/* Set detail, as printf() does. */
d9d_status d9di_certify_detail(d9di_certify *c, d9d_certificate_check *out, const char *format, ...)
    D9D_PRINTF(3, 4);
/* "DIR/name", in the arena. */
d9d_status d9di_certify_path(d9di_certify *c, const char *name, const char **out);

#endif /* D9DI_CERTIFY_PARTS_H */
