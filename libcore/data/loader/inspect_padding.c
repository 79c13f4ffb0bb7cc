/* inspect_padding.c - measures the padding of batches for each order of samples. */
#include "d9d/data/loader/loader.h"
#include "data/dataset/dataset_private.h"

enum { SEED = 1 };

struct padding {
    int64_t positions, padded; /* positions without and with padding */
};

static int64_t round_up(int64_t n, int64_t multiple)
{
    return (n + multiple - 1) / multiple * multiple;
}

static double padding_share(const struct padding *p)
{
    return p->padded > 0 ? 1 - (double)p->positions / (double)p->padded : 0;
}

/* Measures the full batches of one epoch in this order. */
static d9d_status measure_order(d9d_dataset *ds, d9d_loader_order order, int64_t batch,
                                int64_t multiple, struct padding *out)
{
    const d9d_loader_source source = {.dataset = ds, .order = order, .seed = SEED, .epochs = 1};
    const d9d_loader_opts opts = {.pack = batch, .pad_to_multiple_of = multiple};
    d9d_loader *l;
    d9d_status st;

    if (d9d_dataset_count(ds) < batch)
        return D9D_FAIL(D9D_ECONFIG,
                        "%s: the split \"%s\" has %lld samples, less than a batch of %lld", ds->dir,
                        ds->split->name, (long long)d9d_dataset_count(ds), (long long)batch);
    D9D_TRY(d9d_loader_open(&source, 1, &opts, &l));
    st = d9d_loader_measure_padding(l, 0, d9d_loader_samples(l), batch, &out->padded,
                                    &out->positions);
    d9d_loader_close(l);
    return st;
}

/* Measures samples padded to the edge of their bucket; longer ones are not padded. */
static d9d_status measure_edges(d9d_dataset *ds, int64_t multiple, struct padding *out)
{
    const d9di_dataset_manifest *m = &ds->manifest;
    int64_t k;

    *out = (struct padding){0, 0};
    for (k = 0; k < d9d_dataset_count(ds); k++) {
        d9d_sample s;

        D9D_TRY(d9d_dataset_sample(ds, k, &s));
        out->positions += s.length;
        out->padded += round_up(s.bucket < m->n_edges ? m->edges[s.bucket] : s.length, multiple);
    }
    return D9D_OK;
}

static d9d_status print_row(d9d_buf *out, bool json, const char *comma, const char *name,
                            const struct padding *p)
{
    return json ? d9d_buf_printf(out, "%s\"%s\": %.6f", comma, name, padding_share(p))
                : d9d_buf_printf(out, "  %-12s %8.2f %%\n", name, 100 * padding_share(p));
}

d9d_status d9d_dataset_print_padding(d9d_dataset *ds, int64_t batch, int64_t multiple, bool json,
                                     d9d_buf *out)
{
    static const char *const names[] = {
        [D9D_LOADER_SEQUENTIAL] = "sequential",
        [D9D_LOADER_SHUFFLED] = "shuffled",
        [D9D_LOADER_BUCKETED] = "bucketed",
    };
    const long long b = batch, m = multiple;
    struct padding p;
    int i;

    D9D_TRY(json ? d9d_buf_printf(out, "{\"batch\": %lld, \"multiple\": %lld, \"padding\": {", b, m)
                 : d9d_buf_printf(out, "padding in batches of %lld, lengths in multiples of %lld\n",
                                  b, m));
    for (i = 0; i < 3; i++) {
        D9D_TRY(measure_order(ds, (d9d_loader_order)i, batch, multiple, &p));
        D9D_TRY(print_row(out, json, i ? ", " : "", names[i], &p));
    }
    if (ds->manifest.n_edges > 0) {
        D9D_TRY(measure_edges(ds, multiple, &p));
        D9D_TRY(print_row(out, json, ", ", "edges", &p));
    }
    return json ? d9d_buf_append(out, "}}\n", 3) : D9D_OK;
}
