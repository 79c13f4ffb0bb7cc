/* dry_prices.c - what the actions of a pipeline take.  See loop/dry_run.h.
 *
 * The executor names each action as a program's text does, "3F12": stage, verb, micro-batch.
 */
#include <stdlib.h>
#include <string.h>

#include "d9d/device/imagined.h"
#include "loop/dry_run.h"
#include "loop/engine.h"

/* Of one stage, by what was done. */
typedef struct sums {
    double seconds[D9D_VERB_COUNT];
    int64_t calls[D9D_VERB_COUNT];
} sums;

static bool read_action(const char *name, int *stage, d9d_verb *verb)
{
    static const struct {
        char letter;
        d9d_verb verb;
    } verbs[] = {{'F', D9D_FORWARD}, {'B', D9D_BACKWARD}, {'I', D9D_INPUT}, {'W', D9D_WEIGHT}};
    char *end;
    const long n = strtol(name, &end, 10);

    if (end == name || n < 0 || n > D9D_PIPE_MAX_STAGES)
        return false;
    for (size_t i = 0; i < sizeof(verbs) / sizeof(verbs[0]); i++)
        if (verbs[i].letter == *end) {
            *stage = (int)n;
            *verb = verbs[i].verb;
            return true;
        }
    return false;
}

static double mean(const sums *s, d9d_verb v)
{
    return s->calls[v] > 0 ? s->seconds[v] / (double)s->calls[v] : 0;
}

/* Where no half was done alone both are half of the whole. */
static d9d_stage_price price_of(const sums *s)
{
    const double whole = mean(s, D9D_BACKWARD);
    const bool split = s->calls[D9D_INPUT] > 0;

    return (d9d_stage_price){
        .forward = mean(s, D9D_FORWARD),
        .input = split ? mean(s, D9D_INPUT) : whole / 2,
        .weight = split ? mean(s, D9D_WEIGHT) : whole / 2,
    };
}

static void find_transfer(d9di_dry_run *out)
{
    for (size_t i = 0; i < out->tally.n_talk; i++) {
        const d9d_paper_talk *t = &out->tally.talk[i];

        if (strcmp(t->group, "pp") == 0 && strcmp(t->verb, "exchange") == 0 && t->calls > 0)
            out->transfer_s = t->seconds / (double)t->calls;
    }
}

d9d_status d9di_dry_prices(const d9di_engine *e, d9d_arena *a, d9di_dry_run *out)
{
    const size_t n = (size_t)e->program.stages;
    size_t n_ranges;
    const d9d_device_range *r = d9d_device_ranges(e->dev, &n_ranges);
    sums *all = d9d_arena_alloc(a, n * sizeof(*all));
    int stage;
    d9d_verb verb;

    out->stages = d9d_arena_alloc(a, e->n_stages * sizeof(*out->stages));
    if (all == NULL || out->stages == NULL)
        return D9D_FAIL(D9D_ENOMEM, "plan: %zu stages", n);
    for (size_t i = 0; i < n_ranges; i++) {
        if (!read_action(r[i].name, &stage, &verb) || (size_t)stage >= n)
            continue;
        all[stage].seconds[verb] += r[i].end - r[i].begin;
        all[stage].calls[verb]++;
        out->actions_s += r[i].end - r[i].begin;
    }
    for (size_t k = 0; k < e->n_stages; k++) {
        stage = e->stages[k].model->stage.index;
        out->stages[out->n_stages++] = (d9di_dry_stage){stage, price_of(&all[stage])};
    }
    find_transfer(out);
    return D9D_OK;
}
