/* bad_schedule_plugin.c - a plugin for plugin.bats: schedules whose programs are wrong, each in its
 * own way. */
#include <string.h>

#include <d9d/tasks/plugin.h>

typedef struct section {
    const char *lie;
} section;
static const d9d_key keys[] = {
    D9D_KEY_STR(section, lie, D9D_REQUIRED, "what is wrong"),
    D9D_KEY_END,
};
static const d9d_table table = D9D_TABLE(section, "liar", keys, "wrong programs");

static d9d_status push(d9d_program *p, int rank, int verb, int stage, int micro)
{
    return d9d_program_push(p, rank,
                            (d9d_pipe_action){(d9d_pipe_action_kind)verb, stage, micro, false});
}

/* All forwards, then all backwards, except for one action of rank 0. */
static d9d_status build(const void *config, d9d_program *p)
{
    const char *lie = ((const section *)config)->lie;
    const struct {
        const char *name;
        int rank, verb, stage, micro;
    } more[] = {
        {"rank", p->ranks, D9D_PIPE_FORWARD, 0, 0},  {"negative rank", -1, D9D_PIPE_FORWARD, 0, 0},
        {"stage", 0, D9D_PIPE_FORWARD, 1 << 20, 0},  {"micro", 0, D9D_PIPE_BACKWARD, 0, -1},
        {"micros", 0, D9D_PIPE_FORWARD, 0, 1 << 30}, {"verb", 0, 42, 0, 0},
        {"twice", 0, D9D_PIPE_FORWARD, 0, 0},        {"other", 0, D9D_PIPE_FORWARD, 1, 0},
        {"half", 0, D9D_PIPE_DGRAD, 0, 0},           {"send", 0, D9D_PIPE_SEND_FORWARD, 0, 0},
    };

    if (strcmp(lie, "silent") == 0)
        return D9D_ECONFIG;
    if (strcmp(lie, "empty") == 0)
        return D9D_OK;
    for (int r = 0; r < p->ranks; r++)
        for (int k = 0; k < 2 * p->micros; k++)
            if (strcmp(lie, "missing") != 0 || r > 0 || k + 1 < 2 * p->micros)
                D9D_TRY(push(p, r,
                             (k < p->micros) == (strcmp(lie, "order") != 0) ? D9D_PIPE_FORWARD
                                                                            : D9D_PIPE_BACKWARD,
                             r, k % p->micros));
    for (size_t i = 0; i < sizeof(more) / sizeof(more[0]); i++)
        if (strcmp(lie, more[i].name) == 0)
            D9D_TRY(push(p, more[i].rank, more[i].verb, more[i].stage, more[i].micro));
    if (strcmp(lie, "joined") == 0)
        p->lanes[0].data[p->lanes[0].len - 1].joined = true;
    while (strcmp(lie, "endless") == 0)
        D9D_TRY(push(p, 0, D9D_PIPE_FORWARD, 0, 0));
    return D9D_OK;
}

static int stages(const void *config)
{
    const char *lie = ((const section *)config)->lie;

    return strcmp(lie, "none") == 0       ? 0
           : strcmp(lie, "many") == 0     ? INT32_MAX
           : strcmp(lie, "negative") == 0 ? -3
                                          : 1;
}

static const d9d_pipe_schedule_kind liar = {.size = sizeof(liar),
                                            .table = &table,
                                            .layout = D9D_PIPE_LOOP,
                                            .stages_per_rank = stages,
                                            .build = build};
static const d9d_pipe_schedule_kind *const schedules[] = {&liar, NULL};
D9D_PLUGIN(.schedules = schedules);
