/* checkpointer_optimizer.c - checks that a checkpoint's optimizer state fits the run's optimizer.
 * See d9d/checkpointer/checkpointer.h. */
#include <string.h>

#include "checkpointer/checkpointer_private.h"

/* The distinct names of states, such as "exp_avg" in "model.norm.weight.exp_avg"; borrowed. */
enum { MAX_SLOTS = 16 };
typedef struct slot_names {
    const char *names[MAX_SLOTS];
    size_t n;
} slot_names;

static const char residual_name[] = "master_residual";

static const char *slot_name_of(const char *name)
{
    const char *dot = strrchr(name, '.');

    return dot != NULL ? dot + 1 : name;
}

static bool has_slot(const slot_names *w, const char *word)
{
    for (size_t i = 0; i < w->n; i++)
        if (strcmp(w->names[i], word) == 0)
            return true;
    return false;
}

static void add_slot(slot_names *w, const char *name)
{
    const char *word = slot_name_of(name);

    if (w->n < MAX_SLOTS && strcmp(word, residual_name) != 0 && !has_slot(w, word))
        w->names[w->n++] = word;
}

static bool is_of_optimizer(const d9d_sliced_tensor *t)
{
    return t->n_runs > 0 && strcmp(t->group, "optimizer") == 0;
}

static slot_names slots_saved(const d9di_checkpointer_manifest *s)
{
    slot_names w = {.n = 0};

    for (size_t i = 0; i < s->slices.n; i++)
        if (is_of_optimizer(&s->slices.tensors[i]))
            add_slot(&w, s->slices.tensors[i].name);
    return w;
}

static slot_names slots_wanted(const d9d_checkpointer_set *set)
{
    slot_names w = {.n = 0};

    for (size_t i = 0; i < set->n; i++)
        if (strcmp(set->items[i].group, "optimizer") == 0)
            add_slot(&w, set->items[i].name);
    return w;
}

static bool slots_equal(const slot_names *a, const slot_names *b)
{
    for (size_t i = 0; i < a->n; i++)
        if (!has_slot(b, a->names[i]))
            return false;
    return a->n == b->n;
}

static d9d_status print_slots(const slot_names *w, d9d_buf *out)
{
    if (w->n == 0)
        return d9d_buf_printf(out, "none");
    for (size_t i = 0; i < w->n; i++)
        D9D_TRY(d9d_buf_printf(out, "%s%s", i > 0 ? ", " : "", w->names[i]));
    return D9D_OK;
}

/* May a kind have these states?  One that keeps states keeps the first. */
static bool kind_has_slots(const d9d_optimizer_kind *kind, const slot_names *w)
{
    for (size_t i = 0; i < w->n; i++) {
        bool found = false;

        for (int k = 0; k < D9D_OPTIMIZER_STATES && kind->states[k] != NULL; k++)
            found = found || strcmp(kind->states[k], w->names[i]) == 0;
        if (!found)
            return false;
    }
    return w->n > 0 && has_slot(w, kind->states[0]);
}

/* Has a kind these states and no others? */
static bool kind_slots_equal(const d9d_optimizer_kind *kind, const slot_names *w)
{
    size_t n = 0;

    while (n < D9D_OPTIMIZER_STATES && kind->states[n] != NULL)
        n++;
    return n == w->n && kind_has_slots(kind, w);
}

static bool any_slots_equal(const slot_names *w)
{
    bool any = false;

    for (size_t i = 0; d9d_optimizer_choices[i] != NULL; i++)
        any = any || kind_slots_equal(d9d_optimizer_choices[i]->row, w);
    return any;
}

/* Appends ", as of adamw, adam, ...": the built-in kinds that have just these states, else those
 * that may have them. */
static d9d_status print_kinds(const slot_names *w, d9d_buf *out)
{
    const bool equal = any_slots_equal(w);
    bool any = false;

    for (size_t i = 0; d9d_optimizer_choices[i] != NULL; i++) {
        const d9d_table *t = d9d_optimizer_choices[i];

        if (!(equal ? kind_slots_equal : kind_has_slots)(t->row, w))
            continue;
        D9D_TRY(d9d_buf_printf(out, "%s%s", any ? ", " : ", as of ", t->name));
        any = true;
    }
    return D9D_OK;
}

static d9d_status fail_other_optimizer(const d9di_checkpointer_manifest *s,
                                       const d9d_checkpointer_set *set, const slot_names *saved,
                                       const slot_names *wanted)
{
    d9d_buf there = {0}, here = {0};
    d9d_status st;

    D9D_TRY_OR(st, print_slots(saved, &there), out);
    D9D_TRY_OR(st, print_kinds(saved, &there), out);
    D9D_TRY_OR(st, print_slots(wanted, &here), out);
    st = D9D_FAIL(D9D_EMISMATCH,
                  "%s: its optimizer state is %s, and the optimizer %s of this run keeps %s; a run "
                  "goes on with the optimizer that it began with",
                  s->path, there.data, set->optimizer, here.data);
out:
    d9d_buf_release(&there);
    d9d_buf_release(&here);
    return st;
}

d9d_status d9di_checkpointer_check_optimizer(const d9di_checkpointer_manifest *s,
                                             const d9d_checkpointer_set *set)
{
    const slot_names saved = slots_saved(s), wanted = slots_wanted(set);

    if (set->optimizer == NULL || set->n_counts == 0 || slots_equal(&saved, &wanted))
        return D9D_OK;
    return fail_other_optimizer(s, set, &saved, &wanted);
}

d9d_status d9di_checkpointer_check_masters(const d9di_checkpointer_manifest *s,
                                           const d9d_checkpointer_set *set)
{
    bool wanted = set->n_counts == 0;

    for (size_t i = 0; i < set->n; i++)
        wanted = wanted || set->items[i].residual;
    for (size_t i = 0; set->optimizer != NULL && !wanted && i < s->slices.n; i++)
        if (is_of_optimizer(&s->slices.tensors[i]) &&
            strcmp(slot_name_of(s->slices.tensors[i].name), residual_name) == 0)
            return D9D_FAIL(D9D_EMISMATCH,
                            "%s: has float32 master weights, of which this run keeps no "
                            "master_residual: set optimizer.weight_update to \"master\"",
                            s->path);
    return D9D_OK;
}

bool d9di_checkpointer_has_masters(const d9di_checkpointer_manifest *s,
                                   const d9d_checkpointer_set *set)
{
    for (size_t i = 0; i < set->n; i++)
        if (set->items[i].residual && d9d_slices_find(&s->slices, set->items[i].name) != NULL)
            return true;
    return false;
}
