/* certify_steps.c - AdamW learns a repeated batch, and a run that was resumed ends with the same
 * bits.  See certify_parts.h. */
#include <inttypes.h>

#include "certify/certify_job.h"
#include "d9d/base/num_format.h"
#include "d9d/ckpt/dir/checkpoint.h"

enum { STEPS = 8, FIRST = 4 }; /* in all; before the run stops */

typedef struct finding {
    const char *name; /* of the first tensor that differs */
    d9d_arena *arena;
} finding;

static void find_different(void *arg, const d9d_checkpoint_tensor_diff *d)
{
    finding *f = arg;

    if (f->name == NULL && d->kind != D9D_CHECKPOINT_DIFF_EQUAL)
        f->name = d9d_arena_strdup(f->arena, d->name);
}

/* The models that two runs exported. */
static d9d_status compare_exports(d9di_certify *c, const d9d_train_summary *whole,
                                  const d9d_train_summary *resumed)
{
    finding f = {.arena = c->arena};
    uint64_t n;

    D9D_TRY(d9d_checkpoint_diff(whole->export_dir, resumed->export_dir, 1, NULL, find_different, &f,
                                &n));
    return n == 0 ? D9D_OK
                  : D9D_FAIL(D9D_EVERIFY,
                             "after a resume at step %d, %" PRIu64 " tensor%s differ, the first %s",
                             FIRST, n, D9D_PLURAL(n), f.name);
}

d9d_status d9di_certify_steps(d9di_certify *c, d9d_certificate_check *out)
{
    d9d_train_summary whole, resumed;

    if (c->untrainable != NULL)
        return d9di_certify_skip(out, c->untrainable);
    D9D_TRY(d9di_certify_train(c, d9di_certify_train_doc(c, "whole", STEPS, NULL), &whole));
    D9D_TRY(d9di_certify_train(c, d9di_certify_train_doc(c, "resumed", FIRST, NULL), &resumed));
    D9D_TRY(d9di_certify_train(c, d9di_certify_train_doc(c, "resumed", STEPS, NULL), &resumed));
    out->figure = whole.last_loss / whole.first_loss;
    out->limit = 0.99;
    D9D_TRY(d9di_certify_detail(c, out, "loss %.4f to %.4f in %d steps, resumed at %d",
                                whole.first_loss, whole.last_loss, STEPS, FIRST));
    return compare_exports(c, &whole, &resumed);
}
