/* op_expert_copies.c - routings where experts have copies on other ranks.  T tokens with k choices
 * of E experts; a rank has P own experts and as many places for copies.
 *
 *     route    place of each lane of a token's row of the table [T, E], of its choices    [T, k]
 *     split    the choices below P, and the others less P; -1 elsewhere                   [N, k]
 */
#include "op/op_common.h"

/* Sort a routing's choices over `experts`. */
static d9d_status choices_sort(d9d_tape *t, d9d_routing *r, int64_t experts)
{
    const d9d_shape *s = &r->expert.shape;

    return D9DI_KERNEL(t, moe->sort_by_expert, d9d_tensor_data(&r->offset),
                       d9d_tensor_data(&r->row), d9d_tensor_data(&r->source),
                       d9d_tensor_data(&r->expert), s->dim[0], experts, s->dim[1]);
}

/* The lanes of these tokens: all, or those of a tp rank. */
static d9d_status lanes_of(const d9d_tape *t, int64_t tokens, d9d_tensor *out)
{
    const d9d_token_weights *w = d9d_tape_token_weights(t);
    const int64_t all = w != NULL ? d9d_tensor_numel(&w->lane) : 0;
    const int64_t first = tokens != all && w != NULL ? w->first : 0;
    d9d_tensor flat;

    if (w == NULL || w->lane.storage == NULL)
        return D9D_FAIL(D9D_EINVAL, "route_copies: the tape has no lanes of tokens");
    if (first + tokens > all)
        return d9di_op_misfit("route_copies", "tokens", &D9D_SHAPE(tokens), "lanes", &w->lane.shape,
                              "lanes are [B, S], tokens a slice of them");
    flat = d9d_tensor_reshape(&w->lane, D9D_SHAPE(all));
    *out = d9d_tensor_rows(&flat, first, tokens);
    d9d_tensor_release(&flat);
    return D9D_OK;
}

/* Places are moved as words of 32 bits. */
static d9d_status places_find(d9d_tape *t, const d9d_routing *r, const d9d_tensor *table,
                              const d9d_tensor *places)
{
    const int64_t tokens = r->expert.shape.dim[0], k = r->expert.shape.dim[1];
    const int64_t width = table->shape.dim[1];
    d9d_tensor lane, rows = {0};
    d9d_status st;

    D9D_TRY(lanes_of(t, tokens, &lane));
    D9D_TRY_OR(st, d9d_tensor_alloc(d9d_tape_device(t), D9D_F32, D9D_SHAPE(tokens, width), &rows),
               out);
    D9D_TRY_OR(st,
               D9DI_KERNEL(t, elementwise->embedding, D9D_F32, d9d_tensor_data(&rows),
                           d9d_tensor_data(&lane), d9d_tensor_data(table), tokens, 0,
                           D9D_EXPERT_LANES, width, false),
               out);
    st = D9DI_KERNEL(t, math->gather, D9D_F32, d9d_tensor_data(places), d9d_tensor_data(&rows),
                     d9d_tensor_data(&r->expert), tokens, width, k);
out:
    d9d_tensor_release(&rows);
    d9d_tensor_release(&lane);
    return st;
}

d9d_status d9d_op_route_copies(d9d_tape *t, const d9d_routing *r, const d9d_tensor *table,
                               int64_t places, d9d_routing *out)
{
    const d9d_shape *s = &r->expert.shape;
    d9d_routing placed = {0};
    d9d_status st;

    D9D_TRY(d9di_op_check("route_copies", "the expert ids", &r->expert, D9D_I32));
    D9D_TRY(d9di_op_check("route_copies", "the table", table, D9D_I32));
    if (r->limited || table->shape.dim[0] != D9D_EXPERT_LANES ||
        table->shape.dim[1] < r->offset.shape.dim[0] - 1 || table->shape.dim[1] % 4 != 0)
        return d9di_op_misfit("route_copies", "the table", &table->shape, "the expert ids", s,
                              "a table has a row for each lane and a column for each expert, and "
                              "experts have no capacity");
    D9D_TRY_OR(st, d9di_routing_alloc(d9d_tape_device(t), s->dim[0], places, s->dim[1], &placed),
               out);
    D9D_TRY_OR(st, places_find(t, r, table, &placed.expert), out);
    st = choices_sort(t, &placed, places);
out:
    if (st == D9D_OK)
        *out = placed;
    else
        d9d_routing_release(&placed);
    return st;
}

/* The choices in [first, first + n), counted from there; they have this many rows. */
static d9d_status choices_take(d9d_tape *t, const d9d_routing *r, const d9d_tensor *number,
                               int64_t first, int64_t n, int64_t rows, d9d_routing *out)
{
    const d9d_shape *s = &r->expert.shape;
    const int64_t choices = d9d_tensor_numel(&r->expert);
    d9d_tensor all;

    D9D_TRY(d9di_routing_alloc(d9d_tape_device(t), s->dim[0], n, s->dim[1], out));
    D9D_TRY(D9DI_KERNEL(t, elementwise->fill, D9D_I32, d9d_tensor_data(&out->expert), choices, -1));
    D9D_TRY(D9DI_KERNEL(t, elementwise->embedding, D9D_F32, d9d_tensor_data(&out->expert),
                        d9d_tensor_data(&r->expert), d9d_tensor_data(number), choices, first, n, 1,
                        false));
    D9D_TRY(choices_sort(t, out, n));
    out->partial = true;
    all = out->source;
    out->source = d9d_tensor_rows(&all, 0, rows);
    d9d_tensor_release(&all);
    return D9D_OK;
}

d9d_status d9d_op_split_copies(d9d_tape *t, const d9d_routing *r, const d9d_tensor *number,
                               int64_t copies, d9d_routing *own, d9d_routing *copied)
{
    const int64_t per = (r->offset.shape.dim[0] - 1) / 2, rows = d9di_routing_rows(r);
    d9d_routing a = {0}, b = {0};
    d9d_status st;

    D9D_TRY(d9di_op_check("split_copies", "the expert ids", &r->expert, D9D_I32));
    D9D_TRY(d9di_op_check("split_copies", "the numbers", number, D9D_I32));
    if (copies > per || number->shape.dim[0] < per || r->lower > rows)
        return d9di_op_misfit("split_copies", "the numbers", &number->shape, "the offsets",
                              &r->offset.shape, "the upper half of the places is for copies");
    D9D_TRY_OR(st, choices_take(t, r, number, 0, per, r->lower, &a), out);
    st = choices_take(t, r, number, per, copies, rows - r->lower, &b);
out:
    if (st == D9D_OK) {
        *own = a;
        *copied = b;
    } else {
        d9d_routing_release(&a);
        d9d_routing_release(&b);
    }
    return st;
}
