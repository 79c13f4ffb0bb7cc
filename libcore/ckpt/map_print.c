/* map_print.c - a plan for people, programs and graphviz.  See d9d/ckpt/mapper.h.
 *
 * The three formats walk the same groups; a format is a table of functions. */
#include <inttypes.h>
#include <stdlib.h>

#include "ckpt/map_plan.h"
#include "d9d/base/json.h"

/* One group: the steps and, in order of declaration, its inputs and outputs. */
struct group {
    uint32_t number;
    const uint32_t *steps, *inputs, *outputs; /* of the mapper; values; outputs of the plan */
    size_t n_steps, n_inputs, n_outputs;
    uint64_t bytes; /* of its outputs */
};

struct format {
    const char *name;
    d9d_status (*begin)(const d9d_map_plan *p, d9d_buf *b);
    d9d_status (*group)(const d9d_map_plan *p, const struct group *g, d9d_buf *b);
    d9d_status (*end)(const d9d_map_plan *p, d9d_buf *b);
};

static const d9di_map_value *value_of(const d9d_map_plan *p, uint32_t v)
{
    return &p->m->values.data[v];
}

/* An input is one box: the whole of its source. */
static size_t source_of(const d9d_map_plan *p, uint32_t v)
{
    return p->views[v].boxes[0].source;
}

static const d9d_st_tensor *input_of(const d9d_map_plan *p, uint32_t v)
{
    return p->src.at(p->src.self, source_of(p, v));
}

static d9d_status put_text(d9d_buf *b, const char *s)
{
    return d9d_json_put_str(b, s, strlen(s));
}

/* --- text -------------------------------------------------------------------------- */

static d9d_status nothing(const d9d_map_plan *p, d9d_buf *b)
{
    (void)p;
    (void)b;
    return D9D_OK;
}

/* The kinds of steps in the order in which they are done. */
static d9d_status put_operations(const d9d_map_plan *p, const struct group *g, d9d_buf *b)
{
    d9d_buf one = {0}, last = {0};
    d9d_status st = D9D_OK;

    for (size_t i = 0; i < g->n_steps; i++) {
        one.len = 0;
        D9D_TRY_OR(st, d9di_map_step_print(&p->m->steps.data[g->steps[i]], &one), out);
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

static d9d_status text_group(const d9d_map_plan *p, const struct group *g, d9d_buf *b)
{
    char text[D9D_ST_DESCRIBE];

    D9D_TRY(d9d_buf_printf(b, "group %" PRIu32 ": ", g->number));
    D9D_TRY(put_operations(p, g, b));
    D9D_TRY(d9d_buf_printf(b, ": %" PRIu64 " bytes\n", g->bytes));
    for (size_t i = 0; i < g->n_inputs; i++) {
        const d9d_st_tensor *t = input_of(p, g->inputs[i]);

        D9D_TRY(d9d_buf_printf(b, "  < %s %s (%s)\n", t->name, d9d_st_describe(t, text),
                               p->src.place(p->src.self, source_of(p, g->inputs[i]))));
    }
    for (size_t i = 0; i < g->n_outputs; i++) {
        const d9d_st_tensor *t = &p->outputs[g->outputs[i]];

        D9D_TRY(d9d_buf_printf(b, "  > %s %s\n", t->name, d9d_st_describe(t, text)));
    }
    return D9D_OK;
}

static d9d_status text_end(const d9d_map_plan *p, d9d_buf *b)
{
    return d9d_buf_printf(b,
                          "%" PRIu32 " groups, %zu tensors in, %zu out, %" PRIu64
                          " bytes to write, %" PRIu64 " bytes of memory a job\n",
                          p->n_groups, p->m->inputs.len, p->n_outputs, p->bytes, p->peak);
}

/* --- JSON ---------------------------------------------------------------------------- */

static d9d_status put_tensor(d9d_buf *b, const d9d_st_tensor *t, bool first)
{
    D9D_TRY(d9d_buf_printf(b, "%s{\"name\": ", first ? "" : ", "));
    D9D_TRY(put_text(b, t->name));
    D9D_TRY(d9d_buf_printf(b, ", \"dtype\": \"%s\", \"shape\": [", d9d_dtype_word(t->dtype)));
    for (int d = 0; d < t->ndim; d++)
        D9D_TRY(d9d_buf_printf(b, "%s%" PRId64, d > 0 ? ", " : "", t->shape[d]));
    return d9d_buf_printf(b, "], \"bytes\": %" PRIu64, t->bytes);
}

static d9d_status put_names(const d9d_map_plan *p, const uint32_t *values, size_t n, d9d_buf *b)
{
    for (size_t i = 0; i < n; i++) {
        D9D_TRY(d9d_buf_printf(b, "%s", i > 0 ? ", " : ""));
        D9D_TRY(put_text(b, value_of(p, values[i])->name));
    }
    return D9D_OK;
}

static d9d_status json_begin(const d9d_map_plan *p, d9d_buf *b)
{
    (void)p;
    return d9d_buf_printf(b, "{\"schema\": \"d9d.map-plan.v1\", \"groups\": [");
}

static d9d_status json_steps(const d9d_map_plan *p, const struct group *g, d9d_buf *b)
{
    for (size_t i = 0; i < g->n_steps; i++) {
        const d9di_map_step *s = &p->m->steps.data[g->steps[i]];

        D9D_TRY(d9d_buf_printf(b, "%s{\"operation\": \"", i > 0 ? ", " : ""));
        D9D_TRY(d9di_map_step_print(s, b));
        D9D_TRY(d9d_buf_printf(b, "\", \"from\": ["));
        D9D_TRY(put_names(p, s->in, s->n_in, b));
        D9D_TRY(d9d_buf_printf(b, "], \"to\": ["));
        D9D_TRY(put_names(p, s->out, s->n_out, b));
        D9D_TRY(d9d_buf_printf(b, "]}"));
    }
    return D9D_OK;
}

static d9d_status json_group(const d9d_map_plan *p, const struct group *g, d9d_buf *b)
{
    D9D_TRY(d9d_buf_printf(
        b, "%s\n  {\"group\": %" PRIu32 ", \"bytes\": %" PRIu64 ",\n   \"inputs\": [",
        g->number > 0 ? "," : "", g->number, g->bytes));
    for (size_t i = 0; i < g->n_inputs; i++) {
        D9D_TRY(put_tensor(b, input_of(p, g->inputs[i]), i == 0));
        D9D_TRY(d9d_buf_printf(b, ", \"file\": "));
        D9D_TRY(put_text(b, p->src.place(p->src.self, source_of(p, g->inputs[i]))));
        D9D_TRY(d9d_buf_printf(b, "}"));
    }
    D9D_TRY(d9d_buf_printf(b, "],\n   \"steps\": ["));
    D9D_TRY(json_steps(p, g, b));
    D9D_TRY(d9d_buf_printf(b, "],\n   \"outputs\": ["));
    for (size_t i = 0; i < g->n_outputs; i++) {
        D9D_TRY(put_tensor(b, &p->outputs[g->outputs[i]], i == 0));
        D9D_TRY(d9d_buf_printf(b, "}"));
    }
    return d9d_buf_printf(b, "]}");
}

static d9d_status json_end(const d9d_map_plan *p, d9d_buf *b)
{
    return d9d_buf_printf(b,
                          "],\n \"tensors_in\": %zu, \"tensors_out\": %zu, \"bytes\": %" PRIu64
                          ", \"memory_bytes_per_job\": %" PRIu64 "}\n",
                          p->m->inputs.len, p->n_outputs, p->bytes, p->peak);
}

/* --- DOT -------------------------------------------------------------------------------- */

static d9d_status dot_begin(const d9d_map_plan *p, d9d_buf *b)
{
    (void)p;
    return d9d_buf_printf(b, "digraph plan {\n  rankdir = LR;\n  node [shape = box];\n");
}

/* Values are boxes v<n>, steps ellipses s<n>; a value between two steps is an edge. */
static d9d_status dot_value(const d9d_map_plan *p, uint32_t v, const d9d_st_tensor *t, d9d_buf *b)
{
    char text[D9D_ST_DESCRIBE];

    D9D_TRY(d9d_buf_printf(b, "  v%" PRIu32 " [label = ", v));
    D9D_TRY(put_text(b, value_of(p, v)->name));
    return d9d_buf_printf(b, ", xlabel = \"%s\"];\n", d9d_st_describe(t, text));
}

static d9d_status dot_group(const d9d_map_plan *p, const struct group *g, d9d_buf *b)
{
    for (size_t i = 0; i < g->n_inputs; i++)
        D9D_TRY(dot_value(p, g->inputs[i], input_of(p, g->inputs[i]), b));
    for (size_t i = 0; i < g->n_outputs; i++)
        D9D_TRY(dot_value(p, (uint32_t)d9di_map_number(&p->m->outputs, g->outputs[i]),
                          &p->outputs[g->outputs[i]], b));
    for (size_t i = 0; i < g->n_steps; i++) {
        const d9di_map_step *s = &p->m->steps.data[g->steps[i]];

        D9D_TRY(d9d_buf_printf(b, "  s%" PRIu32 " [shape = ellipse, label = \"", g->steps[i]));
        D9D_TRY(d9di_map_step_print(s, b));
        D9D_TRY(d9d_buf_printf(b, "\"];\n"));
        for (size_t k = 0; k < s->n_in; k++) {
            int32_t from = value_of(p, s->in[k])->producer;

            D9D_TRY(d9d_buf_printf(b, "  %c%" PRIu32 " -> s%" PRIu32 ";\n",
                                   from == D9DI_NONE ? 'v' : 's',
                                   from == D9DI_NONE ? s->in[k] : (uint32_t)from, g->steps[i]));
        }
        for (size_t k = 0; k < s->n_out; k++)
            if (value_of(p, s->out[k])->consumer == D9DI_NONE)
                D9D_TRY(
                    d9d_buf_printf(b, "  s%" PRIu32 " -> v%" PRIu32 ";\n", g->steps[i], s->out[k]));
    }
    return D9D_OK;
}

static d9d_status dot_end(const d9d_map_plan *p, d9d_buf *b)
{
    (void)p;
    return d9d_buf_printf(b, "}\n");
}

/* --- walking the groups ----------------------------------------------------------------- */

static const struct format formats[] = {
    {"text", nothing, text_group, text_end},
    {"json", json_begin, json_group, json_end},
    {"dot", dot_begin, dot_group, dot_end},
};

/* Numbers sorted by group, and where each group's begin: a counting sort. */
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

/* The group of the step that takes each input, or that gives each output. */
static d9d_status groups_of(const d9d_map_plan *p, const d9d_map *names, bool inputs, d9d_arena *a,
                            struct sorted *out)
{
    uint32_t *group = d9d_arena_alloc(a, (names->len + 1) * sizeof(*group));

    if (group == NULL)
        return D9D_FAIL(D9D_ENOMEM, "plan: out of memory");
    for (size_t i = 0; i < names->len; i++) {
        const d9di_map_value *v = value_of(p, (uint32_t)d9di_map_number(names, i));

        group[i] = p->group[inputs ? v->consumer : v->producer];
    }
    return sort_by_group(group, names->len, p->n_groups, a, out);
}

static d9d_status print_groups(const d9d_map_plan *p, const struct format *f, d9d_arena *a,
                               d9d_buf *b)
{
    struct sorted steps, inputs, outputs;

    D9D_TRY(sort_by_group(p->group, p->m->steps.len, p->n_groups, a, &steps));
    D9D_TRY(groups_of(p, &p->m->inputs, true, a, &inputs));
    D9D_TRY(groups_of(p, &p->m->outputs, false, a, &outputs));
    for (size_t i = 0; i < p->m->inputs.len; i++) /* from numbers of inputs to values */
        inputs.items[i] = (uint32_t)d9di_map_number(&p->m->inputs, inputs.items[i]);
    D9D_TRY(f->begin(p, b));
    for (uint32_t g = 0; g < p->n_groups; g++) {
        struct group x = {g,
                          steps.items + steps.first[g],
                          inputs.items + inputs.first[g],
                          outputs.items + outputs.first[g],
                          steps.first[g + 1] - steps.first[g],
                          inputs.first[g + 1] - inputs.first[g],
                          outputs.first[g + 1] - outputs.first[g],
                          0};

        for (size_t i = 0; i < x.n_outputs; i++)
            x.bytes += p->outputs[x.outputs[i]].bytes;
        D9D_TRY(f->group(p, &x, b));
    }
    return f->end(p, b);
}

d9d_status d9d_plan_print(const d9d_map_plan *p, const char *format, d9d_buf *out)
{
    d9d_arena a = {0};
    d9d_status st;
    size_t i;

    for (i = 0; i < sizeof(formats) / sizeof(formats[0]); i++)
        if (strcmp(formats[i].name, format) == 0)
            break;
    if (i == sizeof(formats) / sizeof(formats[0]))
        return D9D_FAIL(D9D_EINVAL, "plan: unknown format \"%s\"", format);
    st = print_groups(p, &formats[i], &a, out);
    d9d_arena_release(&a);
    return st;
}
