/* program.c - lanes of actions, and their text.  See d9d/pipe/program.h. */
#include "d9d/pipe/program.h"

#include <ctype.h>
#include <stdio.h>
#include <string.h>

#include "pipe/program_private.h"

static const struct {
    const char *text;
    bool compute;
} actions[] = {
#define X(name, text, compute) {text, compute},
    D9D_PIPE_ACTION_MAP(X)
#undef X
};

bool d9di_pipe_action_computes(d9d_pipe_action_kind v)
{
    return actions[v].compute;
}

char *d9di_pipe_action_text(const d9d_pipe_action *a, char *buf, size_t n)
{
    (void)snprintf(buf, n, "%d%s%d", a->stage, actions[a->kind].text, a->micro);
    return buf;
}

d9d_status d9d_program_init(int ranks, int stages_per_rank, int micros, d9d_pipe_layout layout,
                            bool backward, d9d_program *out)
{
    d9d_program p = {
        .ranks = ranks, .micros = micros, .backward = backward, .layout = layout, .lanes = NULL};

    if (ranks < 1 || ranks > D9D_PIPE_MAX_RANKS || stages_per_rank < 1 ||
        stages_per_rank > D9D_PIPE_MAX_STAGES / ranks || micros < 1 || micros > D9D_PIPE_MAX_MICROS)
        return D9D_FAIL(D9D_ECONFIG,
                        "pipeline: %d ranks of %d stages with %d micro-batches; at most %d ranks, "
                        "%d stages and %d micro-batches",
                        ranks, stages_per_rank, micros, D9D_PIPE_MAX_RANKS, D9D_PIPE_MAX_STAGES,
                        D9D_PIPE_MAX_MICROS);
    p.stages = ranks * stages_per_rank;
    p.lanes = calloc((size_t)ranks, sizeof(*p.lanes));
    if (p.lanes == NULL)
        return D9D_FAIL(D9D_ENOMEM, "pipeline: lanes of %d ranks", ranks);
    *out = p;
    return D9D_OK;
}

void d9d_program_release(d9d_program *p)
{
    for (int r = 0; r < p->ranks && p->lanes != NULL; r++)
        D9D_VEC_RELEASE(&p->lanes[r]);
    free(p->lanes);
    *p = (d9d_program){0};
}

static bool is_inside(const d9d_program *p, int rank, const d9d_pipe_action *a)
{
    return rank >= 0 && rank < p->ranks && (unsigned)a->kind < D9D_PIPE_ACTION_COUNT &&
           a->stage >= 0 && a->stage < p->stages && a->micro >= 0 && a->micro < p->micros;
}

d9d_status d9d_program_push(d9d_program *p, int rank, d9d_pipe_action a)
{
    if (!is_inside(p, rank, &a))
        return D9D_FAIL(D9D_EINVAL,
                        "pipeline: action %d of stage %d and micro-batch %d on rank %d is outside "
                        "the program of %d stages, %d micro-batches and %d ranks",
                        (int)a.kind, a.stage, a.micro, rank, p->stages, p->micros, p->ranks);
    if (p->lanes[rank].len >= d9di_program_index_count(p) / (size_t)p->ranks)
        return D9D_FAIL(D9D_EINVAL, "pipeline: rank %d has %zu actions, and its stages have fewer",
                        rank, p->lanes[rank].len + 1);
    if (D9D_VEC_PUSH(&p->lanes[rank], a) != D9D_OK)
        return D9D_FAIL(D9D_ENOMEM, "pipeline: an action of rank %d", rank);
    return D9D_OK;
}

int d9d_program_rank_of(const d9d_program *p, int stage)
{
    const int place = stage % p->ranks, round = stage / p->ranks;

    return p->layout == D9D_PIPE_V && round % 2 == 1 ? p->ranks - 1 - place : place;
}

int d9d_program_stage_of(const d9d_program *p, int rank, int k)
{
    return k * p->ranks + (p->layout == D9D_PIPE_V && k % 2 == 1 ? p->ranks - 1 - rank : rank);
}

/* --- text ------------------------------------------------------------------------------------- */

d9d_status d9d_program_print(const d9d_program *p, int rank, d9d_buf *out)
{
    const d9d_pipe_lane *lane = &p->lanes[rank];
    char text[64];

    for (size_t i = 0; i < lane->len; i++)
        D9D_TRY(d9d_buf_printf(out, "%s%s",
                               d9di_pipe_action_text(&lane->data[i], text, sizeof(text)),
                               lane->data[i].joined ? "|"
                               : i + 1 == lane->len ? ""
                                                    : " "));
    return D9D_OK;
}

/* Parse a number below `end` and advance *at; -1: no such number. */
static int parse_number(const char **at, int end)
{
    int n = 0;

    if (!isdigit((unsigned char)**at))
        return -1;
    for (; isdigit((unsigned char)**at); ++*at)
        if ((n = n * 10 + (**at - '0')) >= end)
            return -1;
    return n;
}

static int parse_kind(const char **at)
{
    const size_t n = strspn(*at, "ABCDEFGHIJKLMNOPQRSTUVWXYZ_");

    for (int v = 0; v < D9D_PIPE_ACTION_COUNT; v++)
        if (strlen(actions[v].text) == n && memcmp(*at, actions[v].text, n) == 0) {
            *at += n;
            return v;
        }
    return -1;
}

d9d_status d9d_program_parse(d9d_program *p, int rank, const char *text)
{
    const char *at = text + strspn(text, " \t\n");

    while (*at != '\0') {
        const char *word = at;
        const int stage = parse_number(&at, p->stages);
        const int verb = stage < 0 ? -1 : parse_kind(&at);
        const int micro = verb < 0 ? -1 : parse_number(&at, p->micros);
        const bool joined = *at == '|';

        if (micro < 0 || (joined ? !isdigit((unsigned char)at[1]) : !strchr(" \t\n", *at)))
            return D9D_FAIL(D9D_EFORMAT,
                            "pipeline: rank %d: \"%.*s\" is no action of %d stages and "
                            "%d micro-batches",
                            rank, (int)strcspn(word, " \t\n"), word, p->stages, p->micros);
        D9D_TRY(d9d_program_push(
            p, rank, (d9d_pipe_action){(d9d_pipe_action_kind)verb, stage, micro, joined}));
        at += joined ? 1 : strspn(at, " \t\n");
    }
    return D9D_OK;
}

char *d9d_pipe_schedule_format(const d9d_pipe_schedule_opts *pipe,
                               char text[D9D_PIPE_SCHEDULE_TEXT])
{
    const char *kind =
        pipe->custom != NULL ? pipe->custom->table->name : d9d_pipe_schedule_name(pipe->kind);
    char stages[16] = "";

    if (pipe->stages_per_rank > 1)
        (void)snprintf(stages, sizeof(stages), " x%d", pipe->stages_per_rank);
    (void)snprintf(text, D9D_PIPE_SCHEDULE_TEXT, "%.20s%s%s%s", kind, stages,
                   pipe->zero_bubble ? " zero bubble" : "", pipe->deep_warmup ? " deep" : "");
    return text;
}
