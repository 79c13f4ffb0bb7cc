/* test_family_ranges.c - numbers of a config.json at the ends of their ranges and beyond: a family
 * either computes with them, or refuses them by a sentence that names the file and the field. */
#include <float.h>
#include <stdio.h>
#include <string.h>

#include "d9d/models/models.h"
#include "support/family.h"
#include "support/unit.h"
#include "support/vectors.h"

#define FILE_NAME "the/config.json"

enum { TOKENS = 4, MAX_ELEMENTS = 1 << 15 };

/* --- a model of a document ------------------------------------------------------------------- */

/* A forward pass in float32, of a model that is small enough. */
static d9d_status model_run(d9d_model *m)
{
    const int32_t ids[TOKENS] = {0}, at[TOKENS] = {0, 1, 2, 3};
    d9d_tensor x[2];
    d9d_model_out y;
    d9d_device *dev;
    d9d_status st;
    d9d_tape *t;

    assert_ok(d9d_device_open("cpu", &dev));
    assert_ok(d9d_module_materialise(m->module, dev, false));
    assert_ok(d9d_module_reset(m->module, 5));
    assert_ok(d9d_tensor_from_host(dev, D9D_I32, D9D_SHAPE(1, TOKENS), ids, &x[0]));
    assert_ok(d9d_tensor_from_host(dev, D9D_I32, D9D_SHAPE(1, TOKENS), at, &x[1]));
    assert_ok(d9d_tape_create(dev, &t));
    st = m->ops->forward(m, t, &(d9d_model_in){.ids = &x[0], .positions = &x[1], .labels = &x[0]},
                         &y);
    d9d_tape_free(t);
    d9d_tensor_release(&x[0]);
    d9d_tensor_release(&x[1]);
    d9d_model_free(m);
    d9d_device_close(dev);
    return st;
}

static double elements_of(const d9d_model *m)
{
    d9d_arena a = {0};
    d9d_params params;
    double n = 0;

    assert_ok(d9d_module_params(m->module, &a, &params));
    for (size_t i = 0; i < params.n; i++)
        n += (double)d9d_shape_numel(&params.p[i]->spec.shape);
    d9d_arena_release(&a);
    return n;
}

/* Runs a model that is small enough; frees it. */
static d9d_status model_try(d9d_model *m)
{
    const d9d_status st = d9d_module_bind(m->module);

    if (st == D9D_OK && elements_of(m) <= MAX_ELEMENTS)
        return model_run(m);
    d9d_model_free(m);
    return st;
}

static d9d_status model_made(const json_t *doc)
{
    const d9d_model_opts opts = {.dtype = D9D_F32};
    d9d_arena a = {0};
    d9d_family_config c;
    d9d_model *m;
    d9d_status st = family_parse(doc, FILE_NAME, false, &a, &c);

    if (st == D9D_OK)
        st = d9d_family_create(&c, D9D_WHOLE_MODEL, &opts, &m);
    if (st == D9D_OK)
        st = model_try(m);
    d9d_arena_release(&a);
    return st;
}

/* --- refusals -------------------------------------------------------------------------------- */

/* A refusal has the file, the field, and the value if that is a number. */
static void check_document(const char *family, const char *field, const json_t *v,
                           const json_t *doc)
{
    const char *said;
    char number[32] = "";

    if (json_is_integer(v))
        (void)snprintf(number, sizeof(number), "%lld", (long long)json_integer_value(v));
    if (model_made(doc) == D9D_OK)
        return;
    said = d9d_err_message();
    if (strncmp(said, FILE_NAME ": ", strlen(FILE_NAME ": ")) != 0 || strstr(said, field) == NULL ||
        strstr(said, number) == NULL)
        fail_msg("%s with %s %s is refused by: %s", family, field, number, said);
}

static void check_value(const char *family, const json_t *config, const char *field, json_t *v)
{
    json_t *doc = json_deep_copy(config);

    assert_int_equal(json_object_set_new(doc, field, v), 0);
    check_document(family, field, v, doc);
    json_decref(doc);
}

static void check_int(const char *family, const json_t *config, const d9d_key *k)
{
    const int64_t values[] = {-1, 0, 1, 3, 7, (int64_t)k->max + 1, INT64_MAX};

    for (size_t i = 0; i < sizeof(values) / sizeof(values[0]); i++)
        check_value(family, config, k->name, json_integer(values[i]));
}

static void check_real(const char *family, const json_t *config, const d9d_key *k)
{
    const double values[] = {-1, -0.0, 1e-300, 1e-45, 0.3, k->max, DBL_MAX};

    for (size_t i = 0; i < sizeof(values) / sizeof(values[0]); i++)
        check_value(family, config, k->name, json_real(values[i]));
}

static void check_key(const char *family, const json_t *config, const d9d_key *k)
{
    check_value(family, config, k->name, json_string("x"));
    check_value(family, config, k->name, json_pack("[i,s]", 1, "x"));
    if (k->kind == D9D_KIND_INT)
        check_int(family, config, k);
    else if (k->kind == D9D_KIND_REAL)
        check_real(family, config, k);
}

/* Members of a scaled rotary embedding, each 0. */
static void check_rope(const char *family, const json_t *config)
{
    static const char *const of_yarn[] = {"factor", "original_max_position_embeddings", "beta_slow",
                                          "beta_fast", "attention_factor"};

    for (size_t i = 0; i < sizeof(of_yarn) / sizeof(of_yarn[0]); i++) {
        json_t *doc = json_deep_copy(config), *rope = json_pack("{s:s, s:i, s:i}", "rope_type",
                                                                "yarn", "factor", 2, of_yarn[i], 0);

        assert_int_equal(json_object_set_new(doc, "rope_scaling", rope), 0);
        check_document(family, of_yarn[i], json_object_get(rope, of_yarn[i]), doc);
        json_decref(doc);
    }
}

static void check_family(const d9d_family *f, const char *name)
{
    const json_t *config;
    char file[64];
    json_t *small;

    (void)snprintf(file, sizeof(file), "%s.json", name);
    small = json_load_file(vectors_path("small", file), 0, NULL);
    assert_non_null(small);
    config = json_object_get(small, "config");
    assert_ok(model_made(config));
    for (const d9d_key *k = f->config->keys; k->name != NULL; k++) {
        check_key(name, config, k);
        if (strcmp(k->name, "rope_scaling") == 0)
            check_rope(name, config);
    }
    json_decref(small);
}

static void refusals_name_file_field_and_value(void **state)
{
    (void)state;
    for (const d9d_table *const *c = d9d_model_choices; *c != NULL; c++) {
        const d9d_family *f = ((const d9d_model_provider *)(*c)->row)->family;

        if (f != NULL) /* "auto" has none */
            check_family(f, (*c)->name);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(refusals_name_file_field_and_value)};

    return cmocka_run_group_tests_name("family ranges", tests, NULL, NULL);
}
