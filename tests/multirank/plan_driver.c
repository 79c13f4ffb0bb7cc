/* plan_driver.c - measures memory for tests/multirank/plan.bats: `plan_driver CONFIG
 * [KEY=VALUE...]` trains; every rank prints its number, the peak memory of its device, and its
 * exchanges by the bootstrap. */
#include <stdio.h>

#include "d9d/base/fs.h"
#include "d9d/train/train.h"

static d9d_status read_config(int argc, char **argv, d9d_arena *a, json_t **full,
                              d9d_train_config *out)
{
    json_t *doc = NULL;
    d9d_buf text = {0};
    d9d_status st;

    D9D_TRY_OR(st, d9d_fs_read(argv[1], 1 << 20, &text), out);
    D9D_TRY_OR(st, d9d_json_parse(argv[1], text.data, text.len, &doc), out);
    for (int i = 2; i < argc; i++)
        D9D_TRY_OR(st, d9d_config_set(&d9d_train_config_table, doc, argv[i]), out);
    D9D_TRY_OR(st, d9d_config_resolve(&d9d_train_config_table, doc, argv[1], NULL, full), out);
    st = d9d_config_bind(&d9d_train_config_table, *full, argv[1], NULL, a, out);
out:
    json_decref(doc);
    d9d_buf_release(&text);
    return st;
}

int main(int argc, char **argv)
{
    d9d_train_summary summary;
    d9d_train_config config;
    d9d_arena a = {0};
    json_t *full = NULL;
    d9d_bootstrap *bootstrap = NULL;
    d9d_status st = d9d_bootstrap_open(&bootstrap);

    if (st == D9D_OK)
        st = read_config(argc, argv, &a, &full, &config);
    if (st == D9D_OK)
        st =
            d9d_train(&config, full, &(d9d_job){.bootstrap = bootstrap, .device = "cpu"}, &summary);
    if (st == D9D_OK)
        printf("%d %llu %lld\n", d9d_bootstrap_rank(bootstrap),
               (unsigned long long)summary.mem_bytes,
               (long long)d9d_bootstrap_exchanges(bootstrap));
    else
        fprintf(stderr, "plan_driver: %s\n", d9d_err_message());
    json_decref(full);
    d9d_arena_release(&a);
    d9d_bootstrap_close(bootstrap);
    return st == D9D_OK ? 0 : 1;
}
