/* certify_memory.c - a training step takes the memory that was planned.  See certify_parts.h. */
#include <inttypes.h>
#include <math.h>

#include "certify/certify_job.h"

/* The plan is exact, but that it has the tokens of a batch spread evenly over the experts. */
static const double limit = 0, experts_limit = 0.1;

d9d_status d9di_certify_memory(d9di_certify *c, d9d_certificate_check *out)
{
    d9d_train_summary measured;
    d9d_arena a = {0};
    d9d_plan plan;
    uint64_t planned;
    d9d_status st;

    if (c->untrainable != NULL)
        return d9di_certify_skip(out, c->untrainable);
    st = d9di_certify_plan(c, d9di_certify_train_doc(c, "planned", 2, NULL), &a, &plan);
    planned = st == D9D_OK ? d9d_plan_largest_rank(&plan)->peak : 0;
    d9d_arena_release(&a);
    D9D_TRY(st);
    D9D_TRY(d9di_certify_train(c, d9di_certify_train_doc(c, "measured", 2, NULL), &measured));
    out->figure = fabs((double)measured.mem_bytes / (double)planned - 1);
    out->limit = c->has_experts ? experts_limit : limit;
    return d9di_certify_detail(c, out, "%" PRIu64 " bytes planned, %" PRIu64 " measured", planned,
                               measured.mem_bytes);
}
