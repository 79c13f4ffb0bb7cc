/* save_driver.c - a small training run, to be killed: save_driver DIR STEPS [behind]
 *
 * It resumes from the newest checkpoint in DIR/checkpoints (or starts), takes steps until STEPS
 * are done, saves after each and keeps the two newest.  With `behind` it saves asynchronously,
 * during the next steps.  Its results depend on every number in a checkpoint, and on nothing else.
 * Exit codes are those of the tools. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "checkpointer/checkpointer_async.h"
#include "d9d/base/fs.h"
#include "d9d/base/rng.h"

enum { TENSORS = 3, KEEP = 2, SEED = 5 };

typedef struct small_run {
    d9d_device *dev;
    d9d_tensor weight[TENSORS], moment[TENSORS];
    int64_t steps[TENSORS];
    d9d_checkpointer_tensor items[2 * TENSORS];
    d9d_checkpointer_count counts[TENSORS];
    d9d_checkpointer_set set;
    d9d_checkpointer_state state;
} small_run;

static const struct {
    const char *weight, *moment;
    d9d_shape shape;
} shapes[TENSORS] = {
    {"embed.weight", "embed.weight.exp_avg", {2, {11, 3}}},
    {"layers.0.weight", "layers.0.weight.exp_avg", {2, {4, 5}}},
    {"norm.weight", "norm.weight.exp_avg", {1, {7}}},
};

static void say(void *arg, d9d_log_level level, const char *text)
{
    (void)arg;
    if (level <= D9D_LOG_WARN)
        (void)fprintf(stderr, "save_driver: %s\n", text);
}

static const d9d_log talk = {.line = say, .level = D9D_LOG_WARN};

static d9d_status run_open(small_run *r)
{
    D9D_TRY(d9d_device_open("cpu", &r->dev));
    for (size_t i = 0; i < TENSORS; i++) {
        const d9d_shape shape = shapes[i].shape;

        D9D_TRY(d9d_tensor_alloc(r->dev, D9D_F32, shape, &r->weight[i]));
        D9D_TRY(d9d_tensor_alloc(r->dev, D9D_F32, shape, &r->moment[i]));
        memset(d9d_tensor_data(&r->weight[i]), 0, d9d_tensor_bytes(&r->weight[i]));
        memset(d9d_tensor_data(&r->moment[i]), 0, d9d_tensor_bytes(&r->moment[i]));
        r->items[i] = (d9d_checkpointer_tensor){.name = shapes[i].weight,
                                                .group = "model",
                                                .tensor = &r->weight[i],
                                                .global_shape = shape};
        r->items[TENSORS + i] = (d9d_checkpointer_tensor){.name = shapes[i].moment,
                                                          .group = "optimizer",
                                                          .tensor = &r->moment[i],
                                                          .global_shape = shape};
        r->counts[i] = (d9d_checkpointer_count){shapes[i].weight, &r->steps[i]};
    }
    r->set = (d9d_checkpointer_set){
        .items = r->items, .n = 2 * TENSORS, .counts = r->counts, .n_counts = TENSORS};
    r->state = (d9d_checkpointer_state){.seed = SEED, .finite = true, .parent = -1};
    return D9D_OK;
}

static void run_close(small_run *r)
{
    for (size_t i = 0; i < TENSORS; i++) {
        d9d_tensor_release(&r->weight[i]);
        d9d_tensor_release(&r->moment[i]);
    }
    d9d_device_close(r->dev);
}

/* m = 0.9 m + (w - noise);  w -= 0.1 m / count */
static void step(small_run *r)
{
    for (size_t i = 0; i < TENSORS; i++) {
        float *w = d9d_tensor_data(&r->weight[i]), *m = d9d_tensor_data(&r->moment[i]);
        const d9d_rng noise = {r->state.seed, (uint64_t)r->state.samples};

        r->steps[i]++;
        for (int64_t k = 0; k < d9d_tensor_numel(&r->weight[i]); k++) {
            m[k] = 0.9f * m[k] + (w[k] - d9d_rng_normal(noise, i * 1000 + (uint64_t)k));
            w[k] -= 0.1f * m[k] / (float)r->steps[i];
        }
    }
    r->state.step++;
    r->state.samples += 4;
    r->state.tokens += 400;
}

/* Training steps; each completes the previous save as far as it is done. */
static d9d_status run_steps(small_run *r, d9di_checkpointer_async *s, int64_t steps)
{
    while (r->state.step < steps) {
        const double number = d9di_checkpointer_async_progress(s, r->state.step);
        bool begun = true;

        D9D_TRY(d9di_checkpointer_async_wait_copy(s));
        step(r);
        D9D_TRY(d9di_checkpointer_async_advance(s, r->state.step - 1, number));
        D9D_TRY(d9di_checkpointer_async_begin(s, &r->state, r->state.step == steps, &begun));
        if (!begun)
            return D9D_FAIL(D9D_ETIMEOUT, "step %lld is left out", (long long)r->state.step);
    }
    return D9D_OK;
}

static d9d_status run_to(small_run *r, const char *dir, int64_t steps, bool behind)
{
    const d9di_checkpointer_async_opts opts = {.dir = dir,
                                               .keep = KEEP,
                                               .async = behind,
                                               .set = &r->set,
                                               .dev = r->dev,
                                               .patience_s = 600,
                                               .log = &talk};
    d9di_checkpointer_async *saver = NULL;
    d9d_arena a = {0};
    const char *path = NULL;
    d9d_status st;

    D9D_TRY_OR(st, d9d_checkpointer_latest(dir, NULL, &talk, &a, &path), out);
    if (path != NULL) {
        D9D_TRY_OR(st, d9d_checkpointer_read(path, &r->set, NULL, &r->state), out);
        r->state.parent = r->state.step;
    }
    D9D_TRY_OR(st, d9di_checkpointer_async_open(&opts, &saver), out);
    st = run_steps(r, saver, steps);
out:
    d9di_checkpointer_async_close(saver);
    d9d_arena_release(&a);
    return st;
}

int main(int argc, char **argv)
{
    small_run r = {0};
    d9d_arena a = {0};
    d9d_status st;

    if (argc < 3) {
        (void)fprintf(stderr, "usage: save_driver DIR STEPS [behind]\n");
        return 2;
    }
    st = run_open(&r);
    if (st == D9D_OK)
        st = run_to(&r, d9d_fs_join(&a, argv[1], "checkpoints"), strtoll(argv[2], NULL, 10),
                    argc > 3);
    if (st != D9D_OK)
        (void)fprintf(stderr, "save_driver: %s: %s\n", d9d_status_text(st), d9d_err_message());
    run_close(&r);
    d9d_arena_release(&a);
    return d9d_status_exit_code(st);
}
