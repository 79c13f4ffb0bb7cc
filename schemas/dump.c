/* dump.c - write the JSON Schemas of the configurations from their key tables.
 *
 *     dump DIR        DIR/d9d.train.v1.json, ...
 *
 * `make schemas` runs it; a meta check compares what it writes with what is kept.
 */
#include <stdio.h>

#include "d9d/base/fs.h"
#include "d9d/loop/job.h"
#include "d9d/sched/piecewise.h"

static const struct {
    const char *id;
    const d9d_table *table;
} schemas[] = {
    {"d9d.train.v1", &d9d_train_table},
    {"d9d.infer.v1", &d9d_infer_table},
    {"d9d.piecewise.v1", &d9d_piecewise_table},
};

static d9d_status dump(const char *dir, const char *id, const d9d_table *table)
{
    d9d_buf text = {0};
    d9d_arena a = {0};
    char *path = d9d_arena_printf(&a, "%s/%s.json", dir, id);
    d9d_status st = path != NULL ? d9d_config_schema(table, id, &text)
                                 : D9D_FAIL(D9D_ENOMEM, "%s: no memory for its path", id);

    if (st == D9D_OK)
        st = d9d_fs_write_atomic(path, text.data, text.len);
    d9d_buf_release(&text);
    d9d_arena_release(&a);
    return st;
}

int main(int argc, char **argv)
{
    d9d_status st = D9D_OK;

    if (argc != 2) {
        fputs("usage: dump DIR\n", stderr);
        return 2;
    }
    for (size_t i = 0; i < sizeof(schemas) / sizeof(schemas[0]) && st == D9D_OK; i++)
        st = dump(argv[1], schemas[i].id, schemas[i].table);
    if (st != D9D_OK)
        fprintf(stderr, "dump: %s\n", d9d_err_message());
    return d9d_status_exit_code(st);
}
