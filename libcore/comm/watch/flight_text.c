/* flight_text.c - the rings of a job as a table and as JSON.  See d9d/comm/flight.h. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "comm/mesh_axes.h"
#include "comm/watch/flight_ring.h"
#include "d9d/base/json.h"

static const char *const call_state_names[D9DI_FLIGHT_CALL_STATE_COUNT] = {"waits", "queued",
                                                                           "done", "failed"};
static const char *const fault_names[] = {
    [D9D_FLIGHT_HEALTHY] = "none",    [D9D_FLIGHT_MISMATCH] = "mismatch",
    [D9D_FLIGHT_MISSING] = "missing", [D9D_FLIGHT_CYCLE] = "cycle",
    [D9D_FLIGHT_LOST] = "lost",       [D9D_FLIGHT_STUCK] = "stuck",
};

static const d9di_flight_call *last_call(const d9di_flight_record *r)
{
    return r->waiting != NULL ? r->waiting : r->n > 0 ? &r->call[r->n - 1] : NULL;
}

static d9d_status append_rank(const d9d_flight *f, int rank, d9d_buf *out)
{
    const d9di_flight_record *r = &f->record[rank];
    const d9di_flight_call *x = last_call(r);
    char where[128], group[128];

    D9D_TRY(d9d_buf_printf(out, "rank %d (%s%s%s) %s", rank, r->known ? r->header.node : "",
                           r->known ? ", " : "",
                           d9di_mesh_axes_text(&f->degrees, rank, where, sizeof(where)),
                           d9di_flight_liveness_text(r->liveness)));
    if (x == NULL)
        return d9d_buf_printf(out, "\n");
    D9D_TRY(d9d_buf_printf(out, x->end > 0 ? "; %s %.1f s ago: %s: " : "; %s since %.1f s: %s: ",
                           call_state_names[x->state],
                           d9di_flight_seconds_since(f, r, x->end > 0 ? x->end : x->begin),
                           d9di_flight_call_group(r, x, group, sizeof(group))));
    D9D_TRY(d9di_flight_call_text(x, out));
    return d9d_buf_printf(out, "\n");
}

d9d_status d9d_flight_text(d9d_flight *f, d9d_buf *out)
{
    d9d_flight_diagnosis v;

    /* What the watchdog logged while the job hung comes before what the rings show now. */
    for (int r = 0; r < f->size; r++)
        if (f->record[r].known && f->record[r].header.abort_message[0] != '\0')
            D9D_TRY(d9d_buf_printf(out, "rank %d's watchdog: %s\n\n", r,
                                   f->record[r].header.abort_message));
    D9D_TRY(d9d_flight_diagnose(f, &v, out));
    D9D_TRY(d9d_buf_printf(out, "\n\n"));
    for (int r = 0; r < f->size; r++)
        D9D_TRY(append_rank(f, r, out));
    return D9D_OK;
}

/* --- JSON ---------------------------------------------------------------------------------- */

static json_t *call_json(const d9d_flight *f, const d9di_flight_record *r,
                         const d9di_flight_call *x)
{
    char group[128];
    json_t *v =
        json_pack("{s:I, s:o, s:I, s:s, s:s, s:I, s:o, s:s, s:f}", "number", (json_int_t)x->number,
                  "group", d9d_json_str(d9di_flight_call_group(r, x, group, sizeof(group))), "seq",
                  (json_int_t)x->seq, "call", d9di_comm_coll_name((d9di_comm_coll)x->coll), "dtype",
                  d9d_dtype_name((d9d_dtype)x->dtype), "count", (json_int_t)x->n, "label",
                  d9d_json_str(x->label), "state", call_state_names[x->state], "began_s_ago",
                  d9di_flight_seconds_since(f, r, x->begin));

    d9d_json_set(&v, "took_ms",
                 x->end > 0 ? json_real((double)(x->end - x->begin) / 1e6) : json_null());
    return v;
}

static json_t *rank_json(const d9d_flight *f, int rank, int calls)
{
    const d9di_flight_record *r = &f->record[rank];
    json_t *list = json_array(), *v;
    char where[128];

    for (int i = r->n > calls ? r->n - calls : 0; i < r->n; i++)
        d9d_json_add(&list, call_json(f, r, &r->call[i]));
    v = json_pack("{s:i, s:s, s:s, s:o, s:o}", "rank", rank, "where",
                  d9di_mesh_axes_text(&f->degrees, rank, where, sizeof(where)), "process",
                  d9di_flight_liveness_text(r->liveness), "node",
                  d9d_json_str(r->known ? r->header.node : ""), "calls", list);
    d9d_json_set(&v, "seen_s_ago",
                 r->known ? json_real((double)(f->now - r->last_seen) / 1e9) : json_null());
    d9d_json_set(&v, "message",
                 d9d_json_str(r->header.abort_message[0] != '\0' ? r->header.abort_message : NULL));
    return v;
}

d9d_status d9d_flight_json(d9d_flight *f, int calls, json_t **out)
{
    json_t *ranks, *culprits, *v;
    d9d_flight_diagnosis diagnosis;
    d9d_buf sentence = {0};
    d9d_status st;

    D9D_TRY_OR(st, d9d_flight_diagnose(f, &diagnosis, &sentence), out);
    ranks = json_array();
    culprits = json_array();
    for (int i = 0; i < diagnosis.n_culprits; i++)
        d9d_json_add(&culprits, json_integer(diagnosis.culprit[i]));
    for (int r = 0; r < f->size; r++)
        d9d_json_add(&ranks, rank_json(f, r, calls));
    v = json_pack("{s:s, s:s, s:o, s:f, s:o, s:o}", "schema", "d9d.flight.v1", "fault",
                  fault_names[diagnosis.fault], "diagnosis", d9d_json_str(sentence.data),
                  "waited_s", diagnosis.waited_s, "culprits", culprits, "ranks", ranks);
    if (v == NULL)
        st = D9D_FAIL(D9D_ENOMEM, "flight: no memory for JSON");
    else
        *out = v;
out:
    d9d_buf_release(&sentence);
    return st;
}
