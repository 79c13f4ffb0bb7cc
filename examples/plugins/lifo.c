/* lifo.c - a pipeline schedule: all forwards before all backwards, and backwards in reverse order
 * of micro-batches (last in, first out).
 *
 *     {"plugin": "liblifo.so",
 *      "trainer": {"pipelining": {"schedule": {"schedule": "lifo"}}}, ...}
 *
 * A schedule lists the computations of each rank.  The sends and receives between them are
 * inserted, and the whole is checked for deadlocks, before the run begins and in `--plan`.
 */
#include <d9d/tasks/plugin.h>

typedef struct section {
    int64_t limit;
} section;
static const d9d_key keys[] = {
    D9D_KEY_INT(section, limit, "1000", 1, 1 << 16, "micro-batches of a step, at most"),
    D9D_KEY_END,
};
static const d9d_table table = D9D_TABLE(section, "lifo", keys, "last in, first out");

static d9d_status build(const void *config, d9d_program *p)
{
    const int64_t limit = ((const section *)config)->limit;

    if (p->micros > limit)
        return D9D_FAIL(D9D_ECONFIG, "lifo: %d micro-batches, at most %lld", p->micros,
                        (long long)limit);
    for (int r = 0; r < p->ranks; r++) {
        for (int m = 0; m < p->micros; m++)
            D9D_TRY(d9d_program_push(
                p, r, (d9d_pipe_action){.kind = D9D_PIPE_FORWARD, .stage = r, .micro = m}));
        for (int m = p->micros - 1; m >= 0; m--)
            D9D_TRY(d9d_program_push(
                p, r, (d9d_pipe_action){.kind = D9D_PIPE_BACKWARD, .stage = r, .micro = m}));
    }
    return D9D_OK;
}

static const d9d_pipe_schedule_kind lifo = {
    .size = sizeof(lifo), .table = &table, .layout = D9D_PIPE_LOOP, .build = build};
static const d9d_pipe_schedule_kind *const schedules[] = {&lifo, NULL};
D9D_PLUGIN(.schedules = schedules);
