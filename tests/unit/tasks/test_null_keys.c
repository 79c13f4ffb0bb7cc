/* test_null_keys.c - every key whose default is null accepts a null that is written out, in a
 * file and by --set, and so does every key that calls itself nullable. */
#include <string.h>

#include "d9d/ckpt/mapper/mapper_spec.h"
#include "d9d/job/job.h"
#include "d9d/model/family/family.h"
#include "d9d/models/models.h"
#include "d9d/sched/lr_table.h"
#include "support/unit.h"

enum { MAX_TABLES = 512 };

typedef struct walk {
    const d9d_table *seen[MAX_TABLES];
    size_t n, keys; /* tables; keys that accept null */
} walk;

/* A document with this one key, null, bound by a table of this one key. */
static void check_key(const d9d_table *t, const d9d_key *k)
{
    const d9d_key one[] = {*k, D9D_KEY_END};
    const d9d_table alone = {.name = t->name, .size = t->size, .keys = one};
    char *value = calloc(1, t->size), set[128];
    json_t *doc = json_object(), *full = NULL;
    d9d_arena a = {0};

    assert_non_null(value);
    (void)snprintf(set, sizeof(set), "%s=null", k->name);
    assert_ok(d9d_config_set(&alone, doc, set));
    assert_true(json_is_null(json_object_get(doc, k->name)));
    if (d9d_config_bind(&alone, doc, "c", NULL, &a, value) != D9D_OK)
        fail_msg("%s: %s", t->name, d9d_err_message());
    assert_ok(d9d_config_resolve(&alone, doc, "c", NULL, &full));
    json_decref(full);
    json_decref(doc);
    free(value);
    d9d_arena_release(&a);
}

static bool is_seen(walk *w, const d9d_table *t)
{
    for (size_t i = 0; i < w->n; i++)
        if (w->seen[i] == t)
            return true;
    assert_true(w->n < MAX_TABLES);
    w->seen[w->n++] = t;
    return false;
}

static void check_table(walk *w, const d9d_table *t);

static void check_below(walk *w, const d9d_key *k)
{
    if (k->table != NULL)
        check_table(w, k->table);
    for (size_t i = 0; k->choices != NULL && k->choices[i] != NULL; i++)
        check_table(w, k->choices[i]);
    if (k->elem != NULL)
        check_below(w, k->elem);
}

static void check_table(walk *w, const d9d_table *t)
{
    if (is_seen(w, t))
        return;
    for (const d9d_key *k = t->keys; k->name != NULL; k++) {
        if ((k->def != NULL && strcmp(k->def, "null") == 0) ||
            (k->flags & (D9D_NULLABLE | D9D_NULL_DEFAULT)) != 0) {
            check_key(t, k);
            w->keys++;
        }
        check_below(w, k);
    }
}

static void null_is_accepted_where_it_is_the_default(void **state)
{
    walk w = {.n = 0};

    (void)state;
    check_table(&w, &d9d_train_config_table);
    check_table(&w, &d9d_infer_config_table);
    check_table(&w, &d9d_mapper_table);
    check_table(&w, &d9d_lr_table_section);
    for (const d9d_table *const *c = d9d_model_choices; *c != NULL; c++) {
        const d9d_family *f = ((const d9d_model_provider *)(*c)->row)->family;

        if (f != NULL)
            check_table(&w, f->config);
    }
    assert_true(w.keys > 150);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(null_is_accepted_where_it_is_the_default)};

    return cmocka_run_group_tests_name("null keys", tests, NULL, NULL);
}
