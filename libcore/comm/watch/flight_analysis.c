/* flight_analysis.c - the diagnosis: which ranks keep the others waiting.  See d9d/comm/flight.h.
 *
 * Look up call n of a group in the rings of all of the group's ranks.  Either the records differ (a
 * mismatch), or some ranks have not made the call.  Missing ranks that do not wait themselves are
 * the culprits.  If all missing ranks wait elsewhere, follow one of them, until a rank is met twice
 * (a cycle).
 */
#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "comm/mesh_axes.h"
#include "comm/watch/flight_ring.h"

enum { MAX_NAMED_RANKS = 8 }; /* the most ranks that a list names */

/* The state of the analysis: a rank's pending call, and its group. */
struct query {
    const d9d_flight *f;
    int rank;
    const d9di_flight_call *call;
    d9di_flight_group_id group;
    int64_t place; /* which of the groups over these axes the rank is in */
};

static struct query make_query(const d9d_flight *f, int rank, const d9di_flight_call *x)
{
    const d9di_flight_group_id group = d9di_flight_record_group_id(&f->record[rank], x);

    return (struct query){f, rank, x, group,
                          d9di_mesh_axes_place(&f->degrees, group.axes, rank).group};
}

static bool is_member(const struct query *q, int rank)
{
    return d9di_mesh_axes_place(&q->f->degrees, q->group.axes, rank).group == q->place;
}

/* Append the ranks whose mark is `want`, and their number. */
static d9d_status append_ranks(const char *mark, int n, char want, d9d_buf *out)
{
    int many = 0;

    for (int r = 0; r < n; r++)
        many += mark[r] == want;
    D9D_TRY(d9d_buf_printf(out, many == 1 ? "rank" : "ranks"));
    for (int r = 0, named = 0; r < n && named < MAX_NAMED_RANKS; r++)
        if (mark[r] == want) {
            D9D_TRY(d9d_buf_printf(out, " %d", r));
            named++;
        }
    return many > MAX_NAMED_RANKS ? d9d_buf_printf(out, " and %d more", many - MAX_NAMED_RANKS)
                                  : D9D_OK;
}

static d9d_status append_place(const d9d_flight *f, int rank, d9d_buf *out)
{
    const d9di_flight_record *r = &f->record[rank];
    char text[128];

    return d9d_buf_printf(out, " (%s%s%s)", r->known ? r->header.node : "", r->known ? ", " : "",
                          d9di_mesh_axes_text(&f->degrees, rank, text, sizeof(text)));
}

static d9d_status append_call(const d9di_flight_record *r, const d9di_flight_call *x, d9d_buf *out)
{
    char group[128];

    D9D_TRY(d9d_buf_printf(out, "%s: ", d9di_flight_call_group(r, x, group, sizeof(group))));
    return d9di_flight_call_text(x, out);
}

/* ", which is stopped; its last call: tp: all_reduce 4 of x, float32 [1], done 3.1 s ago" */
static d9d_status append_culprit(const d9d_flight *f, int rank, d9d_buf *out)
{
    static const char *const steps[D9DI_FLIGHT_CALL_STATE_COUNT] = {"waiting for", "queued", "done",
                                                                    "failed"};
    const d9di_flight_record *r = &f->record[rank];
    const d9di_flight_call *x = r->n > 0 ? &r->call[r->n - 1] : NULL;

    D9D_TRY(append_place(f, rank, out));
    D9D_TRY(d9d_buf_printf(out, ", which %s", d9di_flight_liveness_text(r->liveness)));
    if ((r->liveness == D9DI_LIVENESS_SILENT || r->liveness == D9DI_LIVENESS_GONE) &&
        f->now - r->last_seen > 100000000)
        D9D_TRY(d9d_buf_printf(out, " since %.1f s", (double)(f->now - r->last_seen) / 1e9));
    if (x == NULL)
        return r->known ? d9d_buf_printf(out, "; it has made no call") : D9D_OK;
    D9D_TRY(d9d_buf_printf(out, "; its last call: "));
    D9D_TRY(append_call(r, x, out));
    return d9d_buf_printf(out, ", %s %.1f s%s", steps[x->state],
                          d9di_flight_seconds_since(f, r, x->end > 0 ? x->end : x->begin),
                          x->end > 0 ? " ago" : "");
}

/* --- mismatches ---------------------------------------------------------------------- */

static bool same_call(const d9di_flight_call *a, const d9di_flight_call *b)
{
    return a->coll == b->coll && a->dtype == b->dtype && a->op == b->op && a->root == b->root &&
           (a->n == b->n || a->coll == D9DI_COLL_ALL_TO_ALL) && strcmp(a->label, b->label) == 0;
}

/* The records of one call on all ranks of a group. */
typedef struct group_calls {
    int *rank;                  /* [n], world ranks of the group */
    const d9di_flight_call **x; /* [size], by world rank; NULL: unknown */
    int n;
} group_calls;

static void group_calls_release(group_calls *a)
{
    free(a->rank);
    free(a->x);
}

static d9d_status group_calls_init(const struct query *q, group_calls *a)
{
    const size_t size = (size_t)q->f->size;

    *a = (group_calls){.rank = calloc(size, sizeof(*a->rank)), .x = calloc(size, sizeof(*a->x))};
    if (a->rank == NULL || a->x == NULL) {
        group_calls_release(a);
        return D9D_FAIL(D9D_ENOMEM, "flight: out of memory");
    }
    for (int r = 0; r < q->f->size; r++)
        if (is_member(q, r))
            a->rank[a->n++] = r;
    return D9D_OK;
}

/* Look up call `seq`: returns how many ranks' calls equal the first one's; *known is how many have
 * a record. */
static int group_calls_find(const struct query *q, int64_t seq, const group_calls *a, int *known)
{
    const d9di_flight_call *first = NULL;
    int like = 0;

    *known = 0;
    for (int i = 0; i < a->n; i++) {
        const int r = a->rank[i];

        a->x[r] = d9di_flight_record_find_call(&q->f->record[r], q->group, seq);
        if (a->x[r] == NULL)
            continue;
        first = first == NULL ? a->x[r] : first;
        *known += 1;
        like += same_call(first, a->x[r]);
    }
    return like;
}

/* Report a mismatch: the call that most ranks make counts as right. */
static d9d_status report_mismatch(const struct query *q, const d9di_flight_call **x, char *mark,
                                  d9d_flight_diagnosis *v, d9d_buf *out)
{
    const d9d_flight *f = q->f;
    const d9di_flight_call *right = x[q->rank]; /* known: the rank that the query is about */
    int n_max = 0;
    char group[128];

    assert(right != NULL);
    for (int r = 0; r < f->size; r++) {
        int like = 0;

        for (int s = 0; s < f->size && x[r] != NULL; s++)
            like += x[s] != NULL && same_call(x[r], x[s]);
        right = like > n_max ? x[r] : right;
        n_max = like > n_max ? like : n_max;
    }
    for (int r = 0; r < f->size; r++) {
        mark[r] = x[r] == NULL ? 0 : same_call(x[r], right) ? 'r' : 'w';
        if (mark[r] == 'w')
            f->culprit[v->n_culprits++] = r;
    }
    v->fault = D9D_FLIGHT_MISMATCH;
    D9D_TRY(d9d_buf_printf(
        out, "%s: call %lld differs: ", d9di_mesh_axes_name(q->group.axes, group, sizeof(group)),
        (long long)right->seq));
    D9D_TRY(d9d_buf_printf(out, "rank %d", f->culprit[0]));
    D9D_TRY(append_place(f, f->culprit[0], out));
    D9D_TRY(d9d_buf_printf(out, " makes "));
    D9D_TRY(d9di_flight_call_text(x[f->culprit[0]], out));
    if (v->n_culprits > 1)
        D9D_TRY(d9d_buf_printf(out, " (and %d more differ)", v->n_culprits - 1));
    D9D_TRY(d9d_buf_printf(out, "; "));
    D9D_TRY(append_ranks(mark, f->size, 'r', out));
    D9D_TRY(d9d_buf_printf(out, n_max == 1 ? " makes " : " make "));
    return d9di_flight_call_text(right, out);
}

/* Find the first call of the group that differs, as far back as the rings reach. */
static d9d_status find_mismatch(const struct query *q, char *mark, d9d_flight_diagnosis *v,
                                d9d_buf *out)
{
    int64_t from = q->call->seq - D9DI_FLIGHT_CALLS;
    d9d_status st = D9D_OK;
    int known = 0;
    group_calls a;

    D9D_TRY(group_calls_init(q, &a));
    for (int64_t seq = from < 1 ? 1 : from; seq <= q->call->seq; seq++) {
        /* Skip calls that this rank's ring no longer has. */
        if (d9di_flight_record_find_call(&q->f->record[q->rank], q->group, seq) == NULL ||
            group_calls_find(q, seq, &a, &known) == known)
            continue;
        st = report_mismatch(q, a.x, mark, v, out);
        break;
    }
    group_calls_release(&a);
    return st;
}

/* --- missing ranks ------------------------------------------------------------------- */

static bool has_p2p_with(const d9di_flight_call *x, int rank)
{
    for (int i = 0; i < D9DI_FLIGHT_PEERS; i++)
        if (x->peer[i] == rank + 1 || x->peer[i] == -(rank + 1))
            return true;
    return false;
}

static bool has_arrived(const struct query *q, int rank)
{
    const d9di_flight_record *r = &q->f->record[rank];

    if (!r->known)
        return false;
    if (q->call->coll == D9DI_COLL_SEND_RECV)
        return r->waiting != NULL && r->waiting->coll == D9DI_COLL_SEND_RECV &&
               has_p2p_with(r->waiting, q->rank);
    return d9di_flight_record_group_seq(r, q->group) >= q->call->seq;
}

/* Mark the ranks of the call: 'm' is missing, 'w' has made the call and waits.  Returns how many
 * are missing. */
static int mark_missing(const struct query *q, char *mark)
{
    int missing = 0;

    memset(mark, 0, (size_t)q->f->size);
    for (int r = 0; r < q->f->size; r++) {
        if (r == q->rank ||
            (q->call->coll == D9DI_COLL_SEND_RECV ? has_p2p_with(q->call, r) : is_member(q, r)))
            mark[r] = r == q->rank || has_arrived(q, r) ? 'w' : 'm';
        missing += mark[r] == 'm';
    }
    return missing;
}

/* A rank is down if it is stopped, or if its last sign of life is this much older than that of any
 * rank.  Its file may lag by max_lag more. */
#define DOWN_NS INT64_C(350000000)
static bool is_down(const d9d_flight *f, const d9di_flight_record *r)
{
    return r->known &&
           (r->liveness == D9DI_LIVENESS_STOPPED ||
            ((r->liveness == D9DI_LIVENESS_GONE || r->liveness == D9DI_LIVENESS_SILENT) &&
             f->last_seen - r->last_seen > DOWN_NS + r->header.max_lag));
}

static bool is_waiting(const d9d_flight *f, const d9di_flight_record *r)
{
    return r->known && r->waiting != NULL && !is_down(f, r) &&
           r->liveness != D9DI_LIVENESS_CLOSED && r->liveness != D9DI_LIVENESS_FAILED;
}

/* "dp_shard: all_reduce 17 of loss, float64 [1]: ranks 0 1 wait since 30.0 s" */
static d9d_status report_waiting(const struct query *q, const char *mark, d9d_buf *out)
{
    const d9di_flight_record *r = &q->f->record[q->rank];
    int n = 0;

    D9D_TRY(append_call(r, q->call, out));
    D9D_TRY(d9d_buf_printf(out, ": "));
    D9D_TRY(append_ranks(mark, q->f->size, 'w', out));
    for (int i = 0; i < q->f->size; i++)
        n += mark[i] == 'w';
    return d9d_buf_printf(out, " wait%s since %.1f s", n == 1 ? "s" : "",
                          d9di_flight_seconds_since(q->f, r, q->call->begin));
}

/* A running job may be read in the middle of a call, when some ranks have just made it. */
#define TRANSIENT_S 1.0

static bool is_transient(const d9d_flight *f, const d9d_flight_diagnosis *v)
{
    for (int i = 0; i < v->n_culprits; i++)
        if (f->record[f->culprit[i]].liveness != D9DI_LIVENESS_RUNNING)
            return false;
    return v->waited_s < TRANSIENT_S;
}

/* Clear a diagnosis that is younger than that. */
static void clear_if_transient(const d9d_flight *f, d9d_flight_diagnosis *v)
{
    if (!is_transient(f, v))
        return;
    v->fault = D9D_FLIGHT_HEALTHY;
    v->n_culprits = 0;
}

static d9d_status report_missing(const struct query *q, const char *mark, d9d_flight_diagnosis *v,
                                 d9d_buf *out)
{
    const d9d_flight *f = q->f;

    v->fault = D9D_FLIGHT_MISSING;
    for (int r = 0; r < f->size; r++)
        if (mark[r] == 'm' && !is_waiting(f, &f->record[r]))
            f->culprit[v->n_culprits++] = r;
    D9D_TRY(report_waiting(q, mark, out));
    D9D_TRY(d9d_buf_printf(out, " for rank %d", f->culprit[0]));
    D9D_TRY(append_culprit(f, f->culprit[0], out));
    if (v->n_culprits > 1)
        D9D_TRY(d9d_buf_printf(out, "; %d more have not come", v->n_culprits - 1));
    clear_if_transient(f, v);
    return D9D_OK;
}

static d9d_status report_cycle(const struct query *q, const struct query *next, const char *mark,
                               d9d_flight_diagnosis *v, d9d_buf *out)
{
    v->fault = D9D_FLIGHT_CYCLE;
    q->f->culprit[v->n_culprits++] = q->rank < next->rank ? q->rank : next->rank;
    q->f->culprit[v->n_culprits++] = q->rank < next->rank ? next->rank : q->rank;
    D9D_TRY(report_waiting(q, mark, out));
    D9D_TRY(d9d_buf_printf(out, " for rank %d", next->rank));
    D9D_TRY(append_place(q->f, next->rank, out));
    D9D_TRY(d9d_buf_printf(out, ", which waits in "));
    D9D_TRY(append_call(&q->f->record[next->rank], next->call, out));
    clear_if_transient(q->f, v);
    return v->n_culprits > 0 ? d9d_buf_printf(out, ": they wait for each other") : D9D_OK;
}

/* --- lost ranks that nobody waits for ------------------------------------------------ */

/* Failed inside a call, as happens when its peers are gone. */
static bool has_failed_in_call(const d9di_flight_record *r)
{
    return r->liveness == D9DI_LIVENESS_FAILED && r->n > 0 &&
           r->call[r->n - 1].state == D9DI_FLIGHT_CALL_FAILED;
}

/* The rank that failed by itself; else the first that died or was stopped; else one that failed in
 * a call. */
static int find_lost(const d9d_flight *f)
{
    int fallen = -1, failed = -1;

    for (int r = 0; r < f->size; r++) {
        const d9di_flight_record *x = &f->record[r];

        if (has_failed_in_call(x))
            failed = failed < 0 ? r : failed;
        else if (!x->known || x->liveness == D9DI_LIVENESS_FAILED)
            return r;
        if (is_down(f, x) && (fallen < 0 || x->last_seen < f->record[fallen].last_seen))
            fallen = r;
    }
    return fallen >= 0 ? fallen : failed;
}

static d9d_status report_lost(const d9d_flight *f, int rank, d9d_flight_diagnosis *v, d9d_buf *out)
{
    v->fault = D9D_FLIGHT_LOST;
    f->culprit[v->n_culprits++] = rank;
    D9D_TRY(d9d_buf_printf(out, "nobody's call is missing; the first that fell silent is rank %d",
                           rank));
    return append_culprit(f, rank, out);
}

/* --- the analysis -------------------------------------------------------------------- */

/* The rank whose pending call is oldest. */
static int find_waiting(const d9d_flight *f, d9d_flight_diagnosis *v)
{
    double max_wait = -1;
    int who = -1;

    for (int r = 0; r < f->size; r++) {
        const d9di_flight_record *x = &f->record[r];

        if (!is_waiting(f, x))
            continue;
        v->reporter = v->reporter < 0 ? r : v->reporter;
        if (d9di_flight_seconds_since(f, x, x->waiting->begin) > max_wait) {
            max_wait = d9di_flight_seconds_since(f, x, x->waiting->begin);
            who = r;
        }
    }
    v->waited_s = who < 0 ? 0 : max_wait;
    return who;
}

/* A missing rank that waits in another group; -1 if some missing rank does not wait, or none is
 * missing. */
static int next_waiting(const d9d_flight *f, const char *mark)
{
    int next = -1;

    for (int r = 0; r < f->size; r++) {
        if (mark[r] != 'm')
            continue;
        if (!is_waiting(f, &f->record[r]))
            return -1;
        next = next < 0 ? r : next;
    }
    return next;
}

static d9d_status report_stuck(const struct query *q, const char *mark, d9d_flight_diagnosis *v,
                               d9d_buf *out)
{
    const int lost = find_lost(q->f);

    if (lost >= 0)
        return report_lost(q->f, lost, v, out);
    v->fault = v->waited_s < TRANSIENT_S ? D9D_FLIGHT_HEALTHY : D9D_FLIGHT_STUCK;
    D9D_TRY(report_waiting(q, mark, out));
    return d9d_buf_printf(out, "; all have come%s",
                          v->fault == D9D_FLIGHT_HEALTHY
                              ? " a moment ago"
                              : ": the network or a device stands still");
}

static d9d_status follow_chain(const d9d_flight *f, int rank, char *visited, char *mark,
                               d9d_flight_diagnosis *v, d9d_buf *out)
{
    for (;;) {
        const struct query q = make_query(f, rank, f->record[rank].waiting);
        int missing, next;

        visited[rank] = 1;
        if (q.call->coll != D9DI_COLL_SEND_RECV)
            D9D_TRY(find_mismatch(&q, mark, v, out));
        if (v->fault != D9D_FLIGHT_HEALTHY)
            return D9D_OK;
        missing = mark_missing(&q, mark);
        next = next_waiting(f, mark);
        if (missing == 0)
            return report_stuck(&q, mark, v, out);
        if (next < 0)
            return report_missing(&q, mark, v, out);
        if (visited[next]) {
            const struct query other = make_query(f, next, f->record[next].waiting);

            return report_cycle(&q, &other, mark, v, out);
        }
        rank = next;
    }
}

/* If no rank waits: find a mismatch in any group. */
static d9d_status find_any_mismatch(const d9d_flight *f, char *mark, d9d_flight_diagnosis *v,
                                    d9d_buf *out)
{
    for (int r = 0; r < f->size; r++) {
        const d9di_flight_record *x = &f->record[r];

        for (int g = 0; x->known && g < x->header.groups && v->fault == D9D_FLIGHT_HEALTHY; g++) {
            const int last = x->group_start[g + 1] - 1;

            /* Query each group once, by its first rank. */
            if (last < x->group_start[g] ||
                d9di_mesh_axes_place(&f->degrees, x->header.group[g].axes, r).index != 0)
                continue;
            const struct query q = make_query(f, r, &x->call[x->by_group[last]]);

            D9D_TRY(find_mismatch(&q, mark, v, out));
        }
    }
    return D9D_OK;
}

static d9d_status diagnose_idle(const d9d_flight *f, char *mark, d9d_flight_diagnosis *v,
                                d9d_buf *out)
{
    int lost;

    D9D_TRY(find_any_mismatch(f, mark, v, out));
    if (v->fault != D9D_FLIGHT_HEALTHY)
        return D9D_OK;
    lost = find_lost(f);
    return lost >= 0 ? report_lost(f, lost, v, out)
                     : d9d_buf_printf(out, "no rank waits for another");
}

d9d_status d9d_flight_diagnose(d9d_flight *f, d9d_flight_diagnosis *out, d9d_buf *sentence)
{
    d9d_flight_diagnosis v = {.culprit = f->culprit, .reporter = -1};
    const int first = find_waiting(f, &v);
    const size_t ranks = f->size > 0 ? (size_t)f->size : 0;
    char *marks = calloc(2, ranks + 1); /* of each rank, for two searches */
    d9d_status st;

    if (marks == NULL)
        return D9D_FAIL(D9D_ENOMEM, "flight: out of memory");
    if (first >= 0)
        st = follow_chain(f, first, marks, marks + ranks, &v, sentence);
    else
        st = diagnose_idle(f, marks, &v, sentence);
    free(marks);
    if (st == D9D_OK)
        *out = v;
    return st;
}
