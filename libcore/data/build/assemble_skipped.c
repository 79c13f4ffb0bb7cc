/* assemble_skipped.c - writes skipped.jsonl from the skipped records of all units. */
#include <stdio.h>
#include <stdlib.h>

#include "data/build/assemble_private.h"
#include "data/io/out_file.h"

struct skips {
    const d9di_dataset_manifest *m;
    d9di_out_file *out;
    int64_t source, before; /* lines of this source in earlier input splits */
    size_t n;
};

/* Converts line numbers of an input split to line numbers of the source. */
static d9d_status write_unit_skipped(void *arg, const char *dir, const d9di_shard_unit_state *s)
{
    struct skips *k = arg;
    d9d_buf line = {0};
    d9d_status st = D9D_OK;

    for (size_t i = 0; i < s->skipped.len && k->n < D9DI_MAX_SKIPPED && st == D9D_OK; i++) {
        d9di_skipped x = s->skipped.data[i];

        if (x.source >= (int64_t)k->m->n_sources) {
            st = D9D_FAIL(D9D_EFORMAT, "%s: unit %lld-%lld skipped a record of input %lld of %zu",
                          dir, (long long)s->input_split, (long long)s->unit, (long long)x.source,
                          k->m->n_sources);
            break;
        }
        x.line += x.source == k->source && x.document < 0 ? k->before : 0;
        line.len = 0;
        st = d9di_skipped_print(&x, k->m->sources[x.source].name, &line);
        if (st == D9D_OK)
            st = d9di_out_file_write(k->out, line.data, line.len);
        k->n++;
    }
    if (s->last) {
        k->before = (s->lines_read.source == k->source ? k->before : 0) + s->lines_read.lines;
        k->source = s->lines_read.source;
    }
    d9d_buf_release(&line);
    return st;
}

d9d_status d9di_assemble_skipped(const d9di_assemble_opts *opts, const d9di_dataset_manifest *m)
{
    d9di_out_file out = {0};
    struct skips k = {.m = m, .out = &out, .source = -1};
    char *path = NULL;
    d9d_status st;

    if (d9di_skipped_total(m->documents.skipped) == 0)
        return D9D_OK;
    if (asprintf(&path, "%s/%s", opts->unit.dir, D9DI_SKIPPED_FILE) < 0)
        return D9D_FAIL(D9D_ENOMEM, "%s: no memory", opts->unit.dir);
    st = d9di_out_file_create(&out, path);
    if (st == D9D_OK)
        st = d9di_assemble_each_unit(opts, write_unit_skipped, &k);
    if (st == D9D_OK)
        st = d9di_out_file_close(&out);
    d9di_out_file_release(&out);
    free(path);
    return st;
}
