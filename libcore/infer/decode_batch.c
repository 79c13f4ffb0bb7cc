/* decode_batch.c - see infer/decode_batch.h. */
#include "infer/decode_batch.h"

#include <stdlib.h>

enum { CHUNK = 2048 }; /* tokens of a prompt that are computed at once */

d9d_status d9di_answers_create(int64_t n, d9di_answers *a)
{
    a->n = n;
    a->rows = calloc((size_t)n, sizeof(*a->rows));
    a->pieces = calloc((size_t)n, sizeof(*a->pieces));
    if (a->rows == NULL || a->pieces == NULL)
        return D9D_FAIL(D9D_ENOMEM, "generate: %lld rows", (long long)n);
    for (int64_t i = 0; i < n; i++)
        a->rows[i].k = -1;
    return D9D_OK;
}

void d9di_answers_release(d9di_answers *a)
{
    for (int64_t i = 0; a->rows != NULL && i < a->n; i++)
        D9D_VEC_RELEASE(&a->rows[i].ids);
    free(a->rows);
    free(a->pieces);
    D9D_VEC_RELEASE(&a->stops);
    d9di_choose_release(&a->choose);
}

bool d9di_answers_busy(const d9di_answers *a)
{
    bool busy = a->next < a->asked->n || a->under_way > 0;

    for (int64_t i = 0; i < a->n; i++)
        busy = busy || a->rows[i].k >= 0;
    return busy;
}

static int64_t length_of(const d9di_answer *row)
{
    return (int64_t)row->ids.len;
}

/* --- places --------------------------------------------------------------------------------------
 */

static d9d_status row_begin(d9di_answers *a, d9di_answer *row)
{
    row->ids.len = 0;
    D9D_TRY(d9di_asked_get(a->asked, a->next, &row->ids, &row->of));
    row->k = a->next;
    row->prompt = length_of(row);
    row->seen = 0;
    row->most = row->prompt + a->max_new;
    if (row->most > a->positions)
        row->most = a->positions;
    row->finish = row->prompt == 0 ? "skipped" : row->prompt >= row->most ? "length" : NULL;
    a->next += a->step;
    return D9D_OK;
}

static d9d_status row_end(d9di_answer *row, d9di_answer_fn *done, void *arg)
{
    D9D_TRY(done(arg, row));
    row->k = -1;
    return D9D_OK;
}

static d9d_status places_fill(d9di_answers *a, d9di_answer_fn *done, void *arg)
{
    for (int64_t i = 0; i < a->n; i++)
        while (a->rows[i].k < 0 && a->next < a->asked->n) {
            D9D_TRY(row_begin(a, &a->rows[i]));
            if (a->rows[i].finish != NULL)
                D9D_TRY(row_end(&a->rows[i], done, arg));
        }
    return D9D_OK;
}

/* --- a step
 * --------------------------------------------------------------------------------------- */

static d9di_generation_chunk piece_of(const d9di_answers *a, int64_t i)
{
    const d9di_answer *row = &a->rows[i];
    const int64_t left = length_of(row) - row->seen;

    return (d9di_generation_chunk){i, row->seen, left < CHUNK ? left : CHUNK,
                                   row->ids.data + row->seen};
}

/* A prompt goes alone, so that what is computed for it does not depend on others. */
static size_t pieces_choose(d9di_answers *a)
{
    size_t n = 0;

    for (int64_t i = 0; i < a->n; i++) {
        if (a->rows[i].k < 0)
            continue;
        a->pieces[n] = piece_of(a, i);
        if (a->pieces[n].n > 1) {
            a->pieces[0] = a->pieces[n];
            return 1;
        }
        n++;
    }
    return n;
}

static bool is_stop(const d9di_answers *a, uint32_t token)
{
    bool found = false;

    for (size_t i = 0; i < a->stops.len; i++)
        found = found || a->stops.data[i] == token;
    return found;
}

/* The next token of a row: what the stepper has chosen, or one of its logits. */
static d9d_status token_of(d9di_answers *a, const d9di_answer *row, const d9di_next *next, size_t i,
                           uint32_t *out)
{
    const d9d_rng r = {a->seed, (uint64_t)row->k};

    if (next->logits != NULL)
        return d9di_choose_token(&a->choose, r, length_of(row),
                                 next->logits + (int64_t)i * a->vocab, a->vocab, out);
    *out = (uint32_t)next->token[i];
    return d9di_choose_check(*out, next->largest[i]);
}

static d9d_status row_grow(d9di_answers *a, d9di_answer *row, const d9di_next *next, size_t i)
{
    d9d_err_copy why;
    uint32_t token;
    d9d_status st = token_of(a, row, next, i, &token);

    if (st != D9D_OK) {
        d9d_err_save(&why, st);
        return D9D_FAIL(st, "sample %lld: position %lld: %s", (long long)row->of.sample,
                        (long long)length_of(row), why.text);
    }
    D9D_TRY(D9D_VEC_PUSH(&row->ids, token));
    if (is_stop(a, token))
        row->finish = "stop";
    else if (length_of(row) == row->most)
        row->finish = "length";
    return D9D_OK;
}

/* Does each row that the call under way is of go on behind it, unless it stops, and no other
 * begins? */
static bool all_go_on(const d9di_answers *a)
{
    size_t going = 0, alive = 0;

    for (int64_t i = 0; i < a->n; i++)
        alive += a->rows[i].k >= 0;
    for (size_t i = 0; i < a->under_way; i++) {
        const d9di_answer *row = &a->rows[a->pieces[i].row];

        going += row->k >= 0 && row->seen == length_of(row) && length_of(row) + 1 < row->most;
    }
    return going == a->under_way && going == alive &&
           (alive == (size_t)a->n || a->next >= a->asked->n);
}

/* The call behind that under way: of each row the token that it chooses. */
static d9d_status send_ahead(d9di_answers *a)
{
    for (size_t i = 0; i < a->under_way; i++) {
        d9di_generation_chunk *p = &a->pieces[i];

        *p = (d9di_generation_chunk){p->row, a->rows[p->row].seen, 1, NULL};
    }
    return d9di_stepper_send(a->stepper, a->pieces, a->under_way);
}

d9d_status d9di_answers_step(d9di_answers *a, d9di_answer_fn *done, void *arg)
{
    d9di_next next;
    size_t n;

    if (a->under_way == 0) {
        D9D_TRY(places_fill(a, done, arg));
        a->under_way = pieces_choose(a);
        D9D_TRY(d9di_stepper_send(a->stepper, a->pieces, a->under_way));
    }
    n = a->under_way;
    for (size_t i = 0; i < n; i++)
        a->rows[a->pieces[i].row].seen += a->pieces[i].n;
    if (a->ahead && n > 0 && all_go_on(a))
        D9D_TRY(send_ahead(a));
    else
        a->under_way = 0;
    D9D_TRY(d9di_stepper_take(a->stepper, &next));
    for (size_t i = 0; i < n; i++) {
        d9di_answer *row = &a->rows[a->pieces[i].row];

        if (row->k < 0 || row->seen < length_of(row))
            continue;
        D9D_TRY(row_grow(a, row, &next, i));
        if (row->finish != NULL)
            D9D_TRY(row_end(row, done, arg));
    }
    return D9D_OK;
}
