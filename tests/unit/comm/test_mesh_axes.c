/* test_mesh_axes.c - mesh axes: the ranks of each process group. */
#include <string.h>

#include "comm/mesh_axes.h"
#include "support/unit.h"

static const d9d_parallel_degrees alone = {1, 1, 1, 1, 1, 1, 1, 1, D9D_CP_ALL_GATHER};

/* Pipeline, replicate, shard, context replicate, context shard, tensor, expert, expert local. */
static const d9d_parallel_degrees meshes[] = {
    {1, 1, 1, 1, 1, 1, 1, 1, D9D_CP_ALL_GATHER}, {2, 1, 1, 1, 1, 1, 1, 1, D9D_CP_ALL_GATHER},
    {1, 1, 2, 1, 1, 2, 4, 1, D9D_CP_ALL_GATHER}, {2, 2, 2, 2, 2, 2, 16, 1, D9D_CP_ALL_GATHER},
    {3, 1, 5, 1, 2, 1, 5, 1, D9D_CP_ALL_GATHER}, {1, 4, 1, 3, 1, 2, 1, 1, D9D_CP_ALL_GATHER},
    {2, 1, 3, 1, 1, 4, 6, 1, D9D_CP_ALL_GATHER}, {1, 16, 16, 2, 2, 8, 8, 1, D9D_CP_ALL_GATHER},
    {2, 4, 6, 1, 1, 1, 4, 1, D9D_CP_ALL_GATHER}, {1, 8, 2, 1, 1, 1, 4, 1, D9D_CP_ALL_GATHER},
    {1, 2, 4, 1, 1, 2, 8, 4, D9D_CP_ALL_GATHER},
};

static int64_t ranks_of(const d9d_parallel_degrees *d)
{
    return d->pipeline_parallel * d->data_parallel_replicate * d->data_parallel_shard *
           d->context_parallel_replicate * d->context_parallel_shard * d->tensor_parallel;
}

/* The groups of a set partition the ranks; ranks of a group are in order. */
static void groups_are_a_partition(void **state)
{
    static unsigned char seen[1 << 16];
    static int64_t last[1 << 16];

    (void)state;
    for (size_t m = 0; m < sizeof(meshes) / sizeof(meshes[0]); m++)
        for (unsigned axes = 0; axes <= D9D_AXES_WORLD + 15; axes++) {
            const unsigned set =
                axes <= D9D_AXES_WORLD ? axes : (axes - D9D_AXES_WORLD) * D9D_AXES_EXPERT_ACROSS;
            const int64_t n = ranks_of(&meshes[m]);

            memset(seen, 0, sizeof(seen));
            memset(last, 0xff, sizeof(last));
            for (int64_t r = 0; r < n; r++) {
                const d9di_mesh_place p = d9di_mesh_axes_place(&meshes[m], set, r);

                assert_true(p.index >= 0 && p.index < p.count);
                assert_true(p.group >= 0 && p.group < n / p.count);
                assert_int_equal(seen[p.group * p.count + p.index]++, 0);
                assert_int_equal(p.index, last[p.group] + 1);
                last[p.group] = p.index;
            }
        }
}

static void check_members(const d9d_parallel_degrees *d, unsigned axes, int64_t rank, int64_t first,
                          int64_t step, int64_t count)
{
    const d9di_mesh_place place = d9di_mesh_axes_place(d, axes, rank);

    assert_int_equal(place.count, count);
    for (int64_t i = 0; i < count; i++) {
        const d9di_mesh_place p = d9di_mesh_axes_place(d, axes, first + i * step);

        assert_int_equal(p.group, place.group);
        assert_int_equal(p.index, i);
    }
}

static void the_last_axis_is_fastest(void **state)
{
    /* 2 stages of replicate 2, shard 2, context shard 2, context replicate 2, tensor 2 */
    const d9d_parallel_degrees *d = &meshes[3];

    (void)state;
    check_members(d, D9D_AXIS(TP), 3, 2, 1, 2);
    check_members(d, D9D_AXIS(CP_REPLICATE), 0, 0, 2, 2);
    check_members(d, D9D_AXIS(CP_SHARD), 0, 0, 4, 2);
    check_members(d, D9D_AXIS(DP_SHARD), 0, 0, 8, 2);
    check_members(d, D9D_AXIS(DP_REPLICATE), 0, 0, 16, 2);
    check_members(d, D9D_AXIS(PP), 5, 5, 32, 2);
    check_members(d, D9D_AXES_SHARD, 1, 1, 4, 4);
    check_members(d, D9D_AXES_STAGE, 40, 32, 1, 32);
    check_members(d, D9D_AXES_WORLD, 40, 0, 1, 64);
}

static void experts_cut_a_stage_into_rows(void **state)
{
    const d9d_parallel_degrees d = {
        2, 1, 4, 1, 1, 2, 4, 1, D9D_CP_ALL_GATHER}; /* 2 stages of 8 ranks, rows of 4 */

    (void)state;
    check_members(&d, D9D_AXES_EXPERT, 1, 0, 1, 4);
    check_members(&d, D9D_AXES_EXPERT, 6, 4, 1, 4);
    check_members(&d, D9D_AXES_EXPERT, 15, 12, 1, 4);
    check_members(&d, D9D_AXES_EXPERT_SHARD, 1, 1, 4, 2);
    check_members(&d, D9D_AXES_EXPERT_SHARD, 14, 10, 4, 2);
    check_members(&d, D9D_AXES_EXPERT_REPLICATE, 14, 14, 0, 1);
}

/* A row of eight ranks on two nodes of four. */
static void nodes_cut_a_row_of_experts(void **state)
{
    const d9d_parallel_degrees d = {1, 2, 4, 1, 1, 2, 8, 4, D9D_CP_ALL_GATHER};

    (void)state;
    check_members(&d, D9D_AXES_EXPERT, 10, 8, 1, 8);
    check_members(&d, D9D_AXES_EXPERT_LOCAL, 10, 8, 1, 4);
    check_members(&d, D9D_AXES_EXPERT_ACROSS, 10, 10, 4, 2);
    check_members(&d, D9D_AXES_EXPERT_REPLICATE, 10, 2, 8, 2);
    assert_int_equal(d9di_mesh_axes_normalize(&d, D9D_AXES_EXPERT), D9D_AXES_EXPERT);
}

/* Ranks of a column are sharded within a replica. */
static void replicas_cut_the_columns_of_experts(void **state)
{
    const d9d_parallel_degrees within = {
        1, 3, 4, 1, 1, 2, 2, 1, D9D_CP_ALL_GATHER}; /* 3 replicas of 8, rows of 2 */
    const d9d_parallel_degrees across = {
        1, 8, 2, 1, 1, 1, 4, 1, D9D_CP_ALL_GATHER}; /* a row is two replicas */
    const d9d_parallel_degrees neither = {1, 4, 6, 1, 1, 1, 4, 1, D9D_CP_ALL_GATHER};
    const unsigned column = D9D_AXES_EXPERT_SHARD | D9D_AXES_EXPERT_REPLICATE;

    (void)state;
    check_members(&within, D9D_AXES_EXPERT_SHARD, 13, 9, 2, 4);
    check_members(&within, D9D_AXES_EXPERT_REPLICATE, 13, 5, 8, 3);
    check_members(&within, column, 13, 1, 2, 12);
    check_members(&across, D9D_AXES_EXPERT_SHARD, 5, 5, 0, 1);
    check_members(&across, D9D_AXES_EXPERT_REPLICATE, 5, 1, 4, 4);
    check_members(&neither, D9D_AXES_EXPERT_SHARD, 5, 1, 4, 6);
    check_members(&neither, D9D_AXES_EXPERT_REPLICATE, 5, 5, 0, 1);
}

static void axes_of_one_rank_do_not_count(void **state)
{
    const d9d_parallel_degrees d = {1, 1, 4, 1, 1, 2, 1, 1, D9D_CP_ALL_GATHER};

    (void)state;
    assert_int_equal(d9di_mesh_axes_normalize(&d, D9D_AXES_SHARD), D9D_AXIS(DP_SHARD));
    assert_int_equal(d9di_mesh_axes_normalize(&d, D9D_AXES_WORLD),
                     D9D_AXIS(DP_SHARD) | D9D_AXIS(TP));
    assert_int_equal(d9di_mesh_axes_normalize(&d, D9D_AXES_EXPERT), 0);
    assert_int_equal(
        d9di_mesh_axes_normalize(&d, D9D_AXES_EXPERT_SHARD | D9D_AXES_EXPERT_REPLICATE),
        D9D_AXES_EXPERT_SHARD);
    assert_int_equal(d9di_mesh_axes_normalize(&alone, D9D_AXES_WORLD), 0);
}

static void texts(void **state)
{
    const d9d_parallel_degrees d = {2, 2, 2, 2, 2, 2, 4, 1, D9D_CP_ALL_GATHER},
                               pair = {1, 1, 2, 1, 1, 2, 1, 1, D9D_CP_ALL_GATHER};
    char buf[128];

    (void)state;
    assert_string_equal(d9di_mesh_axes_text(&alone, 0, buf, sizeof(buf)), "local");
    assert_string_equal(d9di_mesh_axes_text(&pair, 2, buf, sizeof(buf)), "dps 1 tp 0");
    assert_string_equal(d9di_mesh_axes_text(&d, 63, buf, sizeof(buf)),
                        "pp 1 dpr 1 dps 1 cps 1 cpr 1 tp 1");
    assert_string_equal(d9di_mesh_axes_text(&d, 63, buf, 10), "pp 1 dpr ");
    assert_string_equal(d9di_mesh_axes_name(D9D_AXES_SHARD, buf, sizeof(buf)), "dp_shard+cp_shard");
    assert_string_equal(d9di_mesh_axes_name(D9D_AXES_EXPERT_ACROSS, buf, sizeof(buf)), "expert");
    assert_string_equal(d9di_mesh_axes_name(D9D_AXES_EXPERT, buf, sizeof(buf)),
                        "expert+expert_local");
    assert_string_equal(d9di_mesh_axes_name(D9D_AXES_WORLD, buf, sizeof(buf)),
                        "pp+dp_replicate+dp_shard+cp_shard+cp_replicate+tp");
}

static void a_world_of_one_is_immediate(void **state)
{
    const d9d_mesh_opts opts = {.timeout_s = 0};
    d9d_parallel_degrees two = alone;
    d9d_bootstrap *bootstrap;
    d9d_mesh *mesh;
    d9d_comm *c = (d9d_comm *)&mesh;
    float x[2] = {1, 2}, y[2] = {0, 0};

    (void)state;
    assert_ok(d9d_bootstrap_open(&bootstrap));
    assert_ok(d9d_mesh_open(bootstrap, &alone, "cuda", NULL, &opts, &mesh)); /* has no group */
    assert_ok(d9d_mesh_group(mesh, D9D_AXES_WORLD, &c));
    assert_null(c);
    assert_int_equal(d9d_mesh_count(mesh, D9D_AXES_EXPERT), 1);
    assert_ok(d9d_mesh_root_first_begin(mesh));
    assert_ok(d9d_mesh_root_first_end(mesh));
    d9d_mesh_close(mesh);
    assert_ok(d9d_comm_all_gather(NULL, NULL, "x", D9D_F32, y, x, (int64_t[]){2}));
    assert_memory_equal(x, y, sizeof(x));
    assert_fails(d9d_comm_all_reduce(NULL, NULL, "x", D9D_U8, x, 2, D9D_COMM_SUM), D9D_EINVAL,
                 "single: x: there are no sums of uint8 between ranks");
    assert_fails(d9d_comm_send(NULL, NULL, "x", D9D_F32, x, 2, 0), D9D_EINVAL,
                 "single: x: a message between rank 0 and rank 0 of 1");
    two.tensor_parallel = 2;
    assert_fails_like(d9d_mesh_open(bootstrap, &two, "cpu", NULL, &opts, &mesh), D9D_ECONFIG,
                      "mesh: tensor_parallel 2 is 2 ranks, and this job has 1");
    two.expert_parallel = 2;
    assert_fails_like(d9d_mesh_open(bootstrap, &two, "cpu", NULL, &opts, &mesh), D9D_ECONFIG,
                      "is 2 ranks, and this job has 1; expert_parallel adds none");
    d9d_bootstrap_close(bootstrap);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(groups_are_a_partition),
        cmocka_unit_test(the_last_axis_is_fastest),
        cmocka_unit_test(experts_cut_a_stage_into_rows),
        cmocka_unit_test(nodes_cut_a_row_of_experts),
        cmocka_unit_test(replicas_cut_the_columns_of_experts),
        cmocka_unit_test(axes_of_one_rank_do_not_count),
        cmocka_unit_test(texts),
        cmocka_unit_test(a_world_of_one_is_immediate),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
