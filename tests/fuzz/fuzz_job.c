/* fuzz_job.c - any bytes as the configuration of d9d-train and of d9d-infer.  What resolves must
 * bind, and resolve to itself. */
#include <stdint.h>
#include <stdlib.h>

#include "d9d/job/job.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void must(bool holds)
{
    if (!holds)
        abort();
}

static void check(const d9d_train_config *c)
{
    const struct d9d_job_batching_section *b = &c->trainer.batching;

    if (d9d_parallel_degrees_check(&c->mesh, 1) == D9D_OK &&
        d9d_job_check_batching(&c->mesh, b) == D9D_OK)
        must(b->microbatch_size > 0 && b->global_batch_size % b->microbatch_size == 0);
}

static void resolve(const d9d_table *table, const json_t *doc)
{
    json_t *full = NULL, *again = NULL;
    union {
        d9d_train_config train;
        d9d_infer_config infer;
    } c;
    d9d_arena a = {0};

    if (d9d_config_resolve(table, doc, "fuzz", NULL, &full) != D9D_OK)
        return;
    must(d9d_config_resolve(table, full, "fuzz", NULL, &again) == D9D_OK &&
         json_equal(full, again));
    must(d9d_config_bind(table, full, "fuzz", NULL, &a, &c) == D9D_OK);
    if (table == &d9d_train_config_table)
        check(&c.train);
    d9d_arena_release(&a);
    json_decref(again);
    json_decref(full);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    json_t *doc;

    if (d9d_json_parse("fuzz", (const char *)data, size, &doc) != D9D_OK)
        return 0;
    resolve(&d9d_train_config_table, doc);
    resolve(&d9d_infer_config_table, doc);
    json_decref(doc);
    return 0;
}
