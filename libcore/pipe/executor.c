/* executor.c - see d9d/pipe/executor.h. */
#include "d9d/pipe/executor.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "d9d/base/coroutine.h"
#include "d9d/device/trace.h"
#include "pipe/program_private.h"

/* Hidden states go down the pipeline, their gradients up. */
enum way { DOWN, UP, WAYS };

/* What a stage of this rank has of a micro-batch. */
typedef struct cell {
    d9d_tape *tape;
    d9d_var *in, *out;
    d9d_tensor come[WAYS];     /* from the stage before, and from the one behind */
    d9d_message *coming[WAYS]; /* NULL: what has come is there */
    d9d_tensor made[WAYS];     /* for another rank, until it is sent */
} cell;

/* What is being sent. */
typedef struct parcel {
    d9d_message *message;
    d9d_tensor data;
} parcel;

/* Memory for what is received; idle when nobody else holds it. */
typedef struct buffer {
    d9d_tensor bytes; /* [n] */
    bool idle;
} buffer;

struct d9d_executor {
    d9d_executor_how how;
    const d9d_lane *lane;
    int here;                  /* stages of this rank */
    cell *cells;               /* [here][micros] */
    size_t *last;              /* [here]: place of the stage's last B or W */
    int *todo;                 /* [micros]: computations of this rank */
    int *left;                 /* [micros]: of those, in this play */
    D9D_VEC(d9d_tape *) tapes; /* idle ones */
    D9D_VEC(buffer) buffers;
    D9D_VEC(parcel) sent;
    int live, most;
    d9d_meter *meter;      /* or NULL */
    d9d_turns *turns;      /* of two joined actions, while they are under way */
    const d9d_action *now; /* which of them */
};

static cell *cell_of(const d9d_executor *x, int stage, int micro)
{
    const d9d_program *p = x->how.program;

    return &x->cells[(size_t)(stage / p->ranks) * (size_t)p->micros + (size_t)micro];
}

static d9d_comm *comm_of(const d9d_executor *x, enum way way)
{
    return way == DOWN ? x->how.down : x->how.up;
}

static d9d_status wrong(const d9d_action *a, const char *why)
{
    char text[64];

    return D9D_FAIL(D9D_EINVAL, "pipeline: %s: %s", d9di_action_text(a, text, sizeof(text)), why);
}

/* What the device does from here on; NULL: nothing. */
static d9d_status mark(const d9d_executor *x, const d9d_action *a)
{
    return x->meter != NULL ? d9d_meter_mark(x->meter, a) : D9D_OK;
}

/* --- tapes ----------------------------------------------------------------------------- */

static d9d_status tape_take(d9d_executor *x, d9d_tape **out)
{
    if (x->tapes.len > 0)
        *out = x->tapes.data[--x->tapes.len];
    else
        D9D_TRY(d9d_tape_create(x->how.dev, out));
    d9d_tape_set_recording(*out, x->how.program->backward);
    x->live++;
    x->most = x->live > x->most ? x->live : x->most;
    return D9D_OK;
}

static d9d_status tape_give(d9d_executor *x, cell *c)
{
    d9d_tape *t = c->tape;

    c->tape = NULL;
    c->in = c->out = NULL;
    x->live--;
    d9d_tape_reset(t);
    if (D9D_VEC_PUSH(&x->tapes, t) == D9D_OK)
        return D9D_OK;
    d9d_tape_free(t);
    return D9D_FAIL(D9D_ENOMEM, "pipeline: a tape");
}

/* --- memory of what is received ---------------------------------------------------------- */

/* The smallest idle one that is large enough. */
static buffer *buffer_find(d9d_executor *x, int64_t bytes)
{
    buffer *best = NULL;

    for (size_t i = 0; i < x->buffers.len; i++) {
        buffer *b = &x->buffers.data[i];
        const int64_t n = d9d_tensor_numel(&b->bytes);

        if (b->idle && n >= bytes && (best == NULL || n < d9d_tensor_numel(&best->bytes)))
            best = b;
    }
    return best;
}

/* All idle ones are too small. */
static d9d_status buffer_make(d9d_executor *x, int64_t bytes, buffer **out)
{
    buffer b = {.idle = true};
    size_t n = 0;

    for (size_t i = 0; i < x->buffers.len; i++)
        if (x->buffers.data[i].idle)
            d9d_tensor_release(&x->buffers.data[i].bytes);
        else
            x->buffers.data[n++] = x->buffers.data[i];
    x->buffers.len = n;
    D9D_TRY(D9D_VEC_RESERVE(&x->buffers, 1));
    D9D_TRY(d9d_tensor_alloc(x->how.dev, D9D_U8, D9D_SHAPE(bytes), &b.bytes));
    D9D_TRY(d9d_comm_fork(x->how.down, x->how.dev->stream));
    D9D_TRY(d9d_comm_fork(x->how.up, x->how.dev->stream));
    *out = &x->buffers.data[x->buffers.len];
    x->buffers.data[x->buffers.len++] = b;
    return D9D_OK;
}

static d9d_status buffer_take(d9d_executor *x, d9d_dtype t, d9d_shape shape, d9d_tensor *out)
{
    const int64_t bytes = d9d_shape_numel(&shape) * (int64_t)d9d_dtype_size(t);
    buffer *b = buffer_find(x, bytes);

    if (b == NULL)
        D9D_TRY(buffer_make(x, bytes, &b));
    b->idle = false;
    *out = d9d_tensor_ref(&b->bytes);
    out->dtype = t;
    out->shape = shape;
    return D9D_OK;
}

/* What a computation has let go of may be written again when it is through. */
static d9d_status buffers_settle(d9d_executor *x)
{
    bool freed = false;

    for (size_t i = 0; i < x->buffers.len; i++) {
        buffer *b = &x->buffers.data[i];

        if (!b->idle && d9d_tensor_is_sole(&b->bytes))
            freed = b->idle = true;
    }
    if (!freed)
        return D9D_OK;
    D9D_TRY(d9d_comm_fork(x->how.down, x->how.dev->stream));
    return d9d_comm_fork(x->how.up, x->how.dev->stream);
}

/* --- what goes between stages ------------------------------------------------------------ */

/* The stage to which a stage's results go. */
static int target_of(const d9d_action *a, enum way way)
{
    return way == DOWN ? a->stage + 1 : a->stage - 1;
}

/* To a stage that is here, or to wait for its SEND; takes the reference. */
static void hand_over(d9d_executor *x, const d9d_action *a, enum way way, d9d_tensor *t)
{
    const int to = target_of(a, way);
    const bool here = d9d_program_rank_of(x->how.program, to) == x->how.rank;
    cell *c = cell_of(x, here ? to : a->stage, a->micro);

    *(here ? &c->come[way] : &c->made[way]) = *t;
}

static d9d_status arrive(d9d_executor *x, const d9d_action *a, cell *c, enum way way)
{
    d9d_message *m = c->coming[way];

    c->coming[way] = NULL;
    if (c->come[way].storage == NULL)
        return wrong(a, "what it takes has not come");
    return d9d_message_end(m, x->how.dev->stream);
}

/* "stage 1 forward of micro-batch 3": whose result it is. */
static const char *name_of(char *buf, size_t n, int stage, enum way way, int micro)
{
    (void)snprintf(buf, n, "stage %d %s of micro-batch %d", stage,
                   way == DOWN ? "forward" : "backward", micro);
    return buf;
}

static d9d_status send(d9d_executor *x, const d9d_action *a, enum way way)
{
    d9d_tensor *t = &cell_of(x, a->stage, a->micro)->made[way];
    const int to = d9d_program_rank_of(x->how.program, target_of(a, way));
    parcel p = {0};
    char name[64];

    if (t->storage == NULL)
        return wrong(a, "what it sends was not made");
    D9D_TRY(D9D_VEC_RESERVE(&x->sent, 1));
    D9D_TRY(d9d_comm_fork(comm_of(x, way), x->how.dev->stream));
    D9D_TRY(d9d_comm_post_send(comm_of(x, way),
                               name_of(name, sizeof(name), a->stage, way, a->micro), t->dtype,
                               d9d_tensor_data(t), d9d_tensor_numel(t), to, &p.message));
    p.data = *t;
    *t = (d9d_tensor){0};
    x->sent.data[x->sent.len++] = p;
    return D9D_OK;
}

static d9d_status receive(d9d_executor *x, const d9d_action *a, enum way way)
{
    cell *c = cell_of(x, a->stage, a->micro);
    const int stage = way == DOWN ? a->stage - 1 : a->stage + 1;
    d9d_shape shape;
    d9d_dtype dtype;
    char name[64];

    D9D_TRY(x->how.ops->hidden(x->how.self, a->micro, &dtype, &shape));
    D9D_TRY(buffer_take(x, dtype, shape, &c->come[way]));
    return d9d_comm_post_recv(comm_of(x, way), name_of(name, sizeof(name), stage, way, a->micro),
                              dtype, d9d_tensor_data(&c->come[way]), d9d_shape_numel(&shape),
                              d9d_program_rank_of(x->how.program, stage), &c->coming[way]);
}

/* Let go of what was sent: of all, or of what is done.  Where no backward holds a rank back, of all
 * but the last: it does not run ahead of the next one with all that it makes. */
static d9d_status sent_settle(d9d_executor *x, bool all)
{
    enum { AHEAD = 2 };
    size_t n = 0;
    d9d_status st = D9D_OK;

    for (size_t i = 0; i < x->sent.len; i++) {
        parcel *p = &x->sent.data[i];
        const bool go = all || (x->how.program->backward ? d9d_message_done(p->message)
                                                         : i + AHEAD < x->sent.len);

        if (st != D9D_OK || !go) {
            x->sent.data[n++] = *p;
            continue;
        }
        st = d9d_message_end(p->message, x->how.dev->stream);
        d9d_tensor_release(&p->data);
    }
    x->sent.len = n;
    return st;
}

/* --- computation -------------------------------------------------------------------------- */

static d9d_status forward(d9d_executor *x, const d9d_action *a)
{
    const bool last = a->stage + 1 == x->how.program->stages;
    cell *c = cell_of(x, a->stage, a->micro);
    d9d_tensor out;

    D9D_TRY(tape_take(x, &c->tape));
    if (a->stage > 0) {
        D9D_TRY(arrive(x, a, c, DOWN));
        D9D_TRY(d9d_tape_leaf(c->tape, &c->come[DOWN], x->how.program->backward, &c->in));
        d9d_tensor_release(&c->come[DOWN]);
    }
    D9D_TRY(mark(x, a));
    D9D_TRY(x->how.ops->forward(x->how.self, a->stage, a->micro, c->tape, c->in, &c->out));
    if (!last) {
        out = d9d_tensor_ref(d9d_var_tensor(c->out));
        hand_over(x, a, DOWN, &out);
    }
    d9d_tape_release_since(c->tape, 0, NULL, 0); /* but what backward needs */
    return x->how.program->backward ? D9D_OK : tape_give(x, c);
}

/* The gradient of what came in. */
static d9d_status give_back(d9d_executor *x, const d9d_action *a, cell *c)
{
    d9d_tensor grad;

    if (a->stage == 0)
        return D9D_OK;
    d9d_var_take_grad(c->in, &grad);
    if (grad.storage == NULL)
        return wrong(a, "no gradient has reached what the stage takes");
    hand_over(x, a, UP, &grad);
    return D9D_OK;
}

static d9d_status backward(d9d_executor *x, const d9d_action *a, d9d_backward_mode mode, bool last)
{
    const bool seeded = a->stage + 1 < x->how.program->stages && mode != D9D_BACKWARD_WEIGHT;
    cell *c = cell_of(x, a->stage, a->micro);

    if (c->tape == NULL)
        return wrong(a, "comes before what it goes back through");
    if (seeded)
        D9D_TRY(arrive(x, a, c, UP));
    D9D_TRY(mark(x, a));
    if (x->how.ops->backward != NULL)
        D9D_TRY(x->how.ops->backward(x->how.self, a->stage, a->micro, last));
    D9D_TRY(d9d_tape_backward(c->tape, &c->out, &c->come[UP], seeded ? 1 : 0, mode));
    d9d_tensor_release(&c->come[UP]);
    if (mode != D9D_BACKWARD_WEIGHT)
        D9D_TRY(give_back(x, a, c));
    return mode == D9D_BACKWARD_INPUT ? D9D_OK : tape_give(x, c);
}

/* --- the lane ------------------------------------------------------------------------------ */

static d9d_status act(d9d_executor *x, const d9d_action *a, bool last)
{
    switch (a->verb) {
    case D9D_FORWARD: return forward(x, a);
    case D9D_BACKWARD: return backward(x, a, D9D_BACKWARD_FULL, last);
    case D9D_INPUT: return backward(x, a, D9D_BACKWARD_INPUT, false);
    case D9D_WEIGHT: return backward(x, a, D9D_BACKWARD_WEIGHT, last);
    case D9D_SEND_FORWARD: return send(x, a, DOWN);
    case D9D_RECV_FORWARD: return receive(x, a, DOWN);
    case D9D_SEND_BACKWARD: return send(x, a, UP);
    case D9D_RECV_BACKWARD: return receive(x, a, UP);
    default: return wrong(a, "is no action");
    }
}

/* In traces: "1F3" or "1F3|0B2", and where there is one stage what it is in words. */
static void trace_begin(const d9d_executor *x, const d9d_action *a, size_t n)
{
    char text[64], other[64];

    if (n == 2)
        d9d_trace_begin(x->how.dev, "%s|%s", d9di_action_text(a, text, sizeof(text)),
                        d9di_action_text(a + 1, other, sizeof(other)));
    else if (x->how.program->stages > 1)
        d9d_trace_begin(x->how.dev, "%s", d9di_action_text(a, text, sizeof(text)));
    else
        d9d_trace_begin(x->how.dev, "%s", a->verb == D9D_FORWARD ? "forward" : "backward");
}

static d9d_status compute(d9d_executor *x, size_t i)
{
    const d9d_action *a = &x->lane->data[i];

    x->now = a;
    D9D_TRY(act(x, a, x->last[a->stage / x->how.program->ranks] == i));
    D9D_TRY(mark(x, NULL));
    if (--x->left[a->micro] == 0 && x->how.ops->done != NULL)
        x->how.ops->done(x->how.self, a->micro);
    return buffers_settle(x);
}

/* --- two at once ----------------------------------------------------------------------------- */

/* One of two joined actions. */
typedef struct half {
    d9d_executor *x;
    size_t i;
} half;

static d9d_status half_compute(void *arg, d9d_turns *t)
{
    const half *h = arg;

    h->x->turns = t;
    return compute(h->x, h->i);
}

/* An action has queued a transfer aside: the other one goes on until it does. */
static d9d_status half_pause(void *arg)
{
    d9d_executor *x = arg;
    const d9d_action *mine = x->now;

    D9D_TRY(d9d_turns_next(x->turns));
    x->now = mine;
    return mark(x, mine);
}

/* Of one stage they are done in turn: its units are open for one at a time. */
static bool are_two(const d9d_executor *x, size_t i)
{
    const d9d_action *a = &x->lane->data[i];

    return d9di_group_end(x->lane, i) == i + 2 && a->stage != a[1].stage &&
           d9di_verb_computes(a[1].verb);
}

static d9d_status two(d9d_executor *x, size_t i)
{
    half a = {x, i}, b = {x, i + 1};
    d9d_status st;

    x->how.dev->pause = half_pause;
    x->how.dev->pause_arg = x;
    st = d9d_turns_run(half_compute, &a, &b);
    x->how.dev->pause = NULL;
    return st;
}

/* Action i, and what is done together with it: *n. */
static d9d_status step(d9d_executor *x, size_t i, size_t *n)
{
    const d9d_action *a = &x->lane->data[i];
    d9d_status st;

    *n = 1;
    D9D_TRY(sent_settle(x, false));
    if (!d9di_verb_computes(a->verb))
        return act(x, a, false);
    *n = are_two(x, i) ? 2 : 1;
    trace_begin(x, a, *n);
    st = *n == 2 ? two(x, i) : compute(x, i);
    d9d_trace_end(x->how.dev);
    return st;
}

d9d_status d9d_executor_play(d9d_executor *x)
{
    if (x->meter != NULL)
        D9D_TRY(d9d_meter_begin(x->meter));
    memcpy(x->left, x->todo, (size_t)x->how.program->micros * sizeof(*x->left));
    for (size_t i = 0, n; i < x->lane->len; i += n)
        D9D_TRY(step(x, i, &n));
    return sent_settle(x, true);
}

void d9d_executor_measure(d9d_executor *x, d9d_meter *m)
{
    x->meter = m;
}

int d9d_executor_live(const d9d_executor *x)
{
    return x->most;
}

/* --- making it ------------------------------------------------------------------------------ */

static d9d_status take_room(d9d_executor *x)
{
    const size_t micros = (size_t)x->how.program->micros;

    x->cells = calloc((size_t)x->here * micros, sizeof(*x->cells));
    x->last = calloc((size_t)x->here, sizeof(*x->last));
    x->todo = calloc(micros, sizeof(*x->todo));
    x->left = calloc(micros, sizeof(*x->left));
    if (x->cells == NULL || x->last == NULL || x->todo == NULL || x->left == NULL)
        return D9D_FAIL(D9D_ENOMEM, "pipeline: %d stages of %zu micro-batches", x->here, micros);
    return D9D_OK;
}

static void read_lane(d9d_executor *x)
{
    for (size_t i = 0; i < x->lane->len; i++) {
        const d9d_action *a = &x->lane->data[i];

        x->todo[a->micro] += d9di_verb_computes(a->verb);
        if (a->verb == D9D_BACKWARD || a->verb == D9D_WEIGHT)
            x->last[a->stage / x->how.program->ranks] = i;
    }
}

d9d_status d9d_executor_create(const d9d_executor_how *how, d9d_executor **out)
{
    const int ranks = how->program->ranks;
    d9d_executor *x;
    d9d_status st;

    if (d9d_comm_size(how->down) != ranks || d9d_comm_size(how->up) != ranks)
        return D9D_FAIL(D9D_EINVAL, "pipeline: a program of %d ranks over groups of %d and %d",
                        ranks, d9d_comm_size(how->down), d9d_comm_size(how->up));
    D9D_TRY(d9d_comm_mail_want(how->down));
    D9D_TRY(d9d_comm_mail_want(how->up));
    x = calloc(1, sizeof(*x));
    if (x == NULL)
        return D9D_FAIL(D9D_ENOMEM, "pipeline: an executor");
    x->how = *how;
    x->lane = &how->program->lanes[how->rank];
    x->here = how->program->stages / ranks;
    st = take_room(x);
    if (st == D9D_OK) {
        read_lane(x);
        *out = x;
    } else {
        d9d_executor_free(x);
    }
    return st;
}

static void cell_release(cell *c)
{
    d9d_tape_free(c->tape);
    for (int way = 0; way < WAYS; way++) {
        d9d_message_drop(c->coming[way]);
        d9d_tensor_release(&c->come[way]);
        d9d_tensor_release(&c->made[way]);
    }
}

void d9d_executor_free(d9d_executor *x)
{
    if (x == NULL)
        return;
    for (size_t i = 0; x->cells != NULL && i < (size_t)x->here * (size_t)x->how.program->micros;
         i++)
        cell_release(&x->cells[i]);
    for (size_t i = 0; i < x->sent.len; i++) {
        d9d_message_drop(x->sent.data[i].message);
        d9d_tensor_release(&x->sent.data[i].data);
    }
    for (size_t i = 0; i < x->buffers.len; i++)
        d9d_tensor_release(&x->buffers.data[i].bytes);
    for (size_t i = 0; i < x->tapes.len; i++)
        d9d_tape_free(x->tapes.data[i]);
    D9D_VEC_RELEASE(&x->sent);
    D9D_VEC_RELEASE(&x->buffers);
    D9D_VEC_RELEASE(&x->tapes);
    free(x->cells);
    free(x->last);
    free(x->todo);
    free(x->left);
    free(x);
}
