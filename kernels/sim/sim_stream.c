/* sim_stream.c - clocks and tallies of simulated streams. See d9d/kernels/sim.h. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "d9d/base/mem.h"
#include "sim/sim_private.h"

typedef struct stream {
    d9d_sim *sim;
    double now;
    struct stream *next; /* list of all streams, to free them */
} stream;

/* What selects a GEMM algorithm. */
typedef struct gemm_shape {
    int64_t m, n, k;
    d9d_dtype t, ct;
    bool trans_a, trans_b, adds;
} gemm_shape;

struct d9d_sim {
    const d9d_sim_chip *chip;
    d9d_sim_owner owner;
    stream main_stream;
    stream *side_streams;
    d9d_sim_tally tally;
    D9D_VEC(d9d_sim_traffic) traffic;
    D9D_VEC(gemm_shape) shapes;
    double expert_load;
    const int32_t *choices_array; /* the noted array of choices, and its choices */
    d9di_sim_choices choices;
    struct {
        int64_t per, k;
        d9di_sim_choices each; /* of a row */
        const int32_t *rank, *received;
    } sent;
    int64_t launches;
};

static stream *stream_cast(d9d_stream s)
{
    return (stream *)(void *)s;
}

d9d_status d9d_sim_create(const d9d_sim_chip *chip, const d9d_sim_owner *owner, d9d_sim **out)
{
    d9d_sim *p = calloc(1, sizeof(*p));

    if (p == NULL)
        return D9D_FAIL(D9D_ENOMEM, "sim: out of memory");
    p->chip = chip;
    p->owner = *owner;
    p->main_stream.sim = p;
    *out = p;
    return D9D_OK;
}

void d9d_sim_free(d9d_sim *p)
{
    if (p == NULL)
        return;
    while (p->side_streams != NULL) {
        stream *s = p->side_streams;

        p->side_streams = s->next;
        free(s);
    }
    D9D_VEC_RELEASE(&p->traffic);
    D9D_VEC_RELEASE(&p->shapes);
    free(p);
}

const d9d_sim_chip *d9d_sim_get_chip(const d9d_sim *p)
{
    return p->chip;
}

d9d_stream d9d_sim_stream(d9d_sim *p)
{
    return (d9d_stream)(void *)&p->main_stream;
}

d9d_status d9d_sim_stream_create(d9d_sim *p, d9d_stream *out)
{
    stream *s = calloc(1, sizeof(*s));

    if (s == NULL)
        return D9D_FAIL(D9D_ENOMEM, "sim: out of memory");
    *s = (stream){.sim = p, .next = p->side_streams};
    p->side_streams = s;
    *out = (d9d_stream)(void *)s;
    return D9D_OK;
}

d9d_sim *d9d_sim_of_stream(d9d_stream s)
{
    return stream_cast(s)->sim;
}

double d9d_sim_now(d9d_stream s)
{
    return stream_cast(s)->now;
}

void d9d_sim_wait_until(d9d_stream s, double until)
{
    if (stream_cast(s)->now < until)
        stream_cast(s)->now = until;
}

bool d9d_sim_is_real(const void *p)
{
    return p != NULL && (uintptr_t)p < D9D_SIM_FAKE_BASE;
}

bool d9d_sim_is_host(const void *p)
{
    return (uintptr_t)p >= D9D_SIM_FAKE_HOST_BASE;
}

/* --- tallies ------------------------------------------------------------------------------- */

const d9d_sim_tally *d9d_sim_get_tally(const d9d_sim *p)
{
    return &p->tally;
}

void d9d_sim_reset_tally(d9d_sim *p)
{
    p->traffic.len = 0;
    p->tally = (d9d_sim_tally){.traffic = p->traffic.data};
}

static double peak_rate(const d9d_sim_chip *c, d9d_sim_kind kind, d9d_dtype t)
{
    if (kind == D9D_SIM_FP8_GEMM || kind == D9D_SIM_FP8_GROUPED_GEMM)
        return c->flops_fp8 > 0 ? c->flops_fp8 : c->flops;
    return t == D9D_BF16 ? c->flops : c->flops_f32;
}

static double kernel_seconds(const d9d_sim_chip *c, d9d_sim_kind kind, d9d_dtype t, double flops,
                             double bytes)
{
    const double computing = flops / (peak_rate(c, kind, t) * c->efficiency[kind]);
    const double moving = bytes / (c->memory_rate * c->memory_efficiency);
    const double longer = computing > moving ? computing : moving;

    return longer > c->launch_s ? longer : c->launch_s;
}

d9d_status d9di_sim_charge(d9d_stream s, d9d_sim_kind kind, d9d_dtype t, double flops, double bytes)
{
    stream *at = stream_cast(s);
    d9d_sim_work *w;
    double seconds;

    if (at == NULL) /* an overlapped stream, on a chip that cannot overlap */
        return D9D_OK;
    w = &at->sim->tally.work[kind];
    seconds = kernel_seconds(at->sim->chip, kind, t, flops, bytes);
    at->now += seconds;
    at->sim->launches++;
    w->calls++;
    w->flops += flops;
    w->bytes += bytes;
    w->seconds += seconds;
    return D9D_OK;
}

d9d_status d9d_sim_launch(d9d_stream s, d9d_dtype t, double flops, double bytes)
{
    return d9di_sim_charge(s, D9D_SIM_MEMORY, t, flops, bytes);
}

int64_t d9d_sim_launches(const d9d_sim *p)
{
    return p->launches;
}

d9d_status d9di_sim_use_scratch(d9d_stream s, int64_t bytes)
{
    d9d_sim *p = stream_cast(s)->sim;
    void *block;

    if (bytes == 0)
        return D9D_OK;
    D9D_TRY(p->owner.alloc(p->owner.self, (uint64_t)bytes, &block));
    p->owner.free(p->owner.self, block, (uint64_t)bytes);
    if ((uint64_t)bytes > p->tally.max_scratch)
        p->tally.max_scratch = (uint64_t)bytes;
    return D9D_OK;
}

static d9d_status traffic_find(d9d_sim *p, const char *group, const char *verb, d9d_sim_link link,
                               d9d_sim_traffic **out)
{
    d9d_sim_traffic t = {.coll = verb, .link = link};

    for (size_t i = 0; i < p->traffic.len; i++) {
        *out = &p->traffic.data[i];
        if ((*out)->link == link && strcmp((*out)->coll, verb) == 0 &&
            strcmp((*out)->group, group) == 0)
            return D9D_OK;
    }
    (void)snprintf(t.group, sizeof(t.group), "%.47s", group);
    D9D_TRY(D9D_VEC_PUSH(&p->traffic, t));
    p->tally.traffic = p->traffic.data;
    p->tally.n_traffic = p->traffic.len;
    *out = &p->traffic.data[p->traffic.len - 1];
    return D9D_OK;
}

d9d_status d9d_sim_transfer(d9d_stream s, const char *group, const char *verb, d9d_sim_link link,
                            double bytes)
{
    stream *at = stream_cast(s);
    const d9d_sim_chip *c = at->sim->chip;
    const double seconds = c->link[link].latency_s + bytes / c->link[link].rate;
    d9d_sim_traffic *t = NULL;

    D9D_TRY(traffic_find(at->sim, group, verb, link, &t));
    at->now += seconds;
    t->calls++;
    t->bytes += bytes;
    t->seconds += seconds;
    return D9D_OK;
}

d9d_status d9di_sim_is_new_shape(d9d_stream s, const d9d_gemm *g, bool *out)
{
    d9d_sim *p = stream_cast(s)->sim;

    *out = true;
    for (size_t i = 0; i < p->shapes.len && *out; i++) {
        const gemm_shape *k = &p->shapes.data[i];

        *out = k->m != g->m || k->n != g->n || k->k != g->k || k->t != g->t || k->ct != g->ct ||
               k->trans_a != g->trans_a || k->trans_b != g->trans_b || k->adds != (g->beta != 0);
    }
    return !*out ? D9D_OK
                 : D9D_VEC_PUSH(&p->shapes, ((gemm_shape){g->m, g->n, g->k, g->t, g->ct, g->trans_a,
                                                          g->trans_b, g->beta != 0}));
}

/* --- choices of experts ---------------------------------------------------------------------- */

void d9d_sim_set_expert_load(d9d_sim *p, double most)
{
    p->expert_load = most;
}

void d9di_sim_set_choices(d9d_stream s, const int32_t *expert, d9di_sim_choices choices)
{
    stream_cast(s)->sim->choices_array = expert;
    stream_cast(s)->sim->choices = choices;
}

d9di_sim_choices d9di_sim_get_choices(d9d_stream s, const int32_t *expert,
                                      d9di_sim_choices otherwise)
{
    d9d_sim *p = stream_cast(s)->sim;
    const bool known = p->choices_array == expert && expert != NULL;

    p->choices_array = NULL;
    return known ? p->choices : otherwise;
}

void d9di_sim_note_sent(d9d_stream s, const int32_t *rank, int64_t per, int64_t k,
                        d9di_sim_choices each)
{
    d9d_sim *p = stream_cast(s)->sim;

    p->sent.rank = rank;
    p->sent.per = per;
    p->sent.k = k;
    p->sent.each = each;
    p->sent.received = NULL;
}

d9di_sim_choices d9di_sim_received_choices(d9d_stream s, const int32_t *expert, int64_t e,
                                           int64_t k)
{
    d9d_sim *p = stream_cast(s)->sim;

    if (p->sent.received == NULL && p->sent.per == e && p->sent.k == k && expert != p->sent.rank)
        p->sent.received = expert;
    return expert != NULL && p->sent.received == expert && p->sent.k == k
               ? p->sent.each
               : (d9di_sim_choices){(double)k, p->expert_load};
}
