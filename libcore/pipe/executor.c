/* executor.c - see d9d/pipe/executor.h. */
#include "d9d/pipe/executor.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "d9d/base/coroutine.h"
#include "d9d/device/trace.h"
#include "pipe/program_private.h"

/* Tensors go down the pipeline, their gradients up. */
enum direction { DOWN, UP, DIRECTIONS };

/* What enters a stage, and what leaves it, at one place of the tuple. */
typedef struct port {
    d9d_var *in, *out;
    d9d_tensor recv[DIRECTIONS];       /* from the previous stage, and from the next */
    d9d_message *recv_msg[DIRECTIONS]; /* NULL: received */
    d9d_tensor to_send[DIRECTIONS];    /* for another rank, until it is sent */
    const char *name[DIRECTIONS];      /* of to_send, borrowed */
} port;

/* State of a stage of this rank for one micro-batch. */
typedef struct slot {
    d9d_tape *tape;
    port *ports; /* [opts.tensors] */
} slot;

/* What enters a stage, of one micro-batch. */
typedef struct tuple {
    d9d_stage_tensor of[D9D_EXECUTOR_TENSORS_MAX];
    size_t n;
} tuple;

/* A send in flight. */
typedef struct pending_send {
    d9d_message *message;
    d9d_tensor data;
} pending_send;

/* A receive buffer; idle when nobody else holds a reference. */
typedef struct recv_buffer {
    d9d_tensor bytes; /* [n] */
    bool idle;
} recv_buffer;

struct d9d_executor {
    d9d_executor_opts opts;
    const d9d_pipe_lane *lane;
    int n_stages;              /* stages of this rank */
    slot *slots;               /* [here][micros] */
    port *ports;               /* of all slots */
    size_t *last;              /* [here]: position of the stage's last B or W */
    int *todo;                 /* [micros]: computations of this rank */
    int *left;                 /* [micros]: of those, left in this run */
    D9D_VEC(d9d_tape *) tapes; /* idle ones */
    D9D_VEC(recv_buffer) buffers;
    D9D_VEC(pending_send) pending;
    int live, max_live;
    d9d_stage_timer *timer;     /* or NULL */
    d9d_co *co;                 /* coroutine of two joined actions, while they run */
    const d9d_pipe_action *now; /* the action that runs now */
};

static slot *slot_at(const d9d_executor *x, int stage, int micro)
{
    const d9d_program *p = x->opts.program;

    return &x->slots[(size_t)(stage / p->ranks) * (size_t)p->micros + (size_t)micro];
}

static d9d_comm *direction_comm(const d9d_executor *x, enum direction direction)
{
    return direction == DOWN ? x->opts.down : x->opts.up;
}

static d9d_status fail_action(const d9d_pipe_action *a, const char *why)
{
    char text[64];

    return D9D_FAIL(D9D_EINVAL, "pipeline: %s: %s", d9di_pipe_action_text(a, text, sizeof(text)),
                    why);
}

/* Record in the timer what the device does from here on; NULL: idle. */
static d9d_status timer_record(const d9d_executor *x, const d9d_pipe_action *a)
{
    return x->timer != NULL ? d9d_stage_timer_record(x->timer, a) : D9D_OK;
}

/* --- tapes ----------------------------------------------------------------------------- */

static d9d_status tape_acquire(d9d_executor *x, d9d_tape **out)
{
    if (x->tapes.len > 0)
        *out = x->tapes.data[--x->tapes.len];
    else
        D9D_TRY(d9d_tape_create(x->opts.dev, out));
    d9d_tape_set_recording(*out, x->opts.program->backward);
    x->live++;
    x->max_live = x->live > x->max_live ? x->live : x->max_live;
    return D9D_OK;
}

static d9d_status tape_return(d9d_executor *x, slot *c)
{
    d9d_tape *t = c->tape;

    c->tape = NULL;
    for (size_t i = 0; i < x->opts.tensors; i++)
        c->ports[i].in = c->ports[i].out = NULL;
    x->live--;
    d9d_tape_reset(t);
    if (D9D_VEC_PUSH(&x->tapes, t) == D9D_OK)
        return D9D_OK;
    d9d_tape_free(t);
    return D9D_FAIL(D9D_ENOMEM, "pipeline: no memory for a tape");
}

/* --- receive buffers --------------------------------------------------------------------- */

/* The smallest idle buffer that is large enough. */
static recv_buffer *buffer_find(d9d_executor *x, int64_t bytes)
{
    recv_buffer *best = NULL;

    for (size_t i = 0; i < x->buffers.len; i++) {
        recv_buffer *b = &x->buffers.data[i];
        const int64_t n = d9d_tensor_numel(&b->bytes);

        if (b->idle && n >= bytes && (best == NULL || n < d9d_tensor_numel(&best->bytes)))
            best = b;
    }
    return best;
}

/* All idle buffers are too small. */
static d9d_status buffer_alloc(d9d_executor *x, int64_t bytes, recv_buffer **out)
{
    recv_buffer b = {.idle = true};
    size_t n = 0;

    for (size_t i = 0; i < x->buffers.len; i++)
        if (x->buffers.data[i].idle)
            d9d_tensor_release(&x->buffers.data[i].bytes);
        else
            x->buffers.data[n++] = x->buffers.data[i];
    x->buffers.len = n;
    D9D_TRY(D9D_VEC_RESERVE(&x->buffers, 1));
    D9D_TRY(d9d_tensor_alloc(x->opts.dev, D9D_U8, D9D_SHAPE(bytes), &b.bytes));
    D9D_TRY(d9d_comm_wait_stream(x->opts.down, x->opts.dev->stream));
    D9D_TRY(d9d_comm_wait_stream(x->opts.up, x->opts.dev->stream));
    *out = &x->buffers.data[x->buffers.len];
    x->buffers.data[x->buffers.len++] = b;
    return D9D_OK;
}

static d9d_status buffer_acquire(d9d_executor *x, d9d_dtype t, d9d_shape shape, d9d_tensor *out)
{
    const int64_t bytes = d9d_shape_numel(&shape) * (int64_t)d9d_dtype_size(t);
    recv_buffer *b = buffer_find(x, bytes);

    if (b == NULL)
        D9D_TRY(buffer_alloc(x, bytes, &b));
    b->idle = false;
    *out = d9d_tensor_ref(&b->bytes);
    out->dtype = t;
    out->shape = shape;
    return D9D_OK;
}

/* A buffer that a computation has released may be written again when the computation is complete.
 */
static d9d_status buffers_reclaim(d9d_executor *x)
{
    bool freed = false;

    for (size_t i = 0; i < x->buffers.len; i++) {
        recv_buffer *b = &x->buffers.data[i];

        if (!b->idle && d9d_tensor_is_unique(&b->bytes))
            freed = b->idle = true;
    }
    if (!freed)
        return D9D_OK;
    D9D_TRY(d9d_comm_wait_stream(x->opts.down, x->opts.dev->stream));
    return d9d_comm_wait_stream(x->opts.up, x->opts.dev->stream);
}

/* --- transfers between stages ------------------------------------------------------------ */

/* The stage to which a stage's results go. */
static int target_stage(const d9d_pipe_action *a, enum direction direction)
{
    return direction == DOWN ? a->stage + 1 : a->stage - 1;
}

/* The tuple that enters a stage; none enters the first, and none the stage after the last. */
static d9d_status tuple_get(const d9d_executor *x, int stage, int micro, tuple *out)
{
    out->n = 0;
    if (stage == 0 || stage == x->opts.program->stages)
        return D9D_OK;
    D9D_TRY(x->opts.ops->tensors(x->opts.self, stage, micro, out->of, &out->n));
    if (out->n > x->opts.tensors)
        return D9D_FAIL(D9D_EINVAL, "pipeline: %zu tensors enter stage %d, not %zu", out->n, stage,
                        x->opts.tensors);
    return D9D_OK;
}

static bool travels(const d9d_stage_tensor *t, enum direction direction)
{
    return direction == DOWN || !t->constant;
}

/* Hand an output to a stage of this rank, or store it for its SEND; takes the reference. */
static void output_deliver(d9d_executor *x, const d9d_pipe_action *a, enum direction direction,
                           size_t i, const char *name, d9d_tensor *t)
{
    const int to = target_stage(a, direction);
    const bool here = d9d_program_rank_of(x->opts.program, to) == x->opts.rank;
    port *p = &slot_at(x, here ? to : a->stage, a->micro)->ports[i];

    *(here ? &p->recv[direction] : &p->to_send[direction]) = *t;
    p->name[direction] = name;
}

static d9d_status input_wait(d9d_executor *x, const d9d_pipe_action *a, port *p,
                             enum direction direction)
{
    d9d_message *m = p->recv_msg[direction];

    p->recv_msg[direction] = NULL;
    if (p->recv[direction].storage == NULL)
        return fail_action(a, "its input was not received");
    return d9d_message_wait(m, x->opts.dev->stream);
}

/* The label of a message, one of n: "stage 1 forward of micro-batch 3", of several also a name. */
static const char *transfer_name(char *buf, size_t size, int stage, enum direction direction,
                                 int micro, const char *name, size_t n)
{
    (void)snprintf(buf, size, "stage %d %s of micro-batch %d%s%s", stage,
                   direction == DOWN ? "forward" : "backward", micro, n > 1 ? ": " : "",
                   n > 1 ? name : "");
    return buf;
}

/* Post the message of one tensor of n; one without elements needs none. */
static d9d_status tensor_send(d9d_executor *x, const d9d_pipe_action *a, enum direction direction,
                              port *of, size_t n)
{
    d9d_tensor *t = &of->to_send[direction];
    const int to = d9d_program_rank_of(x->opts.program, target_stage(a, direction));
    pending_send p = {0};
    char name[128];

    D9D_TRY(D9D_VEC_RESERVE(&x->pending, 1));
    if (d9d_tensor_numel(t) > 0)
        D9D_TRY(d9d_comm_post_send(direction_comm(x, direction),
                                   transfer_name(name, sizeof(name), a->stage, direction, a->micro,
                                                 of->name[direction], n),
                                   t->dtype, d9d_tensor_data(t), d9d_tensor_numel(t), to,
                                   &p.message));
    p.data = *t;
    *t = (d9d_tensor){0};
    x->pending.data[x->pending.len++] = p;
    return D9D_OK;
}

/* What was stored for it: the micro-batch itself may be gone. */
static d9d_status action_send(d9d_executor *x, const d9d_pipe_action *a, enum direction direction)
{
    port *ports = slot_at(x, a->stage, a->micro)->ports;
    size_t n = 0;

    for (size_t i = 0; i < x->opts.tensors; i++)
        n += ports[i].to_send[direction].storage != NULL;
    if (n == 0)
        return fail_action(a, "its output was not computed");
    D9D_TRY(d9d_comm_wait_stream(direction_comm(x, direction), x->opts.dev->stream));
    for (size_t i = 0; i < x->opts.tensors; i++)
        if (ports[i].to_send[direction].storage != NULL)
            D9D_TRY(tensor_send(x, a, direction, &ports[i], n));
    return D9D_OK;
}

static d9d_status tensor_recv(d9d_executor *x, const d9d_pipe_action *a, enum direction direction,
                              const d9d_stage_tensor *t, size_t n, port *p)
{
    const int stage = direction == DOWN ? a->stage - 1 : a->stage + 1;
    char name[128];

    D9D_TRY(buffer_acquire(x, t->dtype, t->shape, &p->recv[direction]));
    if (d9d_shape_numel(&t->shape) == 0)
        return D9D_OK;
    return d9d_comm_post_recv(
        direction_comm(x, direction),
        transfer_name(name, sizeof(name), stage, direction, a->micro, t->name, n), t->dtype,
        d9d_tensor_data(&p->recv[direction]), d9d_shape_numel(&t->shape),
        d9d_program_rank_of(x->opts.program, stage), &p->recv_msg[direction]);
}

static d9d_status action_recv(d9d_executor *x, const d9d_pipe_action *a, enum direction direction)
{
    slot *c = slot_at(x, a->stage, a->micro);
    size_t n = 0;
    tuple of;

    D9D_TRY(tuple_get(x, direction == DOWN ? a->stage : a->stage + 1, a->micro, &of));
    for (size_t i = 0; i < of.n; i++)
        n += travels(&of.of[i], direction);
    for (size_t i = 0; i < of.n; i++)
        if (travels(&of.of[i], direction))
            D9D_TRY(tensor_recv(x, a, direction, &of.of[i], n, &c->ports[i]));
    return D9D_OK;
}

/* Sends [i] that may be released. */
static bool is_sent(const d9d_executor *x, size_t i)
{
    enum { MAX_UNSENT = 2 };
    const pending_send *p = &x->pending.data[i];
    const size_t newer = (x->pending.len - 1 - i) / x->opts.tensors; /* actions that sent since */

    if (p->message == NULL)
        return true;
    if (!x->opts.program->backward)
        return newer >= MAX_UNSENT;
    return d9d_message_test(p->message) && (!x->opts.simulated || newer > 0);
}

/* Release sends: all, or those that are complete.  In a program without backward nothing else
 * limits a rank.  It then waits for all but the last sends, so that it does not run ahead of the
 * next rank. */
static d9d_status sends_complete(d9d_executor *x, bool all)
{
    size_t n = 0;
    d9d_status st = D9D_OK;

    for (size_t i = 0; i < x->pending.len; i++) {
        pending_send *p = &x->pending.data[i];

        if (st != D9D_OK || !(all || is_sent(x, i))) {
            x->pending.data[n++] = *p;
            continue;
        }
        st = d9d_message_wait(p->message, x->opts.dev->stream);
        d9d_tensor_release(&p->data);
    }
    x->pending.len = n;
    return st;
}

/* --- computation -------------------------------------------------------------------------- */

/* Wait for what enters the stage, and make leaves of it. */
static d9d_status inputs_take(d9d_executor *x, const d9d_pipe_action *a, slot *c,
                              d9d_var *in[D9D_EXECUTOR_TENSORS_MAX])
{
    tuple of;

    D9D_TRY(tuple_get(x, a->stage, a->micro, &of));
    for (size_t i = 0; i < of.n; i++)
        D9D_TRY(input_wait(x, a, &c->ports[i], DOWN));
    for (size_t i = 0; i < of.n; i++) {
        port *p = &c->ports[i];

        D9D_TRY(d9d_tape_leaf(c->tape, &p->recv[DOWN],
                              x->opts.program->backward && !of.of[i].constant, &p->in));
        d9d_tensor_release(&p->recv[DOWN]);
        in[i] = p->in;
    }
    return D9D_OK;
}

static d9d_status outputs_deliver(d9d_executor *x, const d9d_pipe_action *a, slot *c,
                                  d9d_var *const out[D9D_EXECUTOR_TENSORS_MAX])
{
    tuple of;

    D9D_TRY(tuple_get(x, a->stage + 1, a->micro, &of));
    for (size_t i = 0; i < of.n; i++) {
        d9d_tensor t;

        D9D_TRY(d9d_stage_tensor_check(&of.of[i], out[i] != NULL ? d9d_var_tensor(out[i]) : NULL,
                                       a->stage));
        c->ports[i].out = out[i];
        t = d9d_tensor_ref(d9d_var_tensor(out[i]));
        output_deliver(x, a, DOWN, i, of.of[i].name, &t);
    }
    return D9D_OK;
}

static d9d_status action_forward(d9d_executor *x, const d9d_pipe_action *a)
{
    slot *c = slot_at(x, a->stage, a->micro);
    d9d_var *in[D9D_EXECUTOR_TENSORS_MAX] = {NULL}, *out[D9D_EXECUTOR_TENSORS_MAX] = {NULL};

    D9D_TRY(tape_acquire(x, &c->tape));
    D9D_TRY(inputs_take(x, a, c, in));
    D9D_TRY(timer_record(x, a));
    D9D_TRY(x->opts.ops->forward(x->opts.self, a->stage, a->micro, c->tape, in, out));
    D9D_TRY(outputs_deliver(x, a, c, out));
    d9d_tape_release_since(c->tape, 0, NULL, 0); /* all but what backward needs */
    return x->opts.program->backward ? D9D_OK : tape_return(x, c);
}

static d9d_status zeros_make(d9d_executor *x, const d9d_stage_tensor *of, d9d_tensor *out)
{
    D9D_TRY(d9d_tensor_alloc(x->opts.dev, of->dtype, of->shape, out));
    return x->opts.dev->kernels->elementwise->fill(x->opts.dev->stream, of->dtype,
                                                   d9d_tensor_data(out), d9d_tensor_numel(out), 0);
}

/* Deliver the gradients of a stage's inputs; zeros for one that nothing read. */
static d9d_status input_grads_deliver(d9d_executor *x, const d9d_pipe_action *a, slot *c)
{
    d9d_tensor grad[D9D_EXECUTOR_TENSORS_MAX];
    bool some = false, wanted = false;
    d9d_status st = D9D_OK;
    tuple of;

    D9D_TRY(tuple_get(x, a->stage, a->micro, &of));
    for (size_t i = 0; i < of.n; i++) {
        d9d_var_move_grad(c->ports[i].in, &grad[i]);
        wanted |= !of.of[i].constant;
        some |= grad[i].storage != NULL;
    }
    if (wanted && !some)
        return fail_action(a, "no gradient has reached the stage's input");
    for (size_t i = 0; i < of.n; i++) {
        if (of.of[i].constant)
            continue;
        if (grad[i].storage == NULL && st == D9D_OK)
            st = zeros_make(x, &of.of[i], &grad[i]);
        output_deliver(x, a, UP, i, of.of[i].name, &grad[i]);
    }
    return st;
}

/* Wait for the gradients of a stage's outputs: roots and seeds of its backward. */
static d9d_status seeds_take(d9d_executor *x, const d9d_pipe_action *a, slot *c,
                             d9d_var *roots[D9D_EXECUTOR_TENSORS_MAX],
                             d9d_tensor seeds[D9D_EXECUTOR_TENSORS_MAX], size_t *n)
{
    tuple of;

    *n = 0;
    D9D_TRY(tuple_get(x, a->stage + 1, a->micro, &of));
    for (size_t i = 0; i < of.n; i++) {
        port *p = &c->ports[i];

        if (of.of[i].constant)
            continue;
        D9D_TRY(input_wait(x, a, p, UP));
        roots[*n] = p->out;
        seeds[(*n)++] = p->recv[UP];
    }
    return D9D_OK;
}

static d9d_status action_backward(d9d_executor *x, const d9d_pipe_action *a,
                                  d9d_tape_backward_mode mode, bool last)
{
    slot *c = slot_at(x, a->stage, a->micro);
    d9d_var *roots[D9D_EXECUTOR_TENSORS_MAX];
    d9d_tensor seeds[D9D_EXECUTOR_TENSORS_MAX]; /* borrowed */
    size_t n = 0;

    if (c->tape == NULL)
        return fail_action(a, "comes before its forward");
    D9D_TRY(d9d_tape_prefetch(c->tape)); /* while gradients are on their way */
    if (mode != D9D_BACKWARD_WGRAD)
        D9D_TRY(seeds_take(x, a, c, roots, seeds, &n));
    D9D_TRY(timer_record(x, a));
    if (x->opts.ops->backward != NULL)
        D9D_TRY(x->opts.ops->backward(x->opts.self, a->stage, a->micro, last));
    D9D_TRY(d9d_tape_backward(c->tape, roots, seeds, n, mode));
    for (size_t i = 0; i < x->opts.tensors; i++)
        d9d_tensor_release(&c->ports[i].recv[UP]);
    if (mode != D9D_BACKWARD_WGRAD)
        D9D_TRY(input_grads_deliver(x, a, c));
    return mode == D9D_BACKWARD_DGRAD ? D9D_OK : tape_return(x, c);
}

/* --- the run of a lane --------------------------------------------------------------------- */

static d9d_status action_dispatch(d9d_executor *x, const d9d_pipe_action *a, bool last)
{
    switch (a->kind) {
    case D9D_PIPE_FORWARD: return action_forward(x, a);
    case D9D_PIPE_BACKWARD: return action_backward(x, a, D9D_BACKWARD_FULL, last);
    case D9D_PIPE_DGRAD: return action_backward(x, a, D9D_BACKWARD_DGRAD, false);
    case D9D_PIPE_WGRAD: return action_backward(x, a, D9D_BACKWARD_WGRAD, last);
    case D9D_PIPE_SEND_FORWARD: return action_send(x, a, DOWN);
    case D9D_PIPE_RECV_FORWARD: return action_recv(x, a, DOWN);
    case D9D_PIPE_SEND_BACKWARD: return action_send(x, a, UP);
    case D9D_PIPE_RECV_BACKWARD: return action_recv(x, a, UP);
    default: return fail_action(a, "is no action");
    }
}

/* Label in traces: "1F3" or "1F3|0B2"; with one stage, words. */
static void trace_begin(const d9d_executor *x, const d9d_pipe_action *a, size_t n)
{
    char text[64], other[64];

    if (n == 2)
        d9d_trace_begin(x->opts.dev, "%s|%s", d9di_pipe_action_text(a, text, sizeof(text)),
                        d9di_pipe_action_text(a + 1, other, sizeof(other)));
    else if (x->opts.program->stages > 1)
        d9d_trace_begin(x->opts.dev, "%s", d9di_pipe_action_text(a, text, sizeof(text)));
    else
        d9d_trace_begin(x->opts.dev, "%s", a->kind == D9D_PIPE_FORWARD ? "forward" : "backward");
}

/* If the computation after action i is a backward, what it needs first returns during i. */
static d9d_status next_prefetch(const d9d_executor *x, size_t i)
{
    const d9d_pipe_action *a;
    const slot *c;

    for (i++; i < x->lane->len && !d9di_pipe_action_computes(x->lane->data[i].kind); i++)
        ;
    if (i == x->lane->len)
        return D9D_OK;
    a = &x->lane->data[i];
    c = slot_at(x, a->stage, a->micro);
    return c->tape != NULL && (a->kind == D9D_PIPE_BACKWARD || a->kind == D9D_PIPE_DGRAD)
               ? d9d_tape_prefetch(c->tape)
               : D9D_OK;
}

static d9d_status action_compute(d9d_executor *x, size_t i)
{
    const d9d_pipe_action *a = &x->lane->data[i];

    x->now = a;
    D9D_TRY(next_prefetch(x, i));
    D9D_TRY(action_dispatch(x, a, x->last[a->stage / x->opts.program->ranks] == i));
    D9D_TRY(timer_record(x, NULL));
    if (--x->left[a->micro] == 0 && x->opts.ops->done != NULL)
        x->opts.ops->done(x->opts.self, a->micro);
    return buffers_reclaim(x);
}

/* --- joined actions ------------------------------------------------------------------------ */

/* One of two joined actions. */
typedef struct joined_half {
    d9d_executor *x;
    size_t i;
} joined_half;

static d9d_status half_compute(void *arg, d9d_co *t)
{
    const joined_half *h = arg;

    h->x->co = t;
    return action_compute(h->x, h->i);
}

/* An action has enqueued an asynchronous transfer: the other one continues until it does the same.
 */
static d9d_status half_yield(void *arg)
{
    d9d_executor *x = arg;
    const d9d_pipe_action *action = x->now;

    D9D_TRY(d9d_co_yield(x->co));
    x->now = action;
    return timer_record(x, action);
}

/* Are action i and the next a joined pair of different stages?  Two actions of one stage run in
 * order, because its units are unsharded for one at a time. */
static bool is_joined_pair(const d9d_executor *x, size_t i)
{
    const d9d_pipe_action *a = &x->lane->data[i];

    return d9di_pipe_lane_group_end(x->lane, i) == i + 2 && a->stage != a[1].stage &&
           d9di_pipe_action_computes(a[1].kind);
}

static d9d_status pair_run(d9d_executor *x, size_t i)
{
    joined_half a = {x, i}, b = {x, i + 1};
    d9d_status st;

    x->opts.dev->on_wait = half_yield;
    x->opts.dev->on_wait_arg = x;
    st = d9d_co_run(half_compute, &a, &b);
    x->opts.dev->on_wait = NULL;
    return st;
}

/* Run action i and those joined with it; *n is their number. */
static d9d_status group_run(d9d_executor *x, size_t i, size_t *n)
{
    const d9d_pipe_action *a = &x->lane->data[i];
    d9d_status st;

    *n = 1;
    D9D_TRY(sends_complete(x, false));
    if (!d9di_pipe_action_computes(a->kind))
        return action_dispatch(x, a, false);
    *n = is_joined_pair(x, i) ? 2 : 1;
    trace_begin(x, a, *n);
    st = *n == 2 ? pair_run(x, i) : action_compute(x, i);
    d9d_trace_end(x->opts.dev);
    return st;
}

d9d_status d9d_executor_run(d9d_executor *x)
{
    if (x->timer != NULL)
        D9D_TRY(d9d_stage_timer_begin(x->timer));
    memcpy(x->left, x->todo, (size_t)x->opts.program->micros * sizeof(*x->left));
    for (size_t i = 0, n; i < x->lane->len; i += n)
        D9D_TRY(group_run(x, i, &n));
    return sends_complete(x, true);
}

void d9d_executor_set_timer(d9d_executor *x, d9d_stage_timer *m)
{
    x->timer = m;
}

int d9d_executor_max_live(const d9d_executor *x)
{
    return x->max_live;
}

/* --- creation ------------------------------------------------------------------------------- */

static d9d_status state_alloc(d9d_executor *x)
{
    const size_t micros = (size_t)x->opts.program->micros, n = (size_t)x->n_stages * micros;

    x->slots = calloc(n, sizeof(*x->slots));
    x->ports = calloc(n * x->opts.tensors, sizeof(*x->ports));
    x->last = calloc((size_t)x->n_stages, sizeof(*x->last));
    x->todo = calloc(micros, sizeof(*x->todo));
    x->left = calloc(micros, sizeof(*x->left));
    if (x->slots == NULL || x->ports == NULL || x->last == NULL || x->todo == NULL ||
        x->left == NULL)
        return D9D_FAIL(D9D_ENOMEM, "pipeline: %d stages of %zu micro-batches", x->n_stages,
                        micros);
    for (size_t i = 0; i < n; i++)
        x->slots[i].ports = &x->ports[i * x->opts.tensors];
    return D9D_OK;
}

static void lane_count(d9d_executor *x)
{
    for (size_t i = 0; i < x->lane->len; i++) {
        const d9d_pipe_action *a = &x->lane->data[i];

        x->todo[a->micro] += d9di_pipe_action_computes(a->kind);
        if (a->kind == D9D_PIPE_BACKWARD || a->kind == D9D_PIPE_WGRAD)
            x->last[a->stage / x->opts.program->ranks] = i;
    }
}

d9d_status d9d_executor_create(const d9d_executor_opts *opts, d9d_executor **out)
{
    const int ranks = opts->program->ranks;
    d9d_executor *x;
    d9d_status st;

    if (d9d_comm_size(opts->down) != ranks || d9d_comm_size(opts->up) != ranks)
        return D9D_FAIL(D9D_EINVAL, "pipeline: a program of %d ranks over groups of %d and %d",
                        ranks, d9d_comm_size(opts->down), d9d_comm_size(opts->up));
    if (opts->tensors > D9D_EXECUTOR_TENSORS_MAX)
        return D9D_FAIL(D9D_EINVAL, "pipeline: %zu tensors enter a stage, and %d are possible",
                        opts->tensors, D9D_EXECUTOR_TENSORS_MAX);
    D9D_TRY(d9d_p2p_ring_enable(opts->down));
    D9D_TRY(d9d_p2p_ring_enable(opts->up));
    x = calloc(1, sizeof(*x));
    if (x == NULL)
        return D9D_FAIL(D9D_ENOMEM, "pipeline: an executor");
    x->opts = *opts;
    x->opts.tensors = opts->tensors > 0 ? opts->tensors : 1;
    x->lane = &opts->program->lanes[opts->rank];
    x->n_stages = opts->program->stages / ranks;
    st = state_alloc(x);
    if (st == D9D_OK) {
        lane_count(x);
        *out = x;
    } else {
        d9d_executor_free(x);
    }
    return st;
}

static void port_release(port *p)
{
    for (int direction = 0; direction < DIRECTIONS; direction++) {
        d9d_message_cancel(p->recv_msg[direction]);
        d9d_tensor_release(&p->recv[direction]);
        d9d_tensor_release(&p->to_send[direction]);
    }
}

void d9d_executor_free(d9d_executor *x)
{
    size_t n;

    if (x == NULL)
        return;
    n = x->slots != NULL && x->ports != NULL ? (size_t)x->n_stages * (size_t)x->opts.program->micros
                                             : 0;
    for (size_t i = 0; i < n; i++)
        d9d_tape_free(x->slots[i].tape);
    for (size_t i = 0; i < n * x->opts.tensors; i++)
        port_release(&x->ports[i]);
    for (size_t i = 0; i < x->pending.len; i++) {
        d9d_message_cancel(x->pending.data[i].message);
        d9d_tensor_release(&x->pending.data[i].data);
    }
    for (size_t i = 0; i < x->buffers.len; i++)
        d9d_tensor_release(&x->buffers.data[i].bytes);
    for (size_t i = 0; i < x->tapes.len; i++)
        d9d_tape_free(x->tapes.data[i]);
    D9D_VEC_RELEASE(&x->pending);
    D9D_VEC_RELEASE(&x->buffers);
    D9D_VEC_RELEASE(&x->tapes);
    free(x->slots);
    free(x->ports);
    free(x->last);
    free(x->todo);
    free(x->left);
    free(x);
}
