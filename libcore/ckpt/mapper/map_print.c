/* map_print.c - prints a plan as text, JSON or DOT (graphviz).  See d9d/ckpt/mapper/mapper.h.
 *
 * All formats walk the same groups; a format is a table of functions. */
#include "ckpt/mapper/map_print.h"

#include <inttypes.h>
#include <stdlib.h>

#include "d9d/base/json.h"
#include "d9d/base/num_format.h"

static const d9di_mapper_value *input_value(const d9d_map_plan *p, uint32_t v)
{
    return &p->m->values.data[v];
}

static d9d_status put_text(d9d_buf *b, const char *s)
{
    return d9d_json_put_str(b, s, strlen(s));
}

static d9d_status put_dims(d9d_buf *b, const int64_t *x, int n)
{
    D9D_TRY(d9d_buf_printf(b, "["));
    for (int d = 0; d < n; d++)
        D9D_TRY(d9d_buf_printf(b, "%s%" PRId64, d > 0 ? ", " : "", x[d]));
    return d9d_buf_printf(b, "]");
}

/* --- text -------------------------------------------------------------------------- */

static d9d_status print_nothing(d9di_map_print *x)
{
    (void)x;
    return D9D_OK;
}

/* Prints the kinds of steps in the order of execution. */
d9d_status d9di_map_print_operations(const d9d_map_plan *p, const d9di_map_print_group *g,
                                     d9d_buf *b)
{
    d9d_buf one = {0}, last = {0};
    d9d_status st = D9D_OK;

    for (size_t i = 0; i < g->n_steps; i++) {
        one.len = 0;
        D9D_TRY_OR(st, d9di_mapper_step_print(&p->m->steps.data[g->steps[i]], &one), out);
        if (last.data != NULL && strcmp(one.data, last.data) == 0)
            continue;
        D9D_TRY_OR(st, d9d_buf_printf(b, "%s%s", i > 0 ? ", " : "", one.data), out);
        last.len = 0;
        D9D_TRY_OR(st, d9d_buf_append(&last, one.data, one.len), out);
    }
out:
    d9d_buf_release(&one);
    d9d_buf_release(&last);
    return st;
}

/* "  | [0:1, 0:20] of a.weight from element 0 by [0, 1], cast to bfloat16" */
/* "2:6", or "1:10:2" for every second index of 1 to 9. */
static d9d_status text_range(d9d_buf *b, const d9di_mapper_box *box, int d)
{
    D9D_TRY(d9d_buf_printf(b, "%s%" PRId64 ":%" PRId64, d > 0 ? ", " : "", box->start[d],
                           box->start[d] + (box->size[d] - 1) * box->step[d] + 1));
    return box->step[d] != 1 ? d9d_buf_printf(b, ":%" PRId64, box->step[d]) : D9D_OK;
}

static d9d_status text_box(d9di_map_print *x, const d9di_mapper_box *box, int ndim)
{
    D9D_TRY(d9d_buf_printf(x->out, "  | ["));
    for (int d = 0; d < ndim; d++)
        D9D_TRY(text_range(x->out, box, d));
    D9D_TRY(d9d_buf_printf(x->out, "] of %s from element %" PRId64 " by ",
                           x->p->src.at(x->p->src.self, box->source)->name, box->base));
    D9D_TRY(put_dims(x->out, box->stride, ndim));
    for (int i = 0; i < box->n_casts; i++)
        D9D_TRY(d9d_buf_printf(x->out, ", cast to %s", d9d_dtype_name(box->casts[i])));
    return d9d_buf_printf(x->out, "\n");
}

static d9d_status text_group(d9di_map_print *x, const d9di_map_print_group *g)
{
    const d9d_map_plan *p = x->p;
    char text[D9D_SAFETENSORS_DESCRIBE];

    D9D_TRY(d9d_buf_printf(x->out, "group %" PRIu32 ": ", g->number));
    D9D_TRY(d9di_map_print_operations(p, g, x->out));
    D9D_TRY(d9d_buf_printf(x->out, ": %" PRIu64 " bytes\n", g->written));
    for (size_t i = 0; i < g->n_inputs; i++) {
        const d9d_safetensors_tensor *t = d9di_map_print_input(p, g->inputs[i]);
        const char *file = d9di_map_print_path(p, g->inputs[i]);

        D9D_TRY(d9d_buf_printf(x->out, "  < %s %s", t->name, d9d_safetensors_describe(t, text)));
        if (*file != '\0')
            D9D_TRY(d9d_buf_printf(x->out, " (%s at %" PRIu64 ")", file, t->offset));
        D9D_TRY(d9d_buf_printf(x->out, "\n"));
    }
    for (size_t i = 0; i < g->n_outputs; i++) {
        const d9d_safetensors_tensor *t = &p->outputs[g->outputs[i]];
        const d9di_mapper_view *v = p->out_views[g->outputs[i]];

        D9D_TRY(d9d_buf_printf(x->out, "  > %s %s\n", t->name, d9d_safetensors_describe(t, text)));
        for (size_t k = 0; k < v->n && (x->flags & D9D_MAP_PLAN_BOXES); k++)
            D9D_TRY(text_box(x, &v->boxes[k], v->ndim));
    }
    return D9D_OK;
}

d9d_status d9di_map_print_totals(d9di_map_print *x)
{
    return d9d_buf_printf(x->out,
                          "%" PRIu32 " group%s, %zu tensor%s in, %zu out, %" PRIu64
                          " bytes to read, %" PRIu64 " to write, %" PRIu64
                          " bytes of memory a job\n",
                          x->p->n_groups, D9D_PLURAL(x->p->n_groups), x->p->m->inputs.len,
                          D9D_PLURAL(x->p->m->inputs.len), x->p->n_outputs, x->read, x->p->bytes,
                          d9d_map_plan_peak_bytes(x->p, 1));
}

/* --- JSON ---------------------------------------------------------------------------- */

static d9d_status put_tensor(d9d_buf *b, const d9d_safetensors_tensor *t, bool first)
{
    D9D_TRY(d9d_buf_printf(b, "%s{\"name\": ", first ? "" : ", "));
    D9D_TRY(put_text(b, t->name));
    D9D_TRY(d9d_buf_printf(b, ", \"dtype\": \"%s\", \"shape\": ", d9d_dtype_name(t->dtype)));
    D9D_TRY(put_dims(b, t->shape, t->ndim));
    return d9d_buf_printf(b, ", \"bytes\": %" PRIu64, t->bytes);
}

static d9d_status put_names(const d9d_map_plan *p, const uint32_t *values, size_t n, d9d_buf *b)
{
    for (size_t i = 0; i < n; i++) {
        D9D_TRY(d9d_buf_printf(b, "%s", i > 0 ? ", " : ""));
        D9D_TRY(put_text(b, input_value(p, values[i])->name));
    }
    return D9D_OK;
}

static d9d_status json_begin(d9di_map_print *x)
{
    return d9d_buf_printf(x->out, "{\"schema\": \"d9d.map-plan.v1\", \"groups\": [");
}

static d9d_status json_inputs(d9di_map_print *x, const d9di_map_print_group *g)
{
    for (size_t i = 0; i < g->n_inputs; i++) {
        const d9d_safetensors_tensor *t = d9di_map_print_input(x->p, g->inputs[i]);

        D9D_TRY(put_tensor(x->out, t, i == 0));
        D9D_TRY(d9d_buf_printf(x->out, ", \"file\": "));
        D9D_TRY(put_text(x->out, d9di_map_print_path(x->p, g->inputs[i])));
        D9D_TRY(d9d_buf_printf(x->out, ", \"offset\": %" PRIu64 "}", t->offset));
    }
    return D9D_OK;
}

static d9d_status json_steps(d9di_map_print *x, const d9di_map_print_group *g)
{
    for (size_t i = 0; i < g->n_steps; i++) {
        const d9di_mapper_step *s = &x->p->m->steps.data[g->steps[i]];

        D9D_TRY(d9d_buf_printf(x->out, "%s{\"operation\": \"", i > 0 ? ", " : ""));
        D9D_TRY(d9di_mapper_step_print(s, x->out));
        D9D_TRY(d9d_buf_printf(x->out, "\", \"from\": ["));
        D9D_TRY(put_names(x->p, s->in, s->n_in, x->out));
        D9D_TRY(d9d_buf_printf(x->out, "], \"to\": ["));
        D9D_TRY(put_names(x->p, s->out, s->n_out, x->out));
        D9D_TRY(d9d_buf_printf(x->out, "]}"));
    }
    return D9D_OK;
}

static d9d_status json_box(d9di_map_print *x, const d9di_mapper_box *box, int ndim)
{
    d9d_buf *b = x->out;

    D9D_TRY(d9d_buf_printf(b, "{\"start\": "));
    D9D_TRY(put_dims(b, box->start, ndim));
    D9D_TRY(d9d_buf_printf(b, ", \"size\": "));
    D9D_TRY(put_dims(b, box->size, ndim));
    D9D_TRY(d9d_buf_printf(b, ", \"step\": "));
    D9D_TRY(put_dims(b, box->step, ndim));
    D9D_TRY(d9d_buf_printf(b, ", \"source\": "));
    D9D_TRY(put_text(b, x->p->src.at(x->p->src.self, box->source)->name));
    D9D_TRY(d9d_buf_printf(b, ", \"first\": %" PRId64 ", \"stride\": ", box->base));
    D9D_TRY(put_dims(b, box->stride, ndim));
    D9D_TRY(d9d_buf_printf(b, ", \"casts\": ["));
    for (int i = 0; i < box->n_casts; i++)
        D9D_TRY(d9d_buf_printf(b, "%s\"%s\"", i > 0 ? ", " : "", d9d_dtype_name(box->casts[i])));
    return d9d_buf_printf(b, "]}");
}

static d9d_status json_outputs(d9di_map_print *x, const d9di_map_print_group *g)
{
    for (size_t i = 0; i < g->n_outputs; i++) {
        const d9di_mapper_view *v = x->p->out_views[g->outputs[i]];

        D9D_TRY(put_tensor(x->out, &x->p->outputs[g->outputs[i]], i == 0));
        if (x->flags & D9D_MAP_PLAN_BOXES) {
            D9D_TRY(d9d_buf_printf(x->out, ", \"boxes\": ["));
            for (size_t k = 0; k < v->n; k++) {
                D9D_TRY(d9d_buf_printf(x->out, "%s", k > 0 ? ", " : ""));
                D9D_TRY(json_box(x, &v->boxes[k], v->ndim));
            }
            D9D_TRY(d9d_buf_printf(x->out, "]"));
        }
        D9D_TRY(d9d_buf_printf(x->out, "}"));
    }
    return D9D_OK;
}

static d9d_status json_group(d9di_map_print *x, const d9di_map_print_group *g)
{
    D9D_TRY(d9d_buf_printf(x->out,
                           "%s\n  {\"group\": %" PRIu32 ", \"read\": %" PRIu64
                           ", \"written\": %" PRIu64 ",\n   \"inputs\": [",
                           g->number > 0 ? "," : "", g->number, g->read, g->written));
    D9D_TRY(json_inputs(x, g));
    D9D_TRY(d9d_buf_printf(x->out, "],\n   \"steps\": ["));
    D9D_TRY(json_steps(x, g));
    D9D_TRY(d9d_buf_printf(x->out, "],\n   \"outputs\": ["));
    D9D_TRY(json_outputs(x, g));
    return d9d_buf_printf(x->out, "]}");
}

static d9d_status json_end(d9di_map_print *x)
{
    return d9d_buf_printf(x->out,
                          "],\n \"tensors_in\": %zu, \"tensors_out\": %zu, \"read\": %" PRIu64
                          ", \"written\": %" PRIu64 ", \"memory_bytes_per_job\": %" PRIu64 "}\n",
                          x->p->m->inputs.len, x->p->n_outputs, x->read, x->p->bytes,
                          d9d_map_plan_peak_bytes(x->p, 1));
}

/* --- DOT -------------------------------------------------------------------------------- */

static d9d_status dot_begin(d9di_map_print *x)
{
    return d9d_buf_printf(x->out, "digraph plan {\n  rankdir = LR;\n  node [shape = box];\n");
}

/* Values are boxes v<n>, steps ellipses s<n>; a value between two steps is an edge. */
static d9d_status dot_value(const d9d_map_plan *p, uint32_t v, const d9d_safetensors_tensor *t,
                            d9d_buf *b)
{
    char text[D9D_SAFETENSORS_DESCRIBE];

    D9D_TRY(d9d_buf_printf(b, "  v%" PRIu32 " [label = ", v));
    D9D_TRY(put_text(b, input_value(p, v)->name));
    return d9d_buf_printf(b, ", xlabel = \"%s\"];\n", d9d_safetensors_describe(t, text));
}

static d9d_status dot_step(const d9d_map_plan *p, uint32_t number, d9d_buf *b)
{
    const d9di_mapper_step *s = &p->m->steps.data[number];

    D9D_TRY(d9d_buf_printf(b, "  s%" PRIu32 " [shape = ellipse, label = \"", number));
    D9D_TRY(d9di_mapper_step_print(s, b));
    D9D_TRY(d9d_buf_printf(b, "\"];\n"));
    for (size_t k = 0; k < s->n_in; k++) {
        int32_t from = input_value(p, s->in[k])->producer;

        D9D_TRY(d9d_buf_printf(b, "  %c%" PRIu32 " -> s%" PRIu32 ";\n",
                               from == D9DI_NONE ? 'v' : 's',
                               from == D9DI_NONE ? s->in[k] : (uint32_t)from, number));
    }
    for (size_t k = 0; k < s->n_out; k++)
        if (input_value(p, s->out[k])->consumer == D9DI_NONE)
            D9D_TRY(d9d_buf_printf(b, "  s%" PRIu32 " -> v%" PRIu32 ";\n", number, s->out[k]));
    return D9D_OK;
}

static d9d_status dot_group(d9di_map_print *x, const d9di_map_print_group *g)
{
    const d9d_map_plan *p = x->p;

    for (size_t i = 0; i < g->n_inputs; i++)
        D9D_TRY(dot_value(p, (uint32_t)d9di_mapper_entry_value(&p->m->inputs, g->inputs[i]),
                          d9di_map_print_input(p, g->inputs[i]), x->out));
    for (size_t i = 0; i < g->n_outputs; i++)
        D9D_TRY(dot_value(p, (uint32_t)d9di_mapper_entry_value(&p->m->outputs, g->outputs[i]),
                          &p->outputs[g->outputs[i]], x->out));
    for (size_t i = 0; i < g->n_steps; i++)
        D9D_TRY(dot_step(p, g->steps[i], x->out));
    return D9D_OK;
}

static d9d_status dot_end(d9di_map_print *x)
{
    return d9d_buf_printf(x->out, "}\n");
}

/* --- walking the groups ----------------------------------------------------------------- */

/* Indices sorted by group (counting sort), and the first one of each group. */
struct sorted {
    uint32_t *items, *first; /* [n], [n_groups + 1] */
};

static d9d_status sort_by_group(const uint32_t *group, size_t n, uint32_t n_groups, d9d_arena *a,
                                struct sorted *out)
{
    uint32_t *next = d9d_arena_alloc(a, ((size_t)n_groups + 1) * sizeof(*next));

    out->items = d9d_arena_alloc(a, (n + 1) * sizeof(*out->items));
    out->first = d9d_arena_alloc(a, ((size_t)n_groups + 1) * sizeof(*out->first));
    if (next == NULL || out->items == NULL || out->first == NULL)
        return D9D_FAIL(D9D_ENOMEM, "plan: out of memory");
    for (size_t i = 0; i < n; i++)
        out->first[group[i] + 1]++;
    for (uint32_t g = 0; g < n_groups; g++)
        out->first[g + 1] += out->first[g];
    memcpy(next, out->first, ((size_t)n_groups + 1) * sizeof(*next));
    for (size_t i = 0; i < n; i++)
        out->items[next[group[i]]++] = (uint32_t)i;
    return D9D_OK;
}

/* The group of the step that consumes each input or produces each output. */
static d9d_status groups_of(const d9d_map_plan *p, const d9d_map *names, bool inputs, d9d_arena *a,
                            struct sorted *out)
{
    uint32_t *group = d9d_arena_alloc(a, (names->len + 1) * sizeof(*group));

    if (group == NULL)
        return D9D_FAIL(D9D_ENOMEM, "plan: out of memory");
    for (size_t i = 0; i < names->len; i++) {
        const d9di_mapper_value *v = input_value(p, (uint32_t)d9di_mapper_entry_value(names, i));

        group[i] = p->group[inputs ? v->consumer : v->producer];
    }
    return sort_by_group(group, names->len, p->n_groups, a, out);
}

/* Source bytes that an output is read from. */
static uint64_t bytes_read(const d9d_map_plan *p, const d9di_mapper_view *v)
{
    uint64_t n = 0;

    for (size_t i = 0; i < v->n; i++) {
        const d9di_mapper_box *b = &v->boxes[i];
        uint64_t size = d9d_dtype_size(p->src.at(p->src.self, b->source)->dtype);

        for (int d = 0; d < v->ndim; d++)
            size *= (uint64_t)b->size[d];
        n += size;
    }
    return n;
}

static d9d_status print_groups(d9di_map_print *x, const d9di_map_print_format *f)
{
    const d9d_map_plan *p = x->p;
    struct sorted steps, inputs, outputs;

    D9D_TRY(sort_by_group(p->group, p->m->steps.len, p->n_groups, &x->arena, &steps));
    D9D_TRY(groups_of(p, &p->m->inputs, true, &x->arena, &inputs));
    D9D_TRY(groups_of(p, &p->m->outputs, false, &x->arena, &outputs));
    D9D_TRY(f->begin(x));
    for (uint32_t g = 0; g < p->n_groups; g++) {
        d9di_map_print_group one = {.number = g,
                                    .steps = steps.items + steps.first[g],
                                    .inputs = inputs.items + inputs.first[g],
                                    .outputs = outputs.items + outputs.first[g],
                                    .n_steps = steps.first[g + 1] - steps.first[g],
                                    .n_inputs = inputs.first[g + 1] - inputs.first[g],
                                    .n_outputs = outputs.first[g + 1] - outputs.first[g]};

        for (size_t i = 0; i < one.n_outputs; i++) {
            one.written += p->outputs[one.outputs[i]].bytes;
            one.read += bytes_read(p, p->out_views[one.outputs[i]]);
        }
        x->read += one.read;
        D9D_TRY(f->group(x, &one));
    }
    return f->end(x);
}

static const d9di_map_print_format text_format = {"text", print_nothing, text_group,
                                                  d9di_map_print_totals};
static const d9di_map_print_format json_format = {"json", json_begin, json_group, json_end};
static const d9di_map_print_format dot_format = {"dot", dot_begin, dot_group, dot_end};

static const d9di_map_print_format *pick_format(const char *name, unsigned flags)
{
    const d9di_map_print_format *const formats[] = {
        flags & D9D_MAP_PLAN_ALL ? &text_format : &d9di_map_print_summary, &json_format,
        &dot_format};

    for (size_t i = 0; i < sizeof(formats) / sizeof(formats[0]); i++)
        if (strcmp(formats[i]->name, name) == 0)
            return formats[i];
    return NULL;
}

d9d_status d9d_map_plan_print(const d9d_map_plan *p, const char *format, unsigned flags,
                              d9d_buf *out)
{
    const d9di_map_print_format *f = pick_format(format, flags);
    d9di_map_print x = {.p = p, .flags = flags, .out = out};
    d9d_status st;

    if (f == NULL)
        return D9D_FAIL(D9D_EINVAL, "plan: unknown format \"%s\"", format);
    st = print_groups(&x, f);
    d9di_map_summary_free(x.summary);
    d9d_arena_release(&x.arena);
    return st;
}
