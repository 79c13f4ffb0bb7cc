/* test_fsdp_param.c - shards of a parameter in transfers between ranks, on the simulated device. */
#include "d9d/comm/mesh.h"
#include "d9d/device/simulated.h"
#include "d9d/kernels/sim.h"
#include "d9d/nn/module.h"
#include "parallel/fsdp_param.h"
#include "parallel/narrow_reduce.h"
#include "support/unit.h"

enum { RANKS = 4, ME = 1 };

typedef struct job {
    d9d_device *dev;
    d9d_bootstrap *bootstrap;
    d9d_mesh *mesh;
    d9d_comm *shard;
} job;

static void job_open(job *j)
{
    const d9d_parallel_degrees d = {1, 1, RANKS, 1, 1, 1, 1, 1, D9D_CP_ALL_GATHER};
    const d9d_mesh_opts opts = {0};

    assert_ok(d9d_device_simulate("h100", &j->dev));
    assert_ok(d9d_bootstrap_simulate(ME, RANKS, &j->bootstrap));
    assert_ok(d9d_mesh_open(j->bootstrap, &d, "sim", j->dev->stream, &opts, &j->mesh));
    assert_ok(d9d_mesh_group(j->mesh, D9D_AXES_SHARD, &j->shard));
}

static void job_close(job *j)
{
    d9d_mesh_close(j->mesh);
    d9d_bootstrap_close(j->bootstrap);
    d9d_device_close(j->dev);
}

/* Of a parameter of this shape, cut along `dim`: what all are sent as, 0 as they are, and the bytes
 * that a gather takes from other ranks. */
static int64_t sent(job *j, d9d_shape shape, int dim, double *bytes)
{
    const d9d_sim_tally *t = d9d_sim_get_tally(d9d_sim_of_stream(j->dev->stream));
    int64_t counts[3 * RANKS];
    d9di_fsdp_param parts;
    d9d_module m;
    d9d_param p;

    d9d_module_init(&m);
    assert_ok(d9d_module_param(&m, "w", &p, D9D_BF16, shape, D9D_INIT_ONES, 0));
    assert_ok(d9d_module_bind(&m));
    d9d_param_shard(&p, j->shard, dim, RANKS, ME);
    assert_ok(d9d_tensor_alloc(j->dev, D9D_BF16, p.shard.shape, &p.shard.data));
    d9di_fsdp_param_init(&parts, &p, D9D_F32, counts);
    assert_ok(d9d_comm_wait_stream(j->shard, j->dev->stream));
    assert_ok(d9di_fsdp_param_unshard_start(&parts, &p, j->dev));
    assert_ok(d9d_stream_wait_comm(j->shard, j->dev->stream));
    assert_ok(d9di_fsdp_param_unshard_finish(&parts, &p, j->dev));
    *bytes = t->traffic[t->n_traffic - 1].bytes;
    d9d_tensor_release(&p.local.data);
    d9d_tensor_release(&p.shard.data);
    d9d_module_release(&m);
    return parts.padded_counts == NULL ? 0 : parts.padded_counts[0];
}

/* A collective of equal counts is one call; one of unequal counts is a call for each rank. */
static void all_are_sent_as_the_largest(void **state)
{
    double bytes, before = 0;
    job j;

    (void)state;
    job_open(&j);
    assert_int_equal(sent(&j, D9D_SHAPE(8, 10), 0, &bytes), 0);
    assert_true(bytes == 2 * 60);
    before = bytes;
    assert_int_equal(sent(&j, D9D_SHAPE(5, 10), 0, &bytes), 20); /* 2 1 1 1 */
    assert_true(bytes - before == 2 * 60);
    before = bytes;
    assert_int_equal(sent(&j, D9D_SHAPE(3, 7, 2), 1, &bytes), 12); /* 2 2 2 1, three times */
    assert_true(bytes - before == 2 * 36);
    before = bytes;
    assert_int_equal(sent(&j, D9D_SHAPE(1, 100), 0, &bytes), 100); /* three of none */
    assert_true(bytes - before == 2 * 300);
    before = bytes;
    assert_int_equal(sent(&j, D9D_SHAPE(1, 100000), 0, &bytes), 100000); /* however large */
    assert_true(bytes - before == 2 * 300000);
    job_close(&j);
}

/* Bytes that a rank sends of such a parameter's gradient as bfloat16, to three others. */
static double narrow_bytes(job *j, d9d_shape shape, int dim)
{
    const d9d_sim_tally *t = d9d_sim_get_tally(d9d_sim_of_stream(j->dev->stream));
    int64_t counts[3 * RANKS];
    d9di_fsdp_param parts;
    double before = 0;
    d9d_module m;
    d9d_param p;

    for (size_t i = 0; i < t->n_traffic; i++)
        before += t->traffic[i].bytes;
    d9d_module_init(&m);
    assert_ok(d9d_module_param(&m, "w", &p, D9D_BF16, shape, D9D_INIT_ONES, 0));
    assert_ok(d9d_module_bind(&m));
    d9d_param_shard(&p, j->shard, dim, RANKS, ME);
    assert_ok(d9d_tensor_alloc(j->dev, D9D_F32, p.local.shape, &p.local.grad));
    assert_ok(d9d_tensor_alloc(j->dev, D9D_F32, p.shard.shape, &p.shard.grad));
    p.local.has_grad = true;
    d9di_fsdp_param_init(&parts, &p, D9D_BF16, counts);
    assert_ok(d9di_fsdp_param_reduce_pack(&parts, &p, j->dev));
    assert_int_equal(d9d_tensor_numel(&parts.received) / RANKS % D9DI_NARROW_REDUCE_ALIGN, 0);
    assert_ok(d9d_comm_wait_stream(j->shard, j->dev->stream));
    assert_ok(d9di_fsdp_param_reduce_start(&parts, &p, j->dev));
    assert_ok(d9di_fsdp_param_reduce_accumulate(&parts, &p, j->dev));
    assert_ok(d9d_stream_wait_comm(j->shard, j->dev->stream));
    assert_true(p.shard.has_grad && !p.local.has_grad && parts.sum.storage == NULL);
    d9di_fsdp_param_reduce_finish(&parts);
    assert_null(parts.received.storage);
    for (size_t i = 0; i < t->n_traffic; i++)
        before -= t->traffic[i].bytes;
    d9d_module_release(&m);
    return -before;
}

/* Equal and aligned parts of every rank, whatever the shards are. */
static void gradients_as_bfloat16_are_sent_aligned(void **state)
{
    job j;

    (void)state;
    job_open(&j);
    assert_true(narrow_bytes(&j, D9D_SHAPE(8, 16), 0) == 3 * 2 * 32);
    assert_true(narrow_bytes(&j, D9D_SHAPE(8, 10), 0) == 3 * 2 * 24);   /* of 20 */
    assert_true(narrow_bytes(&j, D9D_SHAPE(5, 10), 0) == 3 * 2 * 24);   /* 20 10 10 10 */
    assert_true(narrow_bytes(&j, D9D_SHAPE(3, 7, 2), 1) == 3 * 2 * 16); /* 12 12 12 6 */
    assert_true(narrow_bytes(&j, D9D_SHAPE(2, 128), 1) == 3 * 2 * 64);  /* not contiguous */
    assert_true(narrow_bytes(&j, D9D_SHAPE(1, 100), 0) == 3 * 2 * 104); /* three of none */
    job_close(&j);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(all_are_sent_as_the_largest),
                                       cmocka_unit_test(gradients_as_bfloat16_are_sent_aligned)};

    return cmocka_run_group_tests(tests, NULL, NULL);
}
