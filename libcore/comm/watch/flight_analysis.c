/* flight_analysis.c - who keeps whom waiting.  See d9d/comm/flight.h.
 *
 * Call n of a group is looked for in the rings of all of the group's ranks.  What they hold either
 * differs, or some have not come.  Those who have not come and do not wait themselves are to blame;
 * if all of them wait, one of them is asked next, until a rank is asked a second time.
 */
#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "comm/mesh_axes.h"
#include "comm/watch/flight_ring.h"

enum { NAMED = 8 }; /* ranks of a list that are named */

/* Where an argument stands: the call of a rank, and what its group's ranks have to it. */
struct question {
    const d9d_flight *f;
    int rank;
    const d9di_flight_call *call;
    d9di_which group;
    int64_t place; /* which of the groups over these axes has the rank */
};

static struct question ask(const d9d_flight *f, int rank, const d9di_flight_call *x)
{
    const d9di_which group = d9di_record_which(&f->record[rank], x);

    return (struct question){f, rank, x, group,
                             d9di_axes_place(&f->degrees, group.axes, rank).group};
}

static bool is_member(const struct question *q, int rank)
{
    return d9di_axes_place(&q->f->degrees, q->group.axes, rank).group == q->place;
}

/* Names of the ranks whose mark is `want`, and how many. */
static d9d_status list_ranks(const char *mark, int n, char want, d9d_buf *out)
{
    int many = 0;

    for (int r = 0; r < n; r++)
        many += mark[r] == want;
    D9D_TRY(d9d_buf_printf(out, many == 1 ? "rank" : "ranks"));
    for (int r = 0, named = 0; r < n && named < NAMED; r++)
        if (mark[r] == want) {
            D9D_TRY(d9d_buf_printf(out, " %d", r));
            named++;
        }
    return many > NAMED ? d9d_buf_printf(out, " and %d more", many - NAMED) : D9D_OK;
}

static d9d_status put_place(const d9d_flight *f, int rank, d9d_buf *out)
{
    const d9di_flight_record *r = &f->record[rank];
    char text[128];

    return d9d_buf_printf(out, " (%s%s%s)", r->known ? r->head.node : "", r->known ? ", " : "",
                          d9di_axes_text(&f->degrees, rank, text, sizeof(text)));
}

static d9d_status put_call(const d9di_flight_record *r, const d9di_flight_call *x, d9d_buf *out)
{
    char group[128];

    D9D_TRY(d9d_buf_printf(out, "%s: ", d9di_call_group(r, x, group, sizeof(group))));
    return d9di_call_text(x, out);
}

/* ", which is stopped; its last call: tp: all_reduce 4 of x, float32 [1], done 3.1 s ago" */
static d9d_status put_culprit(const d9d_flight *f, int rank, d9d_buf *out)
{
    static const char *const steps[D9DI_STEPS] = {"waiting for", "queued", "done", "failed"};
    const d9di_flight_record *r = &f->record[rank];
    const d9di_flight_call *x = r->n > 0 ? &r->call[r->n - 1] : NULL;

    D9D_TRY(put_place(f, rank, out));
    D9D_TRY(d9d_buf_printf(out, ", which %s", d9di_life_text(r->life)));
    if ((r->life == D9DI_LIFE_SILENT || r->life == D9DI_LIFE_GONE) && f->now - r->sign > 100000000)
        D9D_TRY(d9d_buf_printf(out, " since %.1f s", (double)(f->now - r->sign) / 1e9));
    if (x == NULL)
        return r->known ? d9d_buf_printf(out, "; it has made no call") : D9D_OK;
    D9D_TRY(d9d_buf_printf(out, "; its last call: "));
    D9D_TRY(put_call(r, x, out));
    return d9d_buf_printf(out, ", %s %.1f s%s", steps[x->step],
                          d9di_since(f, r, x->end > 0 ? x->end : x->begin),
                          x->end > 0 ? " ago" : "");
}

/* --- a call that differs ---------------------------------------------------------------------- */

static bool same_call(const d9di_flight_call *a, const d9di_flight_call *b)
{
    return a->verb == b->verb && a->type == b->type && a->op == b->op && a->root == b->root &&
           (a->n == b->n || a->verb == D9DI_ALL_TO_ALL) && strcmp(a->what, b->what) == 0;
}

/* What the ranks of a group have to one of its calls. */
typedef struct answers {
    int *rank;                  /* [n], of the group */
    const d9di_flight_call **x; /* [size], by rank: NULL where it is not known */
    int n;
} answers;

static void answers_release(answers *a)
{
    free(a->rank);
    free(a->x);
}

static d9d_status answers_make(const struct question *q, answers *a)
{
    const size_t size = (size_t)q->f->size;

    *a = (answers){.rank = calloc(size, sizeof(*a->rank)), .x = calloc(size, sizeof(*a->x))};
    if (a->rank == NULL || a->x == NULL) {
        answers_release(a);
        return D9D_FAIL(D9D_ENOMEM, "flight: out of memory");
    }
    for (int r = 0; r < q->f->size; r++)
        if (is_member(q, r))
            a->rank[a->n++] = r;
    return D9D_OK;
}

/* To call `seq`: the number of ranks whose call is like the first one's, and how many are known at
 * all. */
static int collect(const struct question *q, int64_t seq, const answers *a, int *known)
{
    const d9di_flight_call *first = NULL;
    int like = 0;

    *known = 0;
    for (int i = 0; i < a->n; i++) {
        const int r = a->rank[i];

        a->x[r] = d9di_record_find(&q->f->record[r], q->group, seq);
        if (a->x[r] == NULL)
            continue;
        first = first == NULL ? a->x[r] : first;
        *known += 1;
        like += same_call(first, a->x[r]);
    }
    return like;
}

/* Of the calls in x, the one that most ranks make is right. */
static d9d_status say_mismatch(const struct question *q, const d9di_flight_call **x, char *mark,
                               d9d_flight_verdict *v, d9d_buf *out)
{
    const d9d_flight *f = q->f;
    const d9di_flight_call *right = x[q->rank]; /* known: it asks */
    int most = 0;
    char group[128];

    assert(right != NULL);
    for (int r = 0; r < f->size; r++) {
        int like = 0;

        for (int s = 0; s < f->size && x[r] != NULL; s++)
            like += x[s] != NULL && same_call(x[r], x[s]);
        right = like > most ? x[r] : right;
        most = like > most ? like : most;
    }
    for (int r = 0; r < f->size; r++) {
        mark[r] = x[r] == NULL ? 0 : same_call(x[r], right) ? 'r' : 'w';
        if (mark[r] == 'w')
            f->culprit[v->culprits++] = r;
    }
    v->fault = D9D_FLIGHT_MISMATCH;
    D9D_TRY(d9d_buf_printf(
        out, "%s: call %lld differs: ", d9di_axes_name(q->group.axes, group, sizeof(group)),
        (long long)right->seq));
    D9D_TRY(d9d_buf_printf(out, "rank %d", f->culprit[0]));
    D9D_TRY(put_place(f, f->culprit[0], out));
    D9D_TRY(d9d_buf_printf(out, " makes "));
    D9D_TRY(d9di_call_text(x[f->culprit[0]], out));
    if (v->culprits > 1)
        D9D_TRY(d9d_buf_printf(out, " (and %d more differ)", v->culprits - 1));
    D9D_TRY(d9d_buf_printf(out, "; "));
    D9D_TRY(list_ranks(mark, f->size, 'r', out));
    D9D_TRY(d9d_buf_printf(out, most == 1 ? " makes " : " make "));
    return d9di_call_text(right, out);
}

/* The first call of the group that differs, as far back as the rings reach. */
static d9d_status find_mismatch(const struct question *q, char *mark, d9d_flight_verdict *v,
                                d9d_buf *out)
{
    int64_t from = q->call->seq - D9DI_FLIGHT_CALLS;
    d9d_status st = D9D_OK;
    int known = 0;
    answers a;

    D9D_TRY(answers_make(q, &a));
    for (int64_t seq = from < 1 ? 1 : from; seq <= q->call->seq; seq++) {
        /* What this rank has no more is not looked for. */
        if (d9di_record_find(&q->f->record[q->rank], q->group, seq) == NULL ||
            collect(q, seq, &a, &known) == known)
            continue;
        st = say_mismatch(q, a.x, mark, v, out);
        break;
    }
    answers_release(&a);
    return st;
}

/* --- ranks that have not come --------------------------------------------------------------------
 */

static bool exchanges_with(const d9di_flight_call *x, int rank)
{
    for (int i = 0; i < D9DI_FLIGHT_PEERS; i++)
        if (x->peer[i] == rank + 1 || x->peer[i] == -(rank + 1))
            return true;
    return false;
}

static bool has_come(const struct question *q, int rank)
{
    const d9di_flight_record *r = &q->f->record[rank];

    if (!r->known)
        return false;
    if (q->call->verb == D9DI_EXCHANGE)
        return r->waits != NULL && r->waits->verb == D9DI_EXCHANGE &&
               exchanges_with(r->waits, q->rank);
    return d9di_record_seq(r, q->group) >= q->call->seq;
}

/* Marks the ranks of the call: 'm' is missing, 'w' has come and waits; returns how many miss. */
static int mark_missing(const struct question *q, char *mark)
{
    int missing = 0;

    memset(mark, 0, (size_t)q->f->size);
    for (int r = 0; r < q->f->size; r++) {
        if (r == q->rank ||
            (q->call->verb == D9DI_EXCHANGE ? exchanges_with(q->call, r) : is_member(q, r)))
            mark[r] = r == q->rank || has_come(q, r) ? 'w' : 'm';
        missing += mark[r] == 'm';
    }
    return missing;
}

/* Died or was stopped, while others went on; what a file says may be older than that. */
#define EARLIER_NS INT64_C(350000000)
static bool has_fallen(const d9d_flight *f, const d9di_flight_record *r)
{
    return r->known && (r->life == D9DI_LIFE_STOPPED ||
                        ((r->life == D9DI_LIFE_GONE || r->life == D9DI_LIFE_SILENT) &&
                         f->last - r->sign > EARLIER_NS + r->head.lag));
}

static bool waits_itself(const d9d_flight *f, const d9di_flight_record *r)
{
    return r->known && r->waits != NULL && !has_fallen(f, r) && r->life != D9DI_LIFE_LEFT &&
           r->life != D9DI_LIFE_FAILED;
}

/* "dp_shard: all_reduce 17 of loss, float64 [1]: ranks 0 1 wait since 30.0 s" */
static d9d_status say_waiting(const struct question *q, const char *mark, d9d_buf *out)
{
    const d9di_flight_record *r = &q->f->record[q->rank];
    int n = 0;

    D9D_TRY(put_call(r, q->call, out));
    D9D_TRY(d9d_buf_printf(out, ": "));
    D9D_TRY(list_ranks(mark, q->f->size, 'w', out));
    for (int i = 0; i < q->f->size; i++)
        n += mark[i] == 'w';
    return d9d_buf_printf(out, " wait%s since %.1f s", n == 1 ? "s" : "",
                          d9di_since(q->f, r, q->call->begin));
}

/* A job at work is seen in the middle of a call, too: then some have come a moment ago, and others
 * are about to. */
#define MOMENT_S 1.0

static bool is_moment(const d9d_flight *f, const d9d_flight_verdict *v)
{
    for (int i = 0; i < v->culprits; i++)
        if (f->record[f->culprit[i]].life != D9DI_LIFE_RUNS)
            return false;
    return v->waited_s < MOMENT_S;
}

/* Then nobody is to blame. */
static void excuse(const d9d_flight *f, d9d_flight_verdict *v)
{
    if (!is_moment(f, v))
        return;
    v->fault = D9D_FLIGHT_WELL;
    v->culprits = 0;
}

static d9d_status say_missing(const struct question *q, const char *mark, d9d_flight_verdict *v,
                              d9d_buf *out)
{
    const d9d_flight *f = q->f;

    v->fault = D9D_FLIGHT_MISSING;
    for (int r = 0; r < f->size; r++)
        if (mark[r] == 'm' && !waits_itself(f, &f->record[r]))
            f->culprit[v->culprits++] = r;
    D9D_TRY(say_waiting(q, mark, out));
    D9D_TRY(d9d_buf_printf(out, " for rank %d", f->culprit[0]));
    D9D_TRY(put_culprit(f, f->culprit[0], out));
    if (v->culprits > 1)
        D9D_TRY(d9d_buf_printf(out, "; %d more have not come", v->culprits - 1));
    excuse(f, v);
    return D9D_OK;
}

static d9d_status say_cycle(const struct question *q, const struct question *next, const char *mark,
                            d9d_flight_verdict *v, d9d_buf *out)
{
    v->fault = D9D_FLIGHT_CYCLE;
    q->f->culprit[v->culprits++] = q->rank < next->rank ? q->rank : next->rank;
    q->f->culprit[v->culprits++] = q->rank < next->rank ? next->rank : q->rank;
    D9D_TRY(say_waiting(q, mark, out));
    D9D_TRY(d9d_buf_printf(out, " for rank %d", next->rank));
    D9D_TRY(put_place(q->f, next->rank, out));
    D9D_TRY(d9d_buf_printf(out, ", which waits in "));
    D9D_TRY(put_call(&q->f->record[next->rank], next->call, out));
    excuse(q->f, v);
    return v->culprits > 0 ? d9d_buf_printf(out, ": they wait for each other") : D9D_OK;
}

/* --- a rank that fell silent though it had come ------------------------------------------------
 */

/* In a call, as of one whose others are no more. */
static bool has_failed_in_call(const d9di_flight_record *r)
{
    return r->life == D9DI_LIFE_FAILED && r->n > 0 && r->call[r->n - 1].step == D9DI_STEP_FAILED;
}

/* The one that failed by itself, else that fell first, else that failed in a call. */
static int find_lost(const d9d_flight *f)
{
    int fallen = -1, failed = -1;

    for (int r = 0; r < f->size; r++) {
        const d9di_flight_record *x = &f->record[r];

        if (has_failed_in_call(x))
            failed = failed < 0 ? r : failed;
        else if (!x->known || x->life == D9DI_LIFE_FAILED)
            return r;
        if (has_fallen(f, x) && (fallen < 0 || x->sign < f->record[fallen].sign))
            fallen = r;
    }
    return fallen >= 0 ? fallen : failed;
}

static d9d_status say_lost(const d9d_flight *f, int rank, d9d_flight_verdict *v, d9d_buf *out)
{
    v->fault = D9D_FLIGHT_LOST;
    f->culprit[v->culprits++] = rank;
    D9D_TRY(d9d_buf_printf(out, "nobody's call is missing; the first that fell silent is rank %d",
                           rank));
    return put_culprit(f, rank, out);
}

/* --- the argument
 * ---------------------------------------------------------------------------------- */

/* The rank that has waited longest. */
static int find_waiting(const d9d_flight *f, d9d_flight_verdict *v)
{
    double most = -1;
    int who = -1;

    for (int r = 0; r < f->size; r++) {
        const d9di_flight_record *x = &f->record[r];

        if (!waits_itself(f, x))
            continue;
        v->reporter = v->reporter < 0 ? r : v->reporter;
        if (d9di_since(f, x, x->waits->begin) > most) {
            most = d9di_since(f, x, x->waits->begin);
            who = r;
        }
    }
    v->waited_s = who < 0 ? 0 : most;
    return who;
}

/* A missing rank that waits elsewhere, or -1: one is to blame, or none is missing. */
static int next_of(const d9d_flight *f, const char *mark)
{
    int next = -1;

    for (int r = 0; r < f->size; r++) {
        if (mark[r] != 'm')
            continue;
        if (!waits_itself(f, &f->record[r]))
            return -1;
        next = next < 0 ? r : next;
    }
    return next;
}

static d9d_status say_stuck(const struct question *q, const char *mark, d9d_flight_verdict *v,
                            d9d_buf *out)
{
    const int lost = find_lost(q->f);

    if (lost >= 0)
        return say_lost(q->f, lost, v, out);
    v->fault = v->waited_s < MOMENT_S ? D9D_FLIGHT_WELL : D9D_FLIGHT_STUCK;
    D9D_TRY(say_waiting(q, mark, out));
    return d9d_buf_printf(out, "; all have come%s",
                          v->fault == D9D_FLIGHT_WELL ? " a moment ago"
                                                      : ": the network or a device stands still");
}

static d9d_status follow(const d9d_flight *f, int rank, char *asked, char *mark,
                         d9d_flight_verdict *v, d9d_buf *out)
{
    for (;;) {
        const struct question q = ask(f, rank, f->record[rank].waits);
        int missing, next;

        asked[rank] = 1;
        if (q.call->verb != D9DI_EXCHANGE)
            D9D_TRY(find_mismatch(&q, mark, v, out));
        if (v->fault != D9D_FLIGHT_WELL)
            return D9D_OK;
        missing = mark_missing(&q, mark);
        next = next_of(f, mark);
        if (missing == 0)
            return say_stuck(&q, mark, v, out);
        if (next < 0)
            return say_missing(&q, mark, v, out);
        if (asked[next]) {
            const struct question other = ask(f, next, f->record[next].waits);

            return say_cycle(&q, &other, mark, v, out);
        }
        rank = next;
    }
}

/* Where nobody waits: do the calls of any group differ? */
static d9d_status compare_all(const d9d_flight *f, char *mark, d9d_flight_verdict *v, d9d_buf *out)
{
    for (int r = 0; r < f->size; r++) {
        const d9di_flight_record *x = &f->record[r];

        for (int g = 0; x->known && g < x->head.groups && v->fault == D9D_FLIGHT_WELL; g++) {
            const int last = x->start[g + 1] - 1;

            /* The group's first rank asks for all of them. */
            if (last < x->start[g] ||
                d9di_axes_place(&f->degrees, x->head.group[g].axes, r).index != 0)
                continue;
            const struct question q = ask(f, r, &x->call[x->listed[last]]);

            D9D_TRY(find_mismatch(&q, mark, v, out));
        }
    }
    return D9D_OK;
}

static d9d_status look_back(const d9d_flight *f, char *mark, d9d_flight_verdict *v, d9d_buf *out)
{
    int lost;

    D9D_TRY(compare_all(f, mark, v, out));
    if (v->fault != D9D_FLIGHT_WELL)
        return D9D_OK;
    lost = find_lost(f);
    return lost >= 0 ? say_lost(f, lost, v, out) : d9d_buf_printf(out, "no rank waits for another");
}

d9d_status d9d_flight_judge(d9d_flight *f, d9d_flight_verdict *out, d9d_buf *sentence)
{
    d9d_flight_verdict v = {.culprit = f->culprit, .reporter = -1};
    const int first = find_waiting(f, &v);
    char *marks = calloc(2, (size_t)f->size);
    d9d_status st;

    if (marks == NULL)
        return D9D_FAIL(D9D_ENOMEM, "flight: out of memory");
    if (first >= 0)
        st = follow(f, first, marks, marks + f->size, &v, sentence);
    else
        st = look_back(f, marks, &v, sentence);
    free(marks);
    if (st == D9D_OK)
        *out = v;
    return st;
}
