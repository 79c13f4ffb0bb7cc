/* build_interleaved.c - 1F1B, interleaved over a rank's stages; with deferred wgrad, zero bubble
 * (ZB1P).
 *
 *     warm-up   F F F F                      until the first gradient has come back
 *     steady            F B F B F B
 *     cool-down                    B B B B
 */
#include "pipe/program_private.h"

/* One rank's lane while it is built. */
typedef struct interleaved_builder {
    d9d_program *p;
    int rank, n;       /* stages of this rank */
    int round;         /* consecutive micro-batches of one stage */
    int warmup, total; /* numbers of forwards */
    bool split;
    int *next_forward, *next_backward; /* [n]: next micro-batch of each stage */
    d9d_pipe_lane deferred;            /* deferred W */
    size_t first_deferred;
} interleaved_builder;

static d9d_status push_forward(interleaved_builder *b, int op)
{
    const int k = op / b->round % b->n;

    return d9d_program_push(b->p, b->rank,
                            (d9d_pipe_action){D9D_PIPE_FORWARD,
                                              d9d_program_stage_of(b->p, b->rank, k),
                                              b->next_forward[k]++, false});
}

static d9d_status push_deferred(interleaved_builder *b)
{
    if (b->first_deferred == b->deferred.len)
        return D9D_OK;
    return d9d_program_push(b->p, b->rank, b->deferred.data[b->first_deferred++]);
}

static d9d_status push_backward(interleaved_builder *b, int op)
{
    const int k = b->n - 1 - (op - b->warmup) / b->round % b->n;
    d9d_pipe_action a = {b->split ? D9D_PIPE_DGRAD : D9D_PIPE_BACKWARD,
                         d9d_program_stage_of(b->p, b->rank, k), b->next_backward[k]++, false};

    D9D_TRY(d9d_program_push(b->p, b->rank, a));
    if (!b->split)
        return D9D_OK;
    a.kind = D9D_PIPE_WGRAD;
    if (D9D_VEC_PUSH(&b->deferred, a) != D9D_OK)
        return D9D_FAIL(D9D_ENOMEM, "pipeline: an action of rank %d", b->rank);
    return op - b->warmup >= b->rank ? push_deferred(b) : D9D_OK;
}

static d9d_status build_lane(interleaved_builder *b)
{
    for (int op = 0; op < b->total + b->warmup; op++) {
        if (op < b->total)
            D9D_TRY(push_forward(b, op));
        if (op >= b->warmup)
            D9D_TRY(push_backward(b, op));
    }
    while (b->first_deferred < b->deferred.len)
        D9D_TRY(push_deferred(b));
    return D9D_OK;
}

/* Number of warm-up forwards.  A gradient returns after one trip down the pipeline and one up.  The
 * trip up is as long as the trip down; a rank with one stage, or one that fills it with W, need not
 * cover it. */
static int warmup_count(const d9d_pipe_schedule_opts *opts, const interleaved_builder *b)
{
    const int trips = opts->deep_warmup || (b->n > 1 && !b->split) ? 2 : 1;
    const int ahead = (b->n - 1) * b->round + trips * (b->p->ranks - 1 - b->rank);

    return ahead < b->total ? ahead : b->total;
}

static d9d_status build_rank(const d9d_pipe_schedule_opts *opts, d9d_program *p, int rank,
                             int round)
{
    interleaved_builder b = {.p = p,
                             .rank = rank,
                             .n = p->stages / p->ranks,
                             .round = round,
                             .total = p->micros * (p->stages / p->ranks),
                             .split = opts->zero_bubble};
    d9d_status st = D9D_OK;

    b.warmup = warmup_count(opts, &b);
    b.next_forward = calloc((size_t)b.n, sizeof(int));
    b.next_backward = calloc((size_t)b.n, sizeof(int));
    if (b.next_forward == NULL || b.next_backward == NULL)
        st = D9D_FAIL(D9D_ENOMEM, "pipeline: %d stages", b.n);
    if (st == D9D_OK)
        st = build_lane(&b);
    free(b.next_forward);
    free(b.next_backward);
    D9D_VEC_RELEASE(&b.deferred);
    return st;
}

d9d_status d9di_pipe_build_interleaved(const d9d_pipe_schedule_opts *opts, d9d_program *p)
{
    const int rounds = p->micros / p->ranks > 1 ? p->micros / p->ranks : 1;

    if (p->micros % rounds != 0)
        return D9D_FAIL(D9D_ECONFIG,
                        "pipeline: 1f1b on %d ranks takes %d micro-batches in %d rounds, which do "
                        "not come out even; take a multiple of %d",
                        p->ranks, p->micros, rounds, p->ranks);
    for (int r = 0; r < p->ranks; r++)
        D9D_TRY(build_rank(opts, p, r, p->micros / rounds));
    return D9D_OK;
}
