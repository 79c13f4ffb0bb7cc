/* engine.c - a model on a device.  See loop/engine.h. */
#include "loop/engine.h"

#include <stdio.h>
#include <string.h>

#include "d9d/device/trace.h"
#include "d9d/model/peft.h"
#include "d9d/parallel/plan.h"
#include "loop/launch.h"

/* --- opening ------------------------------------------------------------------------ */

static d9d_status params_prepare(d9di_engine *e, const d9di_engine_how *how)
{
    static const d9d_dtype dtypes[] = {D9D_F32, D9D_BF16};

    if (how->peft != NULL)
        D9D_TRY(d9d_peft_apply(how->peft, e->model->module));
    D9D_TRY(d9d_module_bind(e->model->module));
    D9D_TRY(d9d_module_params(e->model->module, &e->arena, &e->params));
    D9D_TRY(d9d_peft_params_of(&e->params, false, &e->arena, &e->base));
    D9D_TRY(d9d_peft_params_of(&e->params, true, &e->arena, &e->adapters));
    for (size_t i = 0; i < e->params.n; i++) {
        d9d_param *p = e->params.p[i];

        if (how->train)
            p->grad_dtype =
                how->gradients->grad_dtype < 0 ? p->dtype : dtypes[how->gradients->grad_dtype];
        p->own = (d9d_tensor){.dtype = p->dtype, .shape = p->box};
    }
    return D9D_OK;
}

static d9d_status adapter_read(d9di_engine *e, const char *dir)
{
    d9d_model_matrices of;

    D9D_TRY(d9d_model_spec_matrices(&e->spec, &e->arena, &of));
    return d9d_adapters_read(dir, &of, &e->given);
}

/* Where the parameters begin, without reading them. */
static d9d_status sources_open(d9di_engine *e, const d9di_engine_how *how)
{
    const bool merge = how->adapter != NULL && e->adapters.n == 0;

    if (!how->initialise)
        return D9D_OK;
    if (how->adapter != NULL)
        D9D_TRY(adapter_read(e, how->adapter));
    if (how->source != NULL)
        return d9d_weights_open(&e->spec, D9D_WHOLE_MODEL, how->source, merge ? e->given : NULL,
                                &e->weights);
    if (merge)
        return D9D_FAIL(D9D_ECONFIG,
                        "trainer.model_stage_factory: source_adapter is given and nothing that it "
                        "could be merged into, no source_checkpoint");
    return D9D_OK;
}

static d9d_status open_into(d9di_engine *e, const d9di_engine_how *how)
{
    const d9d_model_spec *s = &e->spec;

    D9D_TRY(d9di_launch_check(how->where->boot, how->where->device));
    D9D_TRY(d9d_model_spec_read(how->provider, &e->arena, &e->spec));
    D9D_TRY(d9d_model_plan_check(s, how->mesh));
    D9D_TRY(s->provider->create(s->config, D9D_WHOLE_MODEL, &s->options, &e->model));
    if (how->data != NULL)
        D9D_TRY(d9di_data_check(how->data, e->model->vocab, e->model->max_positions));
    D9D_TRY(params_prepare(e, how));
    return sources_open(e, how);
}

d9d_status d9di_engine_open(const d9di_engine_how *how, d9di_engine *out)
{
    d9di_engine e = {0};
    d9d_status st = open_into(&e, how);

    if (st == D9D_OK)
        *out = e;
    else
        d9di_engine_release(&e);
    return st;
}

static d9d_status weights_read(d9di_engine *e, const d9d_log *log)
{
    d9d_status st = d9d_weights_read(e->weights, &e->base, log);

    d9d_weights_close(e->weights);
    e->weights = NULL;
    return st;
}

/* What is known before a batch is: activations come on top. */
static uint64_t bytes_needed(const d9di_engine *e, const d9di_engine_how *how)
{
    uint64_t sum = how->optimizer != NULL ? d9d_optimizer_bytes(how->optimizer) : 0;

    for (size_t i = 0; i < e->params.n; i++) {
        const d9d_param *p = e->params.p[i];
        const bool has_grad = how->train && p->trainable;

        sum += (uint64_t)d9d_shape_numel(&p->box) *
               (d9d_dtype_size(p->dtype) + (has_grad ? d9d_dtype_size(p->grad_dtype) : 0));
    }
    return sum;
}

/* The ranks, and what each of them has of the model. */
static d9d_status ranks_join(d9di_engine *e, const d9di_engine_how *how)
{
    const d9d_mesh_how mesh = {
        .timeout_s = how->timeout_s, .flight_dir = how->flight, .log = how->where->log};
    const char *net = e->dev->kernels->name;
    d9d_sharded_how sharded = {.with_grads = how->train};
    uint64_t units;

    if (how->train) {
        sharded.reduce_once = how->gradients->reduce == D9D_REDUCE_STEP;
        sharded.bucket_bytes = (uint64_t)how->gradients->bucket_size_mb << 20;
    }
    D9D_TRY(d9d_mesh_open(how->where->boot, how->mesh, net, e->dev->stream, &mesh, &e->mesh));
    D9D_TRY(d9d_mesh_group(e->mesh, D9D_AXES_WORLD, &e->world));
    D9D_TRY(d9d_model_plan(&e->spec, e->mesh, e->model));
    D9D_TRY(d9d_sharded_bytes(e->model, &sharded, &units));
    D9D_TRY(d9d_device_expect(e->dev, bytes_needed(e, how) + units));
    return d9d_sharded_create(e->model, e->dev, &sharded, &e->sharded);
}

/* "4 ranks: data_parallel_shard 2, tensor_parallel 2"; "" for one. */
static void ranks_text(const d9d_mesh *mesh, char *out, size_t n)
{
    const d9d_degrees *d = d9d_mesh_degrees(mesh);
    const struct {
        const char *name;
        int64_t degree;
    } axes[] = {
        {"data_parallel_replicate", d->data_parallel_replicate},
        {"data_parallel_shard", d->data_parallel_shard},
        {"context_parallel_shard", d->context_parallel_shard},
        {"context_parallel_replicate", d->context_parallel_replicate},
        {"tensor_parallel", d->tensor_parallel},
        {"pipeline_parallel", d->pipeline_parallel},
        {"expert_parallel", d->expert_parallel},
    };
    const char *between = ": ";
    int at;

    out[0] = '\0';
    if (d9d_mesh_size(mesh) == 1)
        return;
    at = snprintf(out, n, ", %d ranks", d9d_mesh_size(mesh));
    for (size_t i = 0; i < sizeof(axes) / sizeof(axes[0]) && at >= 0 && (size_t)at < n; i++) {
        if (axes[i].degree == 1)
            continue;
        at += snprintf(out + at, n - (size_t)at, "%s%s %lld", between, axes[i].name,
                       (long long)axes[i].degree);
        between = ", ";
    }
}

static void tell(const d9di_engine *e, const d9d_log *log)
{
    char ranks[256], some[64] = "";

    ranks_text(e->mesh, ranks, sizeof(ranks));
    if (d9di_engine_count(e, true) < d9di_engine_count(e, false))
        (void)snprintf(some, sizeof(some), ", of which %lld are trained",
                       (long long)d9di_engine_count(e, true));
    d9d_log_info(log, "%s: %s, %lld parameters%s, %s%s", e->dev->name, e->model->ops->name,
                 (long long)d9di_engine_count(e, false), some,
                 d9d_dtype_word(e->spec.options.dtype), ranks);
}

/* The model's own parameters, then what adapts them. */
static d9d_status params_fill(d9di_engine *e, const d9di_engine_how *how)
{
    for (size_t i = 0; i < e->params.n; i++)
        if (e->weights == NULL || e->params.p[i]->adapts != NULL)
            D9D_TRY(d9d_param_reset(e->params.p[i], how->seed));
    if (e->weights != NULL)
        D9D_TRY(weights_read(e, how->where->log));
    if (e->given != NULL && e->adapters.n > 0)
        D9D_TRY(d9d_adapters_fill(e->given, &e->adapters, how->where->log));
    d9d_adapters_free(e->given);
    e->given = NULL;
    return D9D_OK;
}

d9d_status d9di_engine_fill(d9di_engine *e, const d9di_engine_how *how)
{
    D9D_TRY(d9di_launch_device(how->where->boot, how->where->device, &e->dev));
    e->dev->log = how->where->log;
    D9D_TRY(d9d_tape_create(e->dev, &e->tape));
    D9D_TRY(ranks_join(e, how));
    tell(e, how->where->log);
    D9D_TRY(d9d_module_materialise(e->model->module, e->dev, how->train));
    return how->initialise ? params_fill(e, how) : D9D_OK;
}

void d9di_engine_release(d9di_engine *e)
{
    d9d_tape_free(e->tape);
    d9d_weights_close(e->weights);
    d9d_adapters_free(e->given);
    d9d_sharded_free(e->sharded);
    d9d_model_free(e->model);
    d9d_mesh_close(e->mesh);
    d9d_device_close(e->dev);
    d9d_part_room_release(&e->room);
    d9d_arena_release(&e->arena);
    *e = (d9di_engine){0};
}

int64_t d9di_engine_count(const d9di_engine *e, bool trainable_only)
{
    int64_t n = 0;

    for (size_t i = 0; i < e->params.n; i++)
        if (e->params.p[i]->trainable || !trainable_only)
            n += d9d_shape_numel(&e->params.p[i]->whole);
    return n;
}

/* --- a batch on the device ----------------------------------------------------------- */

typedef struct device_batch {
    d9d_tensor ids, labels, positions, segments;
} device_batch;

static void batch_release(device_batch *b)
{
    d9d_tensor_release(&b->ids);
    d9d_tensor_release(&b->labels);
    d9d_tensor_release(&b->positions);
    d9d_tensor_release(&b->segments);
}

static d9d_status part_upload(d9di_engine *e, const d9d_batch_part *b, device_batch *out)
{
    const d9d_shape cells = D9D_SHAPE(b->rows, b->length);
    const struct {
        const void *host;
        d9d_shape shape;
        d9d_tensor *device;
    } arrays[] = {{b->ids, cells, &out->ids},
                  {b->labels, cells, &out->labels},
                  {b->positions, cells, &out->positions},
                  {b->segment, D9D_SHAPE(b->segments, 4), &out->segments}};

    *out = (device_batch){0};
    for (int i = 0; i < 4; i++) {
        if (arrays[i].host == NULL)
            continue;
        d9d_status st = d9d_tensor_from_host(e->dev, D9D_I32, arrays[i].shape, arrays[i].host,
                                             arrays[i].device);
        if (st != D9D_OK) {
            batch_release(out);
            return st;
        }
    }
    return D9D_OK;
}

/* What this rank computes with. */
static d9d_status batch_upload(d9di_engine *e, const d9d_batch *b, device_batch *out)
{
    const d9d_comm *cp = e->model->cut.cp;
    d9d_batch_part part;

    D9D_TRY(d9d_batch_part_of(b, d9d_comm_rank(cp), d9d_comm_size(cp), &e->room, &part));
    return part_upload(e, &part, out);
}

static d9d_status batch_forward(d9di_engine *e, const device_batch *b, bool learn,
                                d9d_model_out *out)
{
    const d9d_model_in in = {
        .ids = &b->ids,
        .positions = &b->positions,
        .labels = &b->labels,
        .segments = b->segments.storage != NULL ? &b->segments : NULL,
        .loss_is_root = learn,
    };

    return e->model->ops->forward(e->model, e->tape, &in, out);
}

/* The losses of whole rows, of which other ranks have pieces too. */
static d9d_status whole_rows(d9di_engine *e, const d9d_shape *part, d9d_var **loss)
{
    D9D_TRY(d9d_op_reshape(e->tape, *loss, *part, loss));
    return d9d_op_gather_pieces(e->tape, *loss, e->model->cut.cp, "loss", loss);
}

d9d_status d9di_engine_loss(d9di_engine *e, const d9d_batch *b, d9d_tensor *loss)
{
    device_batch on_device;
    d9d_model_out out;
    d9d_status st;

    D9D_TRY(batch_upload(e, b, &on_device));
    d9d_tape_set_recording(e->tape, false);
    st = batch_forward(e, &on_device, false, &out);
    if (st == D9D_OK)
        st = whole_rows(e, &on_device.ids.shape, &out.loss);
    if (st == D9D_OK)
        *loss = d9d_tensor_ref(d9d_var_tensor(out.loss));
    d9d_tape_reset(e->tape);
    batch_release(&on_device);
    return st;
}

/* Forward, and backward of the sum of all losses. */
static d9d_status learn_from(d9di_engine *e, const device_batch *b, const d9d_tensor *sum)
{
    const d9d_tensor *loss;
    d9d_model_out out;
    d9d_status st;

    d9d_trace_begin(e->dev, "forward");
    st = batch_forward(e, b, true, &out);
    d9d_trace_end(e->dev);
    if (st != D9D_OK)
        return st;
    loss = d9d_var_tensor(out.loss);
    D9D_TRY(e->dev->kernels->sum(e->dev->stream, d9d_tensor_data(sum), 0, D9D_F32,
                                 d9d_tensor_data(loss), d9d_tensor_numel(loss)));
    d9d_trace_begin(e->dev, "backward");
    st = d9d_tape_backward(e->tape, NULL, NULL, 0, D9D_BACKWARD_FULL);
    d9d_trace_end(e->dev);
    return st;
}

d9d_status d9di_engine_learn(d9di_engine *e, const d9d_batch *b, bool last, const d9d_tensor *sum)
{
    device_batch on_device;
    d9d_status st;

    if (b->targets == 0 && e->world == NULL)
        return e->dev->kernels->sum(e->dev->stream, d9d_tensor_data(sum), 0, D9D_F32, NULL, 0);
    D9D_TRY(batch_upload(e, b, &on_device));
    d9d_trace_lap(e->dev, "batch", "");
    d9d_tape_set_recording(e->tape, true);
    d9d_sharded_begin(e->sharded, last);
    st = learn_from(e, &on_device, sum);
    if (st == D9D_OK && last)
        st = d9d_sharded_end(e->sharded);
    d9d_tape_reset(e->tape);
    batch_release(&on_device);
    return st;
}
