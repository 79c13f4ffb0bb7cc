/* golden.c - see d9d/certify/golden.h. */
#include "d9d/certify/golden.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "certify/small_model.h"
#include "d9d/base/fs.h"
#include "d9d/base/num_format.h"
#include "d9d/ckpt/dir/checkpoint.h"
#include "d9d/ckpt/mapper/map_memory.h"
#include "d9d/ckpt/safetensors/safetensors.h"
#include "d9d/data/loader/cp_slice.h"
#include "d9d/model/params_io.h"
#include "d9d/models/models.h"

/* A folder's model and vectors. */
typedef struct golden {
    d9di_small_model m;
    d9d_safetensors_file *want;
    d9d_tensor each;     /* 0, 1, ... of the tokens: all logits */
    d9d_tensor segments; /* of encoders: the documents; under a prefix mask: the rows, */
    d9d_tensor prefix;   /* and their prompts */
    d9d_weights_layout layout;
    int64_t tokens;
    bool encoder;
    d9d_arena *arena; /* of the caller */
    d9d_golden_result *out;
} golden;

/* --- arrays of the file ----------------------------------------------------------------------- */

static d9d_status find_array(const golden *g, const char *name, d9d_dtype dtype,
                             const d9d_safetensors_tensor **out)
{
    *out = d9d_safetensors_find(g->want, name);
    if (*out == NULL)
        return D9D_FAIL(D9D_EFORMAT, "%s: has no tensor %s", d9d_safetensors_path(g->want), name);
    return (*out)->dtype == dtype
               ? D9D_OK
               : D9D_FAIL(D9D_EFORMAT, "%s: tensor %s is %s, not %s", d9d_safetensors_path(g->want),
                          name, d9d_dtype_name((*out)->dtype), d9d_dtype_name(dtype));
}

/* All of it, in the model's arena. */
static d9d_status read_array(golden *g, const char *name, d9d_dtype dtype, void **out, size_t *n)
{
    const d9d_safetensors_tensor *t;

    D9D_TRY(find_array(g, name, dtype, &t));
    *out = d9d_arena_alloc(&g->m.arena, t->bytes + 8);
    if (*out == NULL)
        return D9D_FAIL(D9D_ENOMEM, "%s: tensor %s", d9d_safetensors_path(g->want), name);
    *n = t->bytes / d9d_dtype_size(dtype);
    return d9d_safetensors_read(g->want, t, 0, *out, t->bytes);
}

/* An array of ids [B, S] on the device, and its numbers. */
static d9d_status upload_ids(golden *g, const char *name, d9d_tensor *out, int32_t **numbers)
{
    const d9d_safetensors_tensor *t;
    void *host;
    size_t n;

    D9D_TRY(find_array(g, name, D9D_I32, &t));
    if (t->ndim != 2)
        return D9D_FAIL(D9D_EFORMAT, "%s: tensor %s has %d dimensions, not 2",
                        d9d_safetensors_path(g->want), name, t->ndim);
    D9D_TRY(read_array(g, name, D9D_I32, &host, &n));
    *numbers = host;
    g->m.rows = t->shape[0];
    g->m.length = t->shape[1];
    g->tokens = (int64_t)n;
    return d9d_tensor_from_host(g->m.dev, D9D_I32, D9D_SHAPE(g->m.rows, g->m.length), host, out);
}

/* Rows as segments, with their prompts as prefixes. */
static d9d_status upload_prefixes(golden *g, const int32_t *labels)
{
    const d9d_batch b = {.seqs = g->m.rows,
                         .length = g->m.length,
                         .ids = labels,
                         .labels = labels,
                         .positions = labels};
    d9d_cp_slice_buffer buffer = {.ints = {0}};
    d9d_cp_slice rows;
    d9d_status st;

    D9D_TRY_OR(st, d9d_cp_slice_make(&b, 0, 1, &buffer, &rows), done);
    D9D_TRY_OR(st, d9d_cp_slice_add_prefixes(&b, 0, 1, &buffer, &rows), done);
    D9D_TRY_OR(st,
               d9d_tensor_from_host(g->m.dev, D9D_I32, D9D_SHAPE(rows.segments, 4), rows.segment,
                                    &g->segments),
               done);
    st = d9d_tensor_from_host(g->m.dev, D9D_I32, D9D_SHAPE(rows.segments), rows.prefix, &g->prefix);
done:
    d9d_cp_slice_buffer_release(&buffer);
    return st;
}

/* Rows of a language model, and the gradient of their mean loss. */
static d9d_status upload_rows(golden *g)
{
    int32_t *numbers, *labels;
    float *seed;

    D9D_TRY(upload_ids(g, "input_ids", &g->m.ids, &numbers));
    D9D_TRY(upload_ids(g, "labels", &g->m.labels, &labels));
    seed = d9d_arena_alloc(&g->m.arena, (size_t)g->tokens * sizeof(*seed));
    if (seed == NULL)
        return D9D_FAIL(D9D_ENOMEM, "%s: its rows", d9d_safetensors_path(g->want));
    if (g->m.spec.opts.prefix_mask)
        D9D_TRY(upload_prefixes(g, labels));
    for (int64_t i = 0; i < g->tokens; i++)
        g->m.targets += labels[i] != D9D_IGNORE_INDEX;
    for (int64_t i = 0; i < g->tokens; i++) {
        seed[i] = (float)(1.0 / (double)g->m.targets);
        numbers[i] = (int32_t)(i % g->m.length);
        labels[i] = (int32_t)i;
    }
    D9D_TRY(d9d_tensor_from_host(g->m.dev, D9D_F32, D9D_SHAPE(g->tokens), seed, &g->m.seed));
    D9D_TRY(d9d_tensor_from_host(g->m.dev, D9D_I32, D9D_SHAPE(g->m.rows, g->m.length), numbers,
                                 &g->m.positions));
    return d9d_tensor_from_host(g->m.dev, D9D_I32, D9D_SHAPE(g->tokens), labels, &g->each);
}

/* Packed documents of an encoder, and a gradient of what comes out. */
static d9d_status upload_documents(golden *g)
{
    const d9d_safetensors_tensor *t;
    int32_t *numbers;
    void *seed;
    size_t n;

    D9D_TRY(upload_ids(g, "segments", &g->segments, &numbers));
    D9D_TRY(upload_ids(g, "positions", &g->m.positions, &numbers));
    D9D_TRY(upload_ids(g, "input_ids", &g->m.ids, &numbers));
    D9D_TRY(find_array(g, "hidden_seed", D9D_F32, &t));
    D9D_TRY(read_array(g, "hidden_seed", D9D_F32, &seed, &n));
    return d9d_tensor_from_host(g->m.dev, D9D_F32, D9D_SHAPE(t->shape[0], t->shape[1], t->shape[2]),
                                seed, &g->m.seed);
}

/* --- comparing -------------------------------------------------------------------------------- */

static double norm_of(const float *a, size_t n)
{
    double sum = 0;

    for (size_t i = 0; i < n; i++)
        sum += (double)a[i] * (double)a[i];
    return sqrt(sum);
}

/* A stored array that is zero is measured by `otherwise`. */
static d9d_status compare(golden *g, const char *name, const float *got, size_t n, double otherwise)
{
    double sum = 0, norm, distance;
    const float *want;
    void *stored;
    size_t n_want;

    D9D_TRY(read_array(g, name, D9D_F32, &stored, &n_want));
    if (n != n_want)
        return D9D_FAIL(D9D_EFORMAT, "%s: tensor %s has %zu element%s, the model's %zu",
                        d9d_safetensors_path(g->want), name, n_want, D9D_PLURAL(n_want), n);
    want = stored;
    norm = norm_of(want, n);
    for (size_t i = 0; i < n; i++)
        sum += pow((double)got[i] - (double)want[i], 2);
    distance = sqrt(sum) / (norm > 0 ? norm : otherwise);
    if (g->out->n++ == 0 || !(distance <= g->out->worst)) {
        g->out->worst = distance;
        g->out->name = d9d_arena_strdup(g->arena, name);
    }
    return D9D_OK;
}

static d9d_status compare_var(golden *g, const char *name, const d9d_var *v)
{
    const size_t n = (size_t)d9d_tensor_numel(d9d_var_tensor(v));
    float *host = malloc((n + 1) * sizeof(*host));
    d9d_status st;

    if (host == NULL)
        return D9D_FAIL(D9D_ENOMEM, "%s: %zu numbers", name, n);
    st = d9d_tensor_to_f32(d9d_var_tensor(v), host);
    if (st == D9D_OK)
        st = compare(g, name, host, n, 1e-30);
    free(host);
    return st;
}

/* What the model computes, before anything else is compared. */
static d9d_status compare_outputs(golden *g, const char *name, const d9d_var *v)
{
    D9D_TRY(compare_var(g, name, v));
    g->out->outputs = g->out->worst;
    return D9D_OK;
}

/* --- gradients by the names and in the forms of the files ------------------------------------- */

static d9d_status compare_each(golden *g, const d9d_map_memory *got)
{
    double squares = 0;
    char name[512];

    for (size_t i = 0; i < got->n; i++)
        squares += pow(norm_of(got->data[i], got->tensors[i].bytes / sizeof(float)), 2);
    for (size_t i = 0; i < got->n; i++) {
        (void)snprintf(name, sizeof(name), "grad.%s", got->tensors[i].name);
        D9D_TRY(
            compare(g, name, got->data[i], got->tensors[i].bytes / sizeof(float), sqrt(squares)));
    }
    return D9D_OK;
}

static d9d_status compare_mapped(golden *g, const d9d_tensor_source *source)
{
    d9d_map_memory got = {.n = 0};
    const d9d_tensor_sink sink = d9d_map_memory_sink(&got);
    d9d_mapper *mapper = NULL;
    d9d_map_plan *plan = NULL;
    d9d_status st;

    D9D_TRY_OR(st, d9d_model_mapper(&g->m.spec, D9D_WHOLE_MODEL, source, g->layout, &mapper), done);
    D9D_TRY_OR(
        st, d9d_map_plan_create(mapper, source, &(d9d_map_plan_opts){.source = "gradients"}, &plan),
        done);
    D9D_TRY_OR(st, d9d_map_plan_run(plan, &sink, 1, NULL), done);
    st = compare_each(g, &got);
done:
    d9d_map_memory_release(&got);
    d9d_map_plan_free(plan);
    d9d_mapper_free(mapper);
    return st;
}

static d9d_status compare_gradients(golden *g)
{
    d9d_params_io *io;
    d9d_tensor_source source;
    d9d_status st;

    D9D_TRY(d9d_params_io_open(&g->m.params, D9D_PARAMS_GRADS, &io));
    st = d9d_params_io_source(io, &source);
    if (st == D9D_OK)
        st = compare_mapped(g, &source);
    d9d_params_io_close(io);
    return st;
}

/* --- the model -------------------------------------------------------------------------------- */

static d9d_status forward(golden *g, const d9d_model_in *in, d9d_model_out *out)
{
    if (g->prefix.storage != NULL)
        d9d_tape_set_prefix(g->m.tape, &g->prefix);
    return g->m.model->ops->forward(g->m.model, g->m.tape, in, out);
}

static d9d_status compare_logits(golden *g)
{
    const d9d_model_in in = {.ids = &g->m.ids,
                             .positions = &g->m.positions,
                             .labels = &g->m.labels,
                             .segments = g->segments.storage != NULL ? &g->segments : NULL,
                             .pick = &g->each};
    d9d_model_out out = {.loss = NULL};

    d9d_tape_set_recording(g->m.tape, false); /* logits have no backward */
    D9D_TRY(forward(g, &in, &out));
    D9D_TRY(compare_outputs(g, "logits", out.logits));
    D9D_TRY(compare_var(g, "token_losses", out.loss));
    d9d_tape_reset(g->m.tape);
    return D9D_OK;
}

static d9d_status compare_backward(golden *g)
{
    const d9d_model_in in = {.ids = &g->m.ids,
                             .positions = &g->m.positions,
                             .labels = g->encoder ? NULL : &g->m.labels,
                             .segments = g->segments.storage != NULL ? &g->segments : NULL};
    d9d_model_out out = {.loss = NULL};

    d9d_tape_set_recording(g->m.tape, true);
    D9D_TRY(forward(g, &in, &out));
    if (g->encoder)
        D9D_TRY(compare_outputs(g, "hidden", out.hidden));
    D9D_TRY(d9d_tape_backward(g->m.tape, g->encoder ? &out.hidden : &out.loss, &g->m.seed, 1,
                              D9D_BACKWARD_FULL));
    d9d_tape_reset(g->m.tape);
    return compare_gradients(g);
}

static d9d_status find_layout(golden *g, const char *dir)
{
    d9d_checkpoint *ckpt;
    d9d_tensor_source src;

    D9D_TRY(d9d_checkpoint_open(dir, &ckpt));
    src = d9d_checkpoint_source(ckpt);
    g->layout = d9d_model_layout(&g->m.spec, &src);
    d9d_checkpoint_close(ckpt);
    return D9D_OK;
}

static d9d_status read_limit(golden *g, double limit)
{
    void *apart;
    size_t n;

    D9D_TRY(read_array(g, "float32_apart", D9D_F32, &apart, &n));
    g->out->limit = limit;
    if (n > 0 && 5 * (double)*(const float *)apart > limit)
        g->out->limit = 5 * (double)*(const float *)apart;
    return D9D_OK;
}

static d9d_status golden_compare(golden *g, const char *dir, const d9d_golden_opts *opts)
{
    d9di_small_model_opts load = {.choices =
                                      opts->choices != NULL ? opts->choices : d9d_model_choices,
                                  .device = opts->device};
    const char *path = d9d_fs_join(g->arena, dir, "golden.safetensors");

    if (path == NULL)
        return D9D_FAIL(D9D_ENOMEM, "%s: names in it", dir);
    D9D_TRY(d9d_safetensors_open(path, &g->want));
    load.base = g->encoder = d9d_safetensors_find(g->want, "hidden_seed") != NULL;
    D9D_TRY(d9di_small_model_load(&g->m, dir, &load));
    D9D_TRY(find_layout(g, dir));
    D9D_TRY(read_limit(g, opts->limit > 0 ? opts->limit : D9D_GOLDEN_LIMIT));
    D9D_TRY(g->encoder ? upload_documents(g) : upload_rows(g));
    if (!g->encoder)
        D9D_TRY(compare_logits(g));
    return compare_backward(g);
}

d9d_status d9d_golden_compare(const char *dir, const d9d_golden_opts *opts, d9d_arena *a,
                              d9d_golden_result *out)
{
    golden g = {.arena = a, .out = out};
    uint64_t left;
    d9d_status st;

    *out = (d9d_golden_result){.worst = 0};
    st = golden_compare(&g, dir, opts);
    d9d_tensor_release(&g.each);
    d9d_tensor_release(&g.segments);
    d9d_tensor_release(&g.prefix);
    left = d9di_small_model_close(&g.m);
    if (g.want != NULL)
        d9d_safetensors_close(g.want);
    if (st == D9D_OK && left > 0)
        st = D9D_FAIL(D9D_EVERIFY, "%s: %" PRIu64 " bytes of the device were not given back", dir,
                      left);
    return st;
}
