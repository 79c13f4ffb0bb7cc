/* small_task.c - see small_task.h. */
#include "certify/small_task.h"

#include <string.h>

#include "d9d/config/config.h"
#include "d9d/model/family/family.h"

enum { PAIRED_ROWS = 4 }; /* two pairs */

d9d_status d9di_small_task_find(const char *name, d9d_head_kind *out)
{
    const char *names[D9D_HEAD_COUNT + 1] = {NULL};
    const char *near;

    for (int h = 0; h < D9D_HEAD_COUNT; h++) {
        names[h] = d9d_head_name((d9d_head_kind)h);
        if (strcmp(names[h], name) != 0)
            continue;
        *out = (d9d_head_kind)h;
        return D9D_OK;
    }
    near = d9d_config_did_you_mean(name, names);
    return D9D_FAIL(D9D_ECONFIG, "--task: there is no task %s%s%s%s", name,
                    near != NULL ? "; did you mean \"" : "", near != NULL ? near : "",
                    near != NULL ? "\"?" : "");
}

int64_t d9di_small_task_ids(const d9d_model_spec *spec, d9d_head_kind head, int64_t vocab)
{
    const d9d_family_config *c = spec->provider->family != NULL ? spec->config : NULL;
    const bool in_files =
        c != NULL && head == D9D_HEAD_CLASSIFICATION && c->head == D9D_HEAD_CLASSIFICATION;

    return in_files && c->labels < vocab ? c->labels : vocab;
}

/* What a section has beside its name.  Labels of a row are tokens, so that there are as many
 * classes, and of masked tokens those of the data. */
static json_t *options_of(d9d_head_kind head, int64_t ids)
{
    switch (head) {
    case D9D_HEAD_CLASSIFICATION:
        return json_pack("{s:I, s:s}", "num_labels", (json_int_t)ids, "pooling", "mean");
    case D9D_HEAD_EMBEDDING: return json_pack("{s:s, s:f}", "pooling", "mean", "temperature", 0.5);
    case D9D_HEAD_MASKED_LM: return json_pack("{s:i}", "mlm_probability", 0);
    case D9D_HEAD_CAUSAL_LM:
    case D9D_HEAD_COUNT: break;
    }
    return json_object();
}

json_t *d9di_small_task_section(d9d_head_kind head, int64_t ids)
{
    json_t *section = options_of(head, ids);

    if (section != NULL)
        d9d_json_set(&section, "name", json_string(d9d_head_name(head)));
    return section;
}

int64_t d9di_small_task_rows(d9d_head_kind head, int64_t wanted)
{
    return head == D9D_HEAD_EMBEDDING ? (wanted > PAIRED_ROWS ? wanted : PAIRED_ROWS) : wanted;
}

static const d9d_table *table_of(d9d_head_kind head)
{
    const d9d_table *const *t = d9d_train_task_choices;

    while (strcmp((*t)->name, d9d_head_name(head)) != 0)
        t++;
    return *t;
}

d9d_status d9di_small_task_open(d9d_head_kind head, int64_t ids, d9d_arena *a, d9di_task *out)
{
    const d9d_table *table = table_of(head);
    json_t *doc = options_of(head, ids);
    void *section = d9d_arena_alloc(a, table->size + 1);
    d9d_status st;

    if (doc == NULL || section == NULL)
        st = D9D_FAIL(D9D_ENOMEM, "certificate: out of memory");
    else
        st = d9d_config_bind(table, doc, "task", NULL, a, section);
    json_decref(doc);
    return st == D9D_OK ? d9di_task_open_kind(table->row, section, out) : st;
}
