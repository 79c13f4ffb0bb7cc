/* bench_experts.c - benchmark of expert parallelism: sending tokens to the ranks of their experts
 * (all-to-all).
 *
 *     mpirun -n 2 build/tests/bench/bench_experts [TOKENS ...]
 *
 * Measures dispatch and combine alone, with the GB/s of rows that a rank sends and receives; then
 * the whole block, forward and backward.  Uses the device that D9D_TEST_DEVICE names: the layer of
 * Qwen3-30B-A3B on a GPU, a small one on the CPU.  Times are those of the slowest rank.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "d9d/base/thread.h"
#include "d9d/nn/block.h"
#include "op/moe/op_moe_all_to_all.h"
#include "support/ranks.h"
#include "support/unit_device.h"

enum { WARM = 3, TIMES = 10, MOST = 64 };

typedef struct bench {
    ranks w;
    d9d_dtype t;
    d9d_block_moe_shape shape;
    d9d_groups cut;
    d9d_block_moe block;
    d9d_tape *tape;
    d9d_tensor x, dy;
    int64_t far; /* rows that went to other ranks at last */
} bench;

typedef d9d_status (*act)(bench *b);

static void must(d9d_status st)
{
    if (st == D9D_OK)
        return;
    fprintf(stderr, "bench_experts: %s\n", d9d_err_message());
    exit(1);
}

static d9d_status routed(bench *b, d9d_var *x, d9d_var **prob, d9d_routing *r)
{
    d9d_var *logits;

    D9D_TRY(d9d_block_linear_forward(&b->block.gate, b->tape, x, &logits));
    return d9d_op_router(b->tape, logits,
                         &(d9d_op_router_opts){.k = (int)b->shape.top_k, .renormalise = true}, prob,
                         r);
}

static d9d_status there_and_back(bench *b, d9d_var *x, d9d_var *prob, const d9d_routing *r)
{
    const int rank = d9d_comm_rank(b->w.comm);
    d9d_op_moe_dispatch there;
    d9d_var *y;
    d9d_status st;

    D9D_TRY(d9d_op_dispatch(b->tape, b->w.comm, "bench", x, prob, r, &there));
    b->far = there.exchange != NULL ? there.exchange->send - there.exchange->rows[rank] : 0;
    st = d9d_op_combine(b->tape, there.x, &there, &y);
    d9d_op_moe_dispatch_release(&there);
    return st;
}

static d9d_status route_only(bench *b)
{
    d9d_routing r = {0};
    d9d_var *x, *prob;
    d9d_status st;

    D9D_TRY(d9d_tape_leaf(b->tape, &b->x, false, &x));
    st = routed(b, x, &prob, &r);
    d9d_routing_release(&r);
    return st;
}

static d9d_status route_and_exchange(bench *b)
{
    d9d_routing r = {0};
    d9d_var *x, *prob;
    d9d_status st;

    D9D_TRY(d9d_tape_leaf(b->tape, &b->x, false, &x));
    st = routed(b, x, &prob, &r);
    if (st == D9D_OK)
        st = there_and_back(b, x, prob, &r);
    d9d_routing_release(&r);
    return st;
}

static d9d_status whole_block(bench *b)
{
    d9d_var *x, *y;

    D9D_TRY(d9d_tape_leaf(b->tape, &b->x, true, &x));
    D9D_TRY(d9d_block_moe_forward(&b->block, b->tape, x, NULL, &y));
    return d9d_tape_backward(b->tape, &y, &b->dy, 1, D9D_BACKWARD_FULL);
}

/* Seconds of one, by the slowest rank. */
static double seconds(bench *b, act run, bool recording)
{
    d9d_comm_blob all[MOST];
    d9d_arena a = {0};
    int64_t start = 0;
    double local, most = 0.0;

    d9d_tape_set_recording(b->tape, recording);
    for (int i = 0; i < WARM + TIMES; i++) {
        if (i == WARM) {
            must(d9d_device_sync(b->w.dev));
            must(d9d_comm_barrier(b->w.comm, "bench"));
            start = d9d_clock_ns();
        }
        must(run(b));
        d9d_tape_reset(b->tape);
    }
    must(d9d_device_sync(b->w.dev));
    local = (double)(d9d_clock_ns() - start) * 1e-9 / TIMES;
    must(d9d_comm_allgather_bytes(b->w.comm, "bench", &local, sizeof(local), &a, all));
    for (int r = 0; r < b->w.size; r++) {
        memcpy(&local, all[r].data, sizeof(local));
        most = local > most ? local : most;
    }
    d9d_arena_release(&a);
    return most;
}

static d9d_status cut_experts(void *arg, d9d_param *p)
{
    const ranks *w = arg;

    if (p->spec.shape.ndim == 3)
        d9d_param_partition(p, 0, w->size, w->rank);
    return D9D_OK;
}

static void setup(bench *b)
{
    const bool cpu = unit_device_is_cpu();
    const d9d_block_opts opts = {.dtype = b->t, .init_std = 0.02, .groups = &b->cut};

    b->shape = cpu ? (d9d_block_moe_shape){.hidden = 256,
                                           .intermediate = 96,
                                           .experts = 16,
                                           .top_k = 4,
                                           .renormalise = true}
                   : (d9d_block_moe_shape){.hidden = 2048,
                                           .intermediate = 768,
                                           .experts = 128,
                                           .top_k = 8,
                                           .renormalise = true};
    b->cut.ep = b->w.comm;
    must(d9d_block_moe_init(&b->block, &opts, &b->shape));
    must(d9d_module_bind(&b->block.module));
    must(d9d_module_each(&b->block.module, cut_experts, &b->w));
    must(d9d_module_materialise(&b->block.module, b->w.dev, true));
    must(d9d_module_reset(&b->block.module, 1));
    must(d9d_tape_create(b->w.dev, &b->tape));
}

static void measure(bench *b, int64_t tokens)
{
    const d9d_shape shape = D9D_SHAPE(tokens, b->shape.hidden);
    double route, exchange, block;

    b->x = ranks_numbers(&b->w, b->t, shape, 10 + (uint64_t)b->w.rank);
    b->dy = ranks_numbers(&b->w, b->t, shape, 100 + (uint64_t)b->w.rank);
    route = seconds(b, route_only, false);
    exchange = seconds(b, route_and_exchange, false) - route;
    block = seconds(b, whole_block, true);
    if (b->w.rank == 0)
        printf("%d ranks, %lld tokens each, top %lld of %lld: dispatch and combine %.3f ms, %.1f "
               "GB/s to others; block, forward and backward %.3f ms\n",
               b->w.size, (long long)tokens, (long long)b->shape.top_k, (long long)b->shape.experts,
               exchange * 1e3,
               2e-9 * (double)b->far * (double)b->shape.hidden * (double)d9d_dtype_size(b->t) /
                   exchange,
               block * 1e3);
    d9d_tensor_release(&b->x);
    d9d_tensor_release(&b->dy);
}

int main(int argc, char **argv)
{
    bench b = {.t = unit_device_is_cpu() ? D9D_F32 : D9D_BF16};
    d9d_parallel_degrees d = {1, 1, 1, 1, 1, 1, 1, 1, D9D_CP_ALL_GATHER};
    d9d_bootstrap *bootstrap;

    must(d9d_bootstrap_open(&bootstrap));
    d.data_parallel_shard = d.expert_parallel = d9d_bootstrap_size(bootstrap);
    must(ranks_open(bootstrap, &d, D9D_AXES_EXPERT, &b.w));
    setup(&b);
    for (int i = 1; i < argc; i++)
        measure(&b, atoll(argv[i]));
    for (int64_t t = 512; argc == 1 && t <= (unit_device_is_cpu() ? 1024 : 8192); t *= 2)
        measure(&b, t);
    d9d_tape_free(b.tape);
    d9d_module_release(&b.block.module);
    ranks_close(&b.w);
    return 0;
}
