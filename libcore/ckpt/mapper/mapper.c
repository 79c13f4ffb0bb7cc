/* mapper.c - declaring and composing mappers.  See d9d/ckpt/mapper/mapper.h. */
#include <assert.h>
#include <inttypes.h>
#include <stdlib.h>

#include "ckpt/mapper/map_graph.h"

static d9d_status no_memory(void)
{
    return D9D_FAIL(D9D_ENOMEM, "mapper: out of memory");
}

d9d_status d9d_mapper_create(d9d_mapper **out)
{
    d9d_mapper *m = calloc(1, sizeof(*m));

    if (m == NULL)
        return no_memory();
    *out = m;
    return D9D_OK;
}

void d9d_mapper_free(d9d_mapper *m)
{
    if (m == NULL)
        return;
    D9D_VEC_RELEASE(&m->values);
    D9D_VEC_RELEASE(&m->steps);
    d9d_map_release(&m->inputs);
    d9d_map_release(&m->outputs);
    d9d_arena_release(&m->arena);
    free(m);
}

/* --- values ------------------------------------------------------------------ */

static d9d_status add_value(d9d_mapper *m, const char *name, uint32_t *out)
{
    char *copy = d9d_arena_strdup(&m->arena, name);

    if (copy == NULL || m->values.len >= INT32_MAX)
        return no_memory();
    D9D_TRY(D9D_VEC_PUSH(&m->values, (d9di_mapper_value){copy, D9DI_NONE, D9DI_NONE, NULL}));
    *out = (uint32_t)(m->values.len - 1);
    return D9D_OK;
}

static void *to_pointer(size_t value)
{
    return (void *)(uintptr_t)(value + 1);
}

static d9d_status add_input(d9d_map *inputs, const char *name, size_t value)
{
    if (d9d_map_has(inputs, name, strlen(name)))
        return D9D_FAIL(D9D_ECONFIG, "mapper: tensor %s is taken twice", name);
    return d9d_map_put(inputs, name, strlen(name), to_pointer(value));
}

static d9d_status add_output(d9d_map *outputs, const char *name, size_t value)
{
    if (d9d_map_has(outputs, name, strlen(name)))
        return D9D_FAIL(D9D_ECONFIG, "mapper: tensor %s is given twice", name);
    return d9d_map_put(outputs, name, strlen(name), to_pointer(value));
}

static size_t find_value(const d9d_map *map, const char *name, bool *found)
{
    void *v = d9d_map_get(map, name, strlen(name));

    *found = v != NULL;
    return *found ? (size_t)(uintptr_t)v - 1 : 0;
}

/* --- steps --------------------------------------------------------------------- */

/* Copies the list, which may belong to the caller or to another mapper's arena. */
static d9d_status copy_list(d9d_mapper *m, d9di_mapper_args *args)
{
    int64_t *copy;

    if (args->n == 0)
        return D9D_OK;
    copy = d9d_arena_alloc(&m->arena, args->n * sizeof(*copy));
    if (copy == NULL)
        return no_memory();
    memcpy(copy, args->list, args->n * sizeof(*copy));
    args->list = copy;
    return D9D_OK;
}

static d9d_status check_sizes(const char *name, const d9di_mapper_args *args)
{
    for (size_t i = 0; i < args->n; i++)
        if (args->list[i] < 0)
            return D9D_FAIL(D9D_ECONFIG, "mapper: cannot split %s into a part of size %" PRId64,
                            name, args->list[i]);
    return D9D_OK;
}

/* One size at most may be -1, what remains. */
static d9d_status check_unflatten(const char *name, const d9di_mapper_args *args)
{
    size_t n_open = 0;

    if (args->n == 0)
        return D9D_FAIL(D9D_ECONFIG, "mapper: cannot unflatten %s into no dimensions", name);
    for (size_t i = 0; i < args->n; i++) {
        n_open += args->list[i] == -1 ? 1 : 0;
        if (args->list[i] < -1)
            return D9D_FAIL(D9D_ECONFIG,
                            "mapper: cannot unflatten %s into a dimension of size %" PRId64, name,
                            args->list[i]);
    }
    if (n_open > 1)
        return D9D_FAIL(D9D_ECONFIG, "mapper: cannot unflatten %s into %zu dimensions of size -1",
                        name, n_open);
    return D9D_OK;
}

/* Checks a mesh and a coordinate; *size: number of coordinates. */
static d9d_status check_mesh(const char *name, const d9di_mapper_args *args, uint64_t *size)
{
    *size = 1;
    for (size_t k = 0; k < args->n / D9DI_AXIS_LEN; k++) {
        const int64_t *axis = args->list + k * D9DI_AXIS_LEN;
        const int64_t parts = axis[D9DI_AXIS_SIZE], at = axis[D9DI_AXIS_COORD];

        if (parts < 1 || !d9d_checked_mul_u64(*size, (uint64_t)parts, size))
            return D9D_FAIL(D9D_ECONFIG,
                            "mapper: %s: dimension %zu of the mesh has the size %" PRId64, name, k,
                            parts);
        if (at < 0 || at >= parts)
            return D9D_FAIL(D9D_ECONFIG,
                            "mapper: %s: coordinate %" PRId64
                            " in dimension %zu of the mesh, which "
                            "has the size %" PRId64,
                            name, at, k, parts);
    }
    return D9D_OK;
}

static d9d_status check_args(d9di_mapper_op_kind kind, const char *in, size_t n_in, const char *out,
                             const d9di_mapper_args *args)
{
    uint64_t size;

    if (kind == D9DI_SPLIT)
        return check_sizes(in, args);
    if (kind == D9DI_UNFLATTEN)
        return check_unflatten(in, args);
    if (kind == D9DI_DISTRIBUTE)
        return check_mesh(in, args, &size);
    if (kind != D9DI_GATHER)
        return D9D_OK;
    D9D_TRY(check_mesh(out, args, &size));
    if (size != n_in)
        return D9D_FAIL(D9D_ECONFIG, "mapper: %s: %zu parts to gather from a mesh of %" PRIu64, out,
                        n_in, size);
    return D9D_OK;
}

d9d_status d9di_mapper_add(d9d_mapper *m, d9di_mapper_op_kind kind, const char *const *in,
                           size_t n_in, const char *const *out, size_t n_out,
                           const d9di_mapper_args *args)
{
    d9di_mapper_step s = {.op = &d9di_mapper_ops[kind],
                          .args = args != NULL ? *args : (d9di_mapper_args){0},
                          .n_in = (uint32_t)n_in,
                          .n_out = (uint32_t)n_out};
    int32_t number = (int32_t)m->steps.len;

    if (n_in == 0 || (n_out == 0 && kind != D9DI_DROP))
        return D9D_FAIL(D9D_EINVAL, "mapper: %s of no tensors", s.op->name);
    if (n_in > INT32_MAX || n_out > INT32_MAX || m->steps.len >= INT32_MAX)
        return no_memory();
    D9D_TRY(check_args(kind, *in, n_in, n_out > 0 ? *out : "", &s.args));
    D9D_TRY(copy_list(m, &s.args));
    s.in = d9d_arena_alloc(&m->arena, (n_in + n_out) * sizeof(*s.in));
    if (s.in == NULL)
        return no_memory();
    s.out = s.in + n_in;
    for (size_t i = 0; i < n_in; i++) {
        D9D_TRY(add_value(m, in[i], &s.in[i]));
        m->values.data[s.in[i]].consumer = number;
        D9D_TRY(add_input(&m->inputs, in[i], s.in[i]));
    }
    for (size_t i = 0; i < n_out; i++) {
        D9D_TRY(add_value(m, out[i], &s.out[i]));
        m->values.data[s.out[i]].producer = number;
        D9D_TRY(add_output(&m->outputs, out[i], s.out[i]));
    }
    return D9D_VEC_PUSH(&m->steps, s);
}

/* Adds a step from a tensor to one of the same name. */
static d9d_status add_inplace(d9d_mapper *m, d9di_mapper_op_kind kind, const char *name, int a,
                              int b)
{
    return d9di_mapper_add(m, kind, &name, 1, &name, 1, &(d9di_mapper_args){.a = a, .b = b});
}

d9d_status d9d_mapper_identity(d9d_mapper *m, const char *name)
{
    return add_inplace(m, D9DI_IDENTITY, name, 0, 0);
}

d9d_status d9d_mapper_rename(d9d_mapper *m, const char *from, const char *to)
{
    return d9di_mapper_add(m, strcmp(from, to) == 0 ? D9DI_IDENTITY : D9DI_RENAME, &from, 1, &to, 1,
                           NULL);
}

d9d_status d9d_mapper_select(d9d_mapper *m, const char *parent, const char *const *names, size_t n)
{
    d9d_buf from = {0};
    d9d_status st = D9D_OK;

    for (size_t i = 0; i < n && st == D9D_OK; i++) {
        from.len = 0;
        st = d9d_buf_printf(&from, "%s.%s", parent, names[i]);
        if (st == D9D_OK)
            st = d9d_mapper_rename(m, from.data, names[i]);
    }
    d9d_buf_release(&from);
    return st;
}

d9d_status d9d_mapper_transpose(d9d_mapper *m, const char *name, int d0, int d1)
{
    return add_inplace(m, D9DI_TRANSPOSE, name, d0, d1);
}

d9d_status d9d_mapper_stack(d9d_mapper *m, const char *const *from, size_t n, const char *to,
                            int dim)
{
    return d9di_mapper_add(m, D9DI_STACK, from, n, &to, 1, &(d9di_mapper_args){.a = dim});
}

d9d_status d9d_mapper_unstack(d9d_mapper *m, const char *from, const char *const *to, size_t n,
                              int dim)
{
    return d9di_mapper_add(m, D9DI_UNSTACK, &from, 1, to, n, &(d9di_mapper_args){.a = dim});
}

d9d_status d9d_mapper_concat(d9d_mapper *m, const char *const *from, size_t n, const char *to,
                             int dim)
{
    return d9di_mapper_add(m, D9DI_CONCAT, from, n, &to, 1, &(d9di_mapper_args){.a = dim});
}

d9d_status d9d_mapper_chunk(d9d_mapper *m, const char *from, const char *const *to, size_t n,
                            int dim)
{
    return d9di_mapper_add(m, D9DI_CHUNK, &from, 1, to, n, &(d9di_mapper_args){.a = dim});
}

d9d_status d9d_mapper_split(d9d_mapper *m, const char *from, const char *const *to,
                            const int64_t *sizes, size_t n, int dim)
{
    return d9di_mapper_add(m, D9DI_SPLIT, &from, 1, to, n, &(d9di_mapper_args){dim, 0, sizes, n});
}

d9d_status d9d_mapper_unflatten(d9d_mapper *m, const char *name, int dim, const int64_t *sizes,
                                size_t n)
{
    return d9di_mapper_add(m, D9DI_UNFLATTEN, &name, 1, &name, 1,
                           &(d9di_mapper_args){dim, 0, sizes, n});
}

d9d_status d9d_mapper_flatten(d9d_mapper *m, const char *name, int start_dim, int end_dim)
{
    return add_inplace(m, D9DI_FLATTEN, name, start_dim, end_dim);
}

d9d_status d9d_mapper_squeeze(d9d_mapper *m, const char *name, int dim)
{
    return add_inplace(m, D9DI_SQUEEZE, name, dim, 0);
}

d9d_status d9d_mapper_unsqueeze(d9d_mapper *m, const char *name, int dim)
{
    return add_inplace(m, D9DI_UNSQUEEZE, name, dim, 0);
}

d9d_status d9d_mapper_cast(d9d_mapper *m, const char *name, d9d_dtype to)
{
    return add_inplace(m, D9DI_CAST, name, (int)to, 0);
}

d9d_status d9d_mapper_drop(d9d_mapper *m, const char *name)
{
    return d9di_mapper_add(m, D9DI_DROP, &name, 1, NULL, 0, NULL);
}

d9d_status d9d_mapper_duplicate(d9d_mapper *m, const char *from, const char *const *to, size_t n)
{
    return d9di_mapper_add(m, D9DI_DUPLICATE, &from, 1, to, n, NULL);
}

/* --- placements ------------------------------------------------------------------- */

d9di_mapper_args d9di_mapper_mesh_args(const d9d_mapper_placement *mesh, const int64_t *at, int n,
                                       int64_t *list)
{
    for (int k = 0; k < n; k++) {
        int64_t *axis = list + (size_t)k * D9DI_AXIS_LEN;

        axis[D9DI_AXIS_SIZE] = mesh[k].mesh_size;
        axis[D9DI_AXIS_DIM] = mesh[k].shard ? mesh[k].dim : D9DI_REPLICATED;
        axis[D9DI_AXIS_COORD] = at != NULL ? at[k] : 0;
    }
    return (d9di_mapper_args){.list = list, .n = (size_t)n * D9DI_AXIS_LEN};
}

d9d_status d9d_mapper_distribute(d9d_mapper *m, const char *name, const d9d_mapper_placement *mesh,
                                 const int64_t *at, int n)
{
    int64_t list[D9D_MAX_MESH * D9DI_AXIS_LEN];
    d9di_mapper_args args;

    assert(n > 0 && n <= D9D_MAX_MESH);
    args = d9di_mapper_mesh_args(mesh, at, n, list);
    return d9di_mapper_add(m, D9DI_DISTRIBUTE, &name, 1, &name, 1, &args);
}

d9d_status d9d_mapper_gather(d9d_mapper *m, const char *const *from, size_t n_from, const char *to,
                             const d9d_mapper_placement *mesh, int n)
{
    int64_t list[D9D_MAX_MESH * D9DI_AXIS_LEN];
    d9di_mapper_args args;

    assert(n > 0 && n <= D9D_MAX_MESH);
    args = d9di_mapper_mesh_args(mesh, NULL, n, list);
    return d9di_mapper_add(m, D9DI_GATHER, from, n_from, &to, 1, &args);
}

/* --- expectations ------------------------------------------------------------------- */

d9d_status d9d_mapper_expect(d9d_mapper *m, const char *input, int ndim, const int64_t *shape)
{
    d9d_safetensors_tensor *t;
    bool found;
    size_t value = find_value(&m->inputs, input, &found);

    assert(ndim >= 0 && ndim <= D9D_MAX_DIMS);
    if (!found)
        return D9D_FAIL(D9D_ENOTFOUND, "mapper: tensor %s is not an input", input);
    t = d9d_arena_alloc(&m->arena, sizeof(*t));
    if (t == NULL)
        return no_memory();
    t->ndim = ndim;
    for (int d = 0; d < ndim; d++)
        t->shape[d] = shape[d];
    m->values.data[value].expect = t;
    return D9D_OK;
}

/* --- composing ------------------------------------------------------------------- */

/* The name in `m` of a name of `part`, with the prefix. */
static d9d_status prefix_name(d9d_mapper *m, const char *prefix, const char *name, const char **out)
{
    *out = d9d_arena_printf(&m->arena, "%s%s", prefix, name);
    return *out == NULL ? no_memory() : D9D_OK;
}

/* Appends the steps of `part`; its value v is number[v] here. */
static d9d_status append_steps(d9d_mapper *m, const d9d_mapper *part, const uint32_t *number)
{
    for (size_t i = 0; i < part->steps.len; i++) {
        d9di_mapper_step s = part->steps.data[i];
        const uint32_t *from = s.in;
        int32_t step = (int32_t)m->steps.len;

        D9D_TRY(copy_list(m, &s.args));
        s.in = d9d_arena_alloc(&m->arena, ((size_t)s.n_in + s.n_out) * sizeof(*s.in));
        if (s.in == NULL)
            return no_memory();
        s.out = s.in + s.n_in;
        for (size_t k = 0; k < (size_t)s.n_in + s.n_out; k++) {
            s.in[k] = number[from[k]];
            if (k < s.n_in)
                m->values.data[s.in[k]].consumer = step;
            else
                m->values.data[s.in[k]].producer = step;
        }
        D9D_TRY(D9D_VEC_PUSH(&m->steps, s));
    }
    return D9D_OK;
}

static d9d_status copy_expect(d9d_mapper *m, const d9di_mapper_value *from, uint32_t value)
{
    d9d_safetensors_tensor *t;

    if (from->expect == NULL || m->values.data[value].expect != NULL)
        return D9D_OK;
    t = d9d_arena_alloc(&m->arena, sizeof(*t));
    if (t == NULL)
        return no_memory();
    *t = *from->expect;
    m->values.data[value].expect = t;
    return D9D_OK;
}

/* Imports the values of `part`, except inputs that this mapper produces. */
static d9d_status import_values(d9d_mapper *m, const d9d_mapper *part, bool join,
                                const char *from_prefix, const char *to_prefix, uint32_t *number)
{
    for (size_t v = 0; v < part->values.len; v++) {
        const d9di_mapper_value *value = &part->values.data[v];
        bool input = value->producer == D9DI_NONE, joined = false;
        const char *prefix = input ? from_prefix : value->consumer == D9DI_NONE ? to_prefix : "";
        const char *name;

        if (join && input)
            number[v] = (uint32_t)find_value(&m->outputs, value->name, &joined);
        if (!joined) {
            D9D_TRY(prefix_name(m, prefix, value->name, &name));
            D9D_TRY(add_value(m, name, &number[v]));
        }
        D9D_TRY(copy_expect(m, value, number[v]));
    }
    return D9D_OK;
}

/* Adds value v or, if a step consumes it, the outputs that derive from it: so outputs of a composed
 * mapper take the place of their inputs. */
static d9d_status add_remaining_output(const d9d_mapper *m, size_t v, bool *done, d9d_map *outputs)
{
    int32_t step = m->values.data[v].consumer;
    const d9di_mapper_step *s;

    if (step == D9DI_NONE)
        return add_output(outputs, m->values.data[v].name, v);
    if (done[step])
        return D9D_OK;
    done[step] = true;
    s = &m->steps.data[step];
    for (uint32_t k = 0; k < s->n_out; k++)
        D9D_TRY(add_remaining_output(m, s->out[k], done, outputs));
    return D9D_OK;
}

/* Lists the outputs of m, then those that derive only from inputs of `part`. */
static d9d_status find_outputs(d9d_mapper *m, const d9d_mapper *part, const uint32_t *number,
                               bool *done, d9d_map *outputs)
{
    for (size_t i = 0; i < m->outputs.len; i++)
        D9D_TRY(add_remaining_output(m, d9di_mapper_entry_value(&m->outputs, i), done, outputs));
    for (size_t i = 0; i < part->inputs.len; i++) {
        uint32_t v = number[d9di_mapper_entry_value(&part->inputs, i)];

        if (m->values.data[v].producer == D9DI_NONE)
            D9D_TRY(add_remaining_output(m, v, done, outputs));
    }
    return D9D_OK;
}

/* Parallel composition: the inputs and outputs of m and of `part`. */
static d9d_status add_names(d9d_mapper *m, const d9d_mapper *part, const uint32_t *number)
{
    for (size_t i = 0; i < part->inputs.len; i++) {
        uint32_t v = number[d9di_mapper_entry_value(&part->inputs, i)];

        D9D_TRY(add_input(&m->inputs, m->values.data[v].name, v));
    }
    for (size_t i = 0; i < part->outputs.len; i++) {
        uint32_t v = number[d9di_mapper_entry_value(&part->outputs, i)];

        D9D_TRY(add_output(&m->outputs, m->values.data[v].name, v));
    }
    return D9D_OK;
}

/* Sequential composition: the inputs and outputs of m followed by `part`. */
static d9d_status connect_names(d9d_mapper *m, const d9d_mapper *part, const uint32_t *number)
{
    bool *done = calloc(m->steps.len + 1, sizeof(*done));
    d9d_map outputs = {0};
    d9d_status st = D9D_OK;

    if (done == NULL)
        return no_memory();
    for (size_t i = 0; i < part->inputs.len; i++) {
        uint32_t v = number[d9di_mapper_entry_value(&part->inputs, i)];

        if (m->values.data[v].producer == D9DI_NONE)
            D9D_TRY_OR(st, add_input(&m->inputs, m->values.data[v].name, v), out);
    }
    D9D_TRY_OR(st, find_outputs(m, part, number, done, &outputs), out);
    d9d_map_release(&m->outputs);
    m->outputs = outputs;
    outputs = (d9d_map){0};
out:
    d9d_map_release(&outputs);
    free(done);
    return st;
}

static d9d_status combine_mappers(d9d_mapper *m, d9d_mapper *part, bool join,
                                  const char *from_prefix, const char *to_prefix)
{
    uint32_t *number = calloc(part->values.len + 1, sizeof(*number));
    d9d_status st;

    if (number == NULL) {
        d9d_mapper_free(part);
        return no_memory();
    }
    D9D_TRY_OR(st, import_values(m, part, join, from_prefix, to_prefix, number), out);
    D9D_TRY_OR(st, append_steps(m, part, number), out);
    st = join ? connect_names(m, part, number) : add_names(m, part, number);
out:
    free(number);
    d9d_mapper_free(part);
    return st;
}

d9d_status d9d_mapper_union(d9d_mapper *m, d9d_mapper *part, const char *from_prefix,
                            const char *to_prefix)
{
    return combine_mappers(m, part, false, from_prefix, to_prefix);
}

d9d_status d9d_mapper_compose(d9d_mapper *m, d9d_mapper *part)
{
    return combine_mappers(m, part, true, "", "");
}

d9d_status d9d_mapper_identities(d9d_mapper *m, const d9d_mapper *of)
{
    for (size_t i = 0; i < of->outputs.len; i++)
        D9D_TRY(d9d_mapper_identity(m, of->outputs.entries[i].key));
    return D9D_OK;
}

/* --- lookup ------------------------------------------------------------------------ */

bool d9d_mapper_is_empty(const d9d_mapper *m)
{
    return m->steps.len == 0;
}

size_t d9d_mapper_input_count(const d9d_mapper *m)
{
    return m->inputs.len;
}
size_t d9d_mapper_output_count(const d9d_mapper *m)
{
    return m->outputs.len;
}

const char *d9d_mapper_input(const d9d_mapper *m, size_t i)
{
    return m->inputs.entries[i].key;
}
const char *d9d_mapper_output(const d9d_mapper *m, size_t i)
{
    return m->outputs.entries[i].key;
}
