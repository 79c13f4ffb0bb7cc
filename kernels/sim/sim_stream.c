/* sim_stream.c - clocks and tallies.  See d9d/kernels/sim.h. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "d9d/base/mem.h"
#include "sim/sim_private.h"

typedef struct stream {
    d9d_paper *paper;
    double now;
    struct stream *next; /* to free them all */
} stream;

/* What decides about a product's algorithm. */
typedef struct shape {
    int64_t m, n, k;
    d9d_dtype t, ct;
    bool trans_a, trans_b, adds;
} shape;

struct d9d_paper {
    const d9d_paper_chip *chip;
    d9d_paper_owner owner;
    stream own;
    stream *others;
    d9d_paper_tally tally;
    D9D_VEC(d9d_paper_talk) talk;
    D9D_VEC(shape) shapes;
    const int32_t *noted; /* an array of choices, and how many there are */
    double choices;
    int64_t launches;
};

static stream *stream_of(d9d_stream s)
{
    return (stream *)(void *)s;
}

d9d_status d9d_paper_create(const d9d_paper_chip *chip, const d9d_paper_owner *owner,
                            d9d_paper **out)
{
    d9d_paper *p = calloc(1, sizeof(*p));

    if (p == NULL)
        return D9D_FAIL(D9D_ENOMEM, "paper: out of memory");
    p->chip = chip;
    p->owner = *owner;
    p->own.paper = p;
    *out = p;
    return D9D_OK;
}

void d9d_paper_free(d9d_paper *p)
{
    if (p == NULL)
        return;
    while (p->others != NULL) {
        stream *s = p->others;

        p->others = s->next;
        free(s);
    }
    D9D_VEC_RELEASE(&p->talk);
    D9D_VEC_RELEASE(&p->shapes);
    free(p);
}

const d9d_paper_chip *d9d_paper_chip_of(const d9d_paper *p)
{
    return p->chip;
}

d9d_stream d9d_paper_stream(d9d_paper *p)
{
    return (d9d_stream)(void *)&p->own;
}

d9d_status d9d_paper_add_stream(d9d_paper *p, d9d_stream *out)
{
    stream *s = calloc(1, sizeof(*s));

    if (s == NULL)
        return D9D_FAIL(D9D_ENOMEM, "paper: out of memory");
    *s = (stream){.paper = p, .next = p->others};
    p->others = s;
    *out = (d9d_stream)(void *)s;
    return D9D_OK;
}

d9d_paper *d9d_paper_of(d9d_stream s)
{
    return stream_of(s)->paper;
}

double d9d_paper_now(d9d_stream s)
{
    return stream_of(s)->now;
}

void d9d_paper_wait(d9d_stream s, double until)
{
    if (stream_of(s)->now < until)
        stream_of(s)->now = until;
}

bool d9d_paper_is_real(const void *p)
{
    return p != NULL && (uintptr_t)p < D9D_PAPER_UNREAL;
}

/* --- tallies ------------------------------------------------------------------------------- */

const d9d_paper_tally *d9d_paper_done(const d9d_paper *p)
{
    return &p->tally;
}

void d9d_paper_begin(d9d_paper *p)
{
    p->talk.len = 0;
    p->tally = (d9d_paper_tally){.talk = p->talk.data};
}

static double seconds_of(const d9d_paper_chip *c, d9d_paper_kind kind, d9d_dtype t, double flops,
                         double bytes)
{
    const double peak = t == D9D_BF16 ? c->flops : c->flops_f32;
    const double computing = flops / (peak * c->rate[kind]);
    const double moving = bytes / (c->memory_rate * c->memory_part);
    const double longer = computing > moving ? computing : moving;

    return longer > c->launch_s ? longer : c->launch_s;
}

d9d_status d9di_paper_charge(d9d_stream s, d9d_paper_kind kind, d9d_dtype t, double flops,
                             double bytes)
{
    stream *at = stream_of(s);
    d9d_paper_work *w;
    double seconds;

    if (at == NULL) /* beside the computation, where a chip has nothing beside it */
        return D9D_OK;
    w = &at->paper->tally.work[kind];
    seconds = seconds_of(at->paper->chip, kind, t, flops, bytes);
    at->now += seconds;
    at->paper->launches++;
    w->calls++;
    w->flops += flops;
    w->bytes += bytes;
    w->seconds += seconds;
    return D9D_OK;
}

d9d_status d9d_paper_launch(d9d_stream s, d9d_dtype t, double flops, double bytes)
{
    return d9di_paper_charge(s, D9D_PAPER_MEMORY, t, flops, bytes);
}

int64_t d9d_paper_launches(const d9d_paper *p)
{
    return p->launches;
}

d9d_status d9di_paper_borrow(d9d_stream s, int64_t bytes)
{
    d9d_paper *p = stream_of(s)->paper;
    void *room;

    if (bytes == 0)
        return D9D_OK;
    D9D_TRY(p->owner.take(p->owner.self, (uint64_t)bytes, &room));
    p->owner.give(p->owner.self, room, (uint64_t)bytes);
    if ((uint64_t)bytes > p->tally.scratch)
        p->tally.scratch = (uint64_t)bytes;
    return D9D_OK;
}

static d9d_status talk_find(d9d_paper *p, const char *group, const char *verb, d9d_paper_link link,
                            d9d_paper_talk **out)
{
    d9d_paper_talk t = {.verb = verb, .link = link};

    for (size_t i = 0; i < p->talk.len; i++) {
        *out = &p->talk.data[i];
        if ((*out)->link == link && strcmp((*out)->verb, verb) == 0 &&
            strcmp((*out)->group, group) == 0)
            return D9D_OK;
    }
    (void)snprintf(t.group, sizeof(t.group), "%.47s", group);
    D9D_TRY(D9D_VEC_PUSH(&p->talk, t));
    p->tally.talk = p->talk.data;
    p->tally.n_talk = p->talk.len;
    *out = &p->talk.data[p->talk.len - 1];
    return D9D_OK;
}

d9d_status d9d_paper_say(d9d_stream s, const char *group, const char *verb, d9d_paper_link link,
                         double bytes)
{
    stream *at = stream_of(s);
    const d9d_paper_chip *c = at->paper->chip;
    const double seconds = c->link[link].latency_s + bytes / c->link[link].rate;
    d9d_paper_talk *t = NULL;

    D9D_TRY(talk_find(at->paper, group, verb, link, &t));
    at->now += seconds;
    t->calls++;
    t->bytes += bytes;
    t->seconds += seconds;
    return D9D_OK;
}

d9d_status d9di_paper_first(d9d_stream s, const d9d_gemm *g, bool *out)
{
    d9d_paper *p = stream_of(s)->paper;

    *out = true;
    for (size_t i = 0; i < p->shapes.len && *out; i++) {
        const shape *k = &p->shapes.data[i];

        *out = k->m != g->m || k->n != g->n || k->k != g->k || k->t != g->t || k->ct != g->ct ||
               k->trans_a != g->trans_a || k->trans_b != g->trans_b || k->adds != (g->beta != 0);
    }
    return !*out ? D9D_OK
                 : D9D_VEC_PUSH(&p->shapes, ((shape){g->m, g->n, g->k, g->t, g->ct, g->trans_a,
                                                     g->trans_b, g->beta != 0}));
}

/* --- choices of experts ---------------------------------------------------------------------- */

void d9di_paper_note(d9d_stream s, const int32_t *expert, double choices)
{
    stream_of(s)->paper->noted = expert;
    stream_of(s)->paper->choices = choices;
}

double d9di_paper_choices(d9d_stream s, const int32_t *expert, double otherwise)
{
    d9d_paper *p = stream_of(s)->paper;
    const bool known = p->noted == expert && expert != NULL;

    p->noted = NULL;
    return known ? p->choices : otherwise;
}
