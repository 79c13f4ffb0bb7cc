/* ranks_save_driver.c - a checkpoint of several ranks: `ranks_save_driver ACT DIR [N]`.
 *
 *     write     every rank writes its slices as step N (1)
 *     read      every rank reads its slices of the newest checkpoint and prints "well"; rank 0
 *               prints the result of the search
 *     spoil     the same as write, but rank N's state cannot be written
 *     die       the same as write, but rank N, not 0, is killed when it has written its files
 *
 * Each element of a slice is its index in the global tensor, so any number of ranks can read what
 * any other number wrote.  "rows" and "columns" are sharded, "small" has fewer rows than ranks, and
 * "same" is replicated and written by rank 0.
 */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "checkpointer/checkpointer_private.h"
#include "d9d/comm/mesh.h"
#include "d9d/device/device.h"

enum { ranks_per_dir = 2 }; /* several directories on few ranks */

static const struct entry {
    const char *name, *group;
    d9d_shape whole;
    int dim; /* dimension that is sharded; -1: none */
} entries[] = {
    {"rows", "model", {2, {131, 70}}, 0},
    {"columns", "model", {3, {5, 64, 33}}, 1},
    {"small", "optimizer", {2, {3, 9}}, 0},
    {"same", "model", {1, {12}}, -1},
};
enum { N = sizeof(entries) / sizeof(entries[0]) };

struct job {
    d9d_bootstrap *bootstrap;
    d9d_mesh *mesh;
    d9d_device *dev;
    int rank, size;
    d9d_tensor tensors[N];
    d9d_checkpointer_tensor items[N];
    int64_t steps;
    d9d_checkpointer_count count;
};

/* Index in the whole tensor of element i of a box. */
static float number_of(const d9d_checkpointer_tensor *t, int64_t i)
{
    int64_t index = 0, stride = 1;

    for (int d = t->global_shape.ndim - 1; d >= 0; d--) {
        const int64_t n = t->tensor->shape.dim[d];

        index += (t->start[d] + i % n) * stride;
        stride *= t->global_shape.dim[d];
        i /= n;
    }
    return (float)index;
}

static d9d_status boxes_make(struct job *j, bool fill)
{
    for (int k = 0; k < N; k++) {
        const struct entry *e = &entries[k];
        d9d_checkpointer_tensor *t = &j->items[k];
        d9d_shape box = e->whole;
        float *data;

        *t = (d9d_checkpointer_tensor){
            .name = e->name, .group = e->group, .tensor = &j->tensors[k], .global_shape = e->whole};
        if (e->dim >= 0)
            d9d_param_split_even(e->whole.dim[e->dim], j->size, j->rank, &t->start[e->dim],
                                 &box.dim[e->dim]);
        D9D_TRY(d9d_tensor_alloc(j->dev, D9D_F32, box, &j->tensors[k]));
        data = d9d_tensor_data(&j->tensors[k]);
        for (int64_t i = 0; i < d9d_tensor_numel(&j->tensors[k]); i++)
            data[i] = fill ? number_of(t, i) : -1;
    }
    j->count = (d9d_checkpointer_count){"rows", &j->steps};
    return D9D_OK;
}

static d9d_status boxes_check(struct job *j)
{
    for (int k = 0; k < N; k++) {
        const d9d_tensor *t = &j->tensors[k];
        const float *data = d9d_tensor_data(t);

        for (int64_t i = 0; i < d9d_tensor_numel(t); i++)
            if (data[i] != number_of(&j->items[k], i))
                return D9D_FAIL(D9D_EVERIFY, "%s[%lld] is %g", entries[k].name, (long long)i,
                                (double)data[i]);
    }
    return j->steps == 7 ? D9D_OK : D9D_FAIL(D9D_EVERIFY, "%lld steps", (long long)j->steps);
}

static d9d_checkpointer_set set_of(struct job *j)
{
    return (d9d_checkpointer_set){
        .items = j->items, .n = j->rank == 0 ? N : N - 1, .counts = &j->count, .n_counts = 1};
}

static d9d_status act_write(struct job *j, const char *dir, int64_t step, bool spoilt)
{
    d9d_checkpointer_state state = {.step = step, .seed = 5, .finite = true, .parent = -1};
    const d9d_checkpointer_set set = set_of(j);

    j->steps = 7;
    D9D_TRY(boxes_make(j, true));
    if (spoilt)
        j->items[0].start[0] = 1000;
    return d9di_checkpointer_save_all(dir, &state, &set, j->mesh, ranks_per_dir, NULL);
}

static void say(void *arg, d9d_log_level level, const char *text)
{
    (void)arg, (void)level;
    printf("%s\n", text);
}

static d9d_status act_read(struct job *j, const char *dir)
{
    const d9d_log log = {.line = say, .level = D9D_LOG_INFO};
    d9d_checkpointer_set set = set_of(j);
    d9d_checkpointer_state state;
    const char *path;
    d9d_arena a = {0};
    d9d_status st;

    set.n = N;
    D9D_TRY(boxes_make(j, false));
    st = d9d_checkpointer_latest(dir, j->bootstrap, j->rank == 0 ? &log : NULL, &a, &path);
    if (st == D9D_OK && path == NULL)
        st = D9D_FAIL(D9D_ENOTFOUND, "%s: no checkpoint", dir);
    if (st == D9D_OK)
        st = d9d_checkpointer_read(path, &set, NULL, &state);
    d9d_arena_release(&a);
    return st == D9D_OK ? boxes_check(j) : st;
}

/* The steps of d9d_checkpointer_write() until this rank's files are written. */
static d9d_status act_die(struct job *j, const char *dir)
{
    const d9d_checkpointer_state state = {.step = 1, .finite = true, .parent = -1};
    const d9d_checkpointer_set set = set_of(j);
    d9d_progress progress;
    d9di_checkpointer_save s;

    D9D_TRY(boxes_make(j, true));
    D9D_TRY(d9di_checkpointer_save_begin(dir, &state, j->mesh, ranks_per_dir, &s));
    d9d_progress_start(&progress, NULL, "save", "B", 0);
    D9D_TRY(d9di_checkpointer_save_write_rank(&s, &set, &progress));
    return raise(SIGKILL) == 0 ? D9D_OK : D9D_EINVAL;
}

static d9d_status act(struct job *j, const char *what, const char *dir, int who)
{
    if (strcmp(what, "read") == 0)
        return act_read(j, dir);
    if (strcmp(what, "die") == 0 && j->rank == who)
        return act_die(j, dir);
    if (strcmp(what, "write") == 0)
        return act_write(j, dir, who > 0 ? who : 1, false);
    return act_write(j, dir, 1, j->rank == who);
}

static d9d_status job_open(struct job *j)
{
    d9d_parallel_degrees degrees = {1, 1, 1, 1, 1, 1, 1, 1, D9D_CP_ALL_GATHER};
    const d9d_mesh_opts opts = {.timeout_s = 600};

    D9D_TRY(d9d_bootstrap_open(&j->bootstrap));
    j->rank = d9d_bootstrap_rank(j->bootstrap);
    j->size = d9d_bootstrap_size(j->bootstrap);
    degrees.data_parallel_shard = j->size;
    D9D_TRY(d9d_device_open("cpu", &j->dev));
    return d9d_mesh_open(j->bootstrap, &degrees, "cpu", j->dev->stream, &opts, &j->mesh);
}

int main(int argc, char **argv)
{
    struct job j = {.rank = 0};
    d9d_status st = argc >= 3 ? job_open(&j) : D9D_FAIL(D9D_EINVAL, "ACT DIR [N]");

    if (st == D9D_OK)
        st = act(&j, argv[1], argv[2], argc > 3 ? atoi(argv[3]) : -1);
    printf("%d of %d: %s\n", j.rank, j.size, st == D9D_OK ? "well" : d9d_err_message());
    for (int k = 0; k < N; k++)
        d9d_tensor_release(&j.tensors[k]);
    d9d_mesh_close(j.mesh);
    d9d_device_close(j.dev);
    d9d_bootstrap_close(j.bootstrap);
    return st == D9D_OK ? 0 : 1;
}
