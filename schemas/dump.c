/* dump.c - writes the JSON Schemas of all formats from their key tables, or checks files.
 *
 *     dump DIR                    DIR/d9d.train.v1.json, ...
 *     dump --pages DIR            DIR/config-train.md, ...: configurations for people, families.md
 *     dump d9d.run.v1 FILE...     check that each file has this format, .jsonl line by line
 *
 * `make schemas` runs it.  A meta check compares its output with the stored schemas, and a test of
 * the tools checks what they write.
 */
#include <stdio.h>
#include <string.h>

#include "d9d/base/fs.h"
#include "d9d/ckpt/mapper/mapper_spec.h"
#include "d9d/data/build/shard.h"
#include "d9d/job/job.h"
#include "d9d/sched/piecewise.h"
#include "families.h"
#include "formats.h"
#include "reference.h"

static const struct {
    const char *id;
    const d9d_table *table;
} schemas[] = {
    {"d9d.train.v1", &d9d_train_config_table},
    {"d9d.infer.v1", &d9d_infer_config_table},
    {"d9d.piecewise.v1", &d9d_piecewise_table},
    {"d9d.mapper.v1", &d9d_mapper_table},
    {"d9d.fields.v1", &d9d_shard_fields_table},
    {"d9d.map-plan.v1", &d9di_map_plan_format},
    {"d9d.model.v1", &d9di_model_format},
    {"d9d.dataset.v1", &d9di_dataset_format},
    {"d9d.checkpoint.v1", &d9di_checkpoint_format},
    {"d9d.checkpoint.v2", &d9di_checkpoint_root_format},
    {"d9d.run.v1", &d9di_run_format},
    {"d9d.metrics.v1", &d9di_metrics_format},
    {"d9d.samples.v1", &d9di_samples_format},
    {"d9d.completions.v1", &d9di_completions_format},
    {"d9d.filter.v1", &d9di_filter_format},
    {"d9d.flight.v1", &d9di_flight_format},
    {"d9d.plan.v1", &d9di_plan_format},
    {"d9d.suggest.v1", &d9di_suggest_format},
    {"d9d.certificate.v1", &d9di_certificate_format},
};
enum { N_SCHEMAS = sizeof(schemas) / sizeof(schemas[0]), MAX_FILE_BYTES = 32 << 20 };

#define READ_KEYS                                                                                  \
    "- A section is an object, a row one of its keys; `a.b[].c` is `c` of each element of `b` in " \
    "`a`.\n"                                                                                       \
    "- A section `a: word` is what `a` may have where its first row has that word.\n"              \
    "- A key whose default is \"required\" must be there. A key that has no row is an error.\n"
#define READ_CONFIG(tool)                                                                          \
    READ_KEYS "- `" tool " --print-config FILE` prints a configuration with all defaults; "        \
              "`--set a.b=VALUE` sets a key.\n"                                                    \
              "- `" tool " --print-schema` prints this page as JSON Schema, with `FILE` also "     \
              "the keys of its plugins.\n"
#define READ_SCHEMA(id, page)                                                                      \
    READ_KEYS "- `schemas/" id ".json` is this page as JSON Schema, for editors.\n"                \
              "- `man " page "` describes what the keys do together.\n"

/* Of the documents that are written by hand. */
static const struct {
    const d9d_table *table;
    d9di_reference page;
} pages[] = {
    {&d9d_train_config_table,
     {"d9d.train.v1", "config-train.md", "Configuration of d9d-train", READ_CONFIG("d9d-train")}},
    {&d9d_infer_config_table,
     {"d9d.infer.v1", "config-infer.md", "Configuration of d9d-infer", READ_CONFIG("d9d-infer")}},
    {&d9d_mapper_table,
     {"d9d.mapper.v1", "config-mapper.md", "Keys of a mapper",
      READ_SCHEMA("d9d.mapper.v1", "d9d-map")}},
    {&d9d_shard_fields_table,
     {"d9d.fields.v1", "config-fields.md", "Keys of fields",
      READ_SCHEMA("d9d.fields.v1", "d9d-shard")}},
};
enum { N_PAGES = sizeof(pages) / sizeof(pages[0]) };

static d9d_status write_text(const char *dir, const char *name, const d9d_buf *text)
{
    d9d_arena a = {0};
    char *path = d9d_arena_printf(&a, "%s/%s", dir, name);
    d9d_status st = path != NULL ? d9d_fs_write_atomic(path, text->data, text->len)
                                 : D9D_FAIL(D9D_ENOMEM, "%s: no memory for its path", name);

    d9d_arena_release(&a);
    return st;
}

static d9d_status dump_schema(const char *dir, const char *id, const d9d_table *table)
{
    char name[64];
    d9d_buf text = {0};
    d9d_status st = d9d_config_schema(table, id, &text);

    (void)snprintf(name, sizeof(name), "%s.json", id);
    if (st == D9D_OK)
        st = write_text(dir, name, &text);
    d9d_buf_release(&text);
    return st;
}

static d9d_status dump_page(const char *dir, const d9d_table *table, const d9di_reference *page)
{
    d9d_buf text = {0};
    d9d_status st = d9di_reference_append(table, page, &text);

    if (st == D9D_OK)
        st = write_text(dir, page->page, &text);
    d9d_buf_release(&text);
    return st;
}

static d9d_status dump_families(const char *dir)
{
    d9d_buf text = {0};
    d9d_status st = d9di_families_append(&text);

    if (st == D9D_OK)
        st = write_text(dir, "families.md", &text);
    d9d_buf_release(&text);
    return st;
}

/* Checks one document: it must bind, so it has all required keys and no others. */
static d9d_status check_text(const d9d_table *table, const char *where, const char *text, size_t n)
{
    d9d_arena a = {0};
    json_t *doc = NULL;
    void *value = d9d_arena_alloc(&a, table->size);
    d9d_status st = value != NULL ? d9d_json_parse(where, text, n, &doc)
                                  : D9D_FAIL(D9D_ENOMEM, "%s: no memory", where);

    if (st == D9D_OK)
        st = d9d_config_bind(table, doc, where, NULL, &a, value);
    json_decref(doc);
    d9d_arena_release(&a);
    return st;
}

static d9d_status check_lines(const d9d_table *table, const char *path, const d9d_buf *text)
{
    const char *p = text->data, *const end = p + text->len;

    for (int line = 1; p < end; line++) {
        const char *stop = memchr(p, '\n', (size_t)(end - p));
        char where[512];

        (void)snprintf(where, sizeof(where), "%s:%d", path, line);
        if (stop == NULL)
            return D9D_FAIL(D9D_EFORMAT, "%s: the line has no end", where);
        D9D_TRY(check_text(table, where, p, (size_t)(stop - p)));
        p = stop + 1;
    }
    return D9D_OK;
}

static d9d_status check_file(const d9d_table *table, const char *path)
{
    const char *dot = strrchr(path, '.');
    d9d_buf text = {0};
    d9d_status st;

    D9D_TRY(d9d_fs_read(path, MAX_FILE_BYTES, &text));
    if (text.len == 0)
        st = D9D_FAIL(D9D_EFORMAT, "%s: it is empty", path);
    else if (dot != NULL && strcmp(dot, ".jsonl") == 0)
        st = check_lines(table, path, &text);
    else
        st = check_text(table, path, text.data, text.len);
    d9d_buf_release(&text);
    return st;
}

static d9d_status check_all(const char *id, char **paths)
{
    size_t i = 0;

    while (i < N_SCHEMAS && strcmp(schemas[i].id, id) != 0)
        i++;
    if (i == N_SCHEMAS)
        return D9D_FAIL(D9D_ECONFIG, "unknown format \"%s\"", id);
    for (; *paths != NULL; paths++)
        D9D_TRY(check_file(schemas[i].table, *paths));
    return D9D_OK;
}

static d9d_status dump_all(const char *dir)
{
    for (size_t i = 0; i < N_SCHEMAS; i++)
        D9D_TRY(dump_schema(dir, schemas[i].id, schemas[i].table));
    return D9D_OK;
}

static d9d_status dump_pages(const char *dir)
{
    for (size_t i = 0; i < N_PAGES; i++)
        D9D_TRY(dump_page(dir, pages[i].table, &pages[i].page));
    return dump_families(dir);
}

int main(int argc, char **argv)
{
    d9d_status st;

    if (argc < 2) {
        fputs("usage: dump DIR | dump --pages DIR | dump FORMAT FILE...\n", stderr);
        return 2;
    }
    if (argc == 3 && strcmp(argv[1], "--pages") == 0)
        st = dump_pages(argv[2]);
    else
        st = argc == 2 ? dump_all(argv[1]) : check_all(argv[1], argv + 2);
    if (st != D9D_OK)
        fprintf(stderr, "dump: %s\n", d9d_err_message());
    return d9d_status_exit_code(st);
}
