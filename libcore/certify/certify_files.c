/* certify_files.c - HuggingFace's files to the suite's layout and back.  See certify_parts.h. */
#include <inttypes.h>

#include "certify/certify_parts.h"
#include "d9d/base/fs.h"
#include "d9d/convert/convert.h"
#include "d9d/model/hf/hf_config.h"

static d9d_status convert_to(const d9di_certify *c, const char *src, d9d_convert_to to,
                             const char *dst)
{
    d9d_convert_opts opts = D9D_CONVERT_DEFAULTS;
    d9d_convert *convert;
    d9d_status st;

    opts.to = to;
    opts.choices = c->choices;
    D9D_TRY(d9d_convert_open(src, &opts, &convert));
    st = d9d_convert_run(convert, dst, &(d9d_convert_run_opts){.jobs = 1});
    d9d_convert_close(convert);
    return st;
}

typedef struct comparison {
    uint64_t tensors, bytes;
    const char *first; /* of those that differ */
    d9d_arena *arena;
} comparison;

static void count_tensor(void *arg, const d9d_checkpoint_tensor_diff *d)
{
    comparison *c = arg;

    c->tensors++;
    c->bytes += d->a != NULL ? d->a->bytes : 0;
    if (c->first == NULL && d->kind != D9D_CHECKPOINT_DIFF_EQUAL)
        c->first = d9d_arena_strdup(c->arena, d->name);
}

static d9d_status compare_config(d9d_arena *a, const char *before, const char *after)
{
    const char *paths[2] = {d9d_fs_join(a, before, D9D_HF_CONFIG_NAME),
                            d9d_fs_join(a, after, D9D_HF_CONFIG_NAME)};
    json_t *doc[2] = {NULL, NULL};
    d9d_status st = paths[0] != NULL && paths[1] != NULL
                        ? D9D_OK
                        : D9D_FAIL(D9D_ENOMEM, "%s: names in it", before);

    for (int i = 0; i < 2 && st == D9D_OK; i++)
        st = d9d_json_read(paths[i], D9D_HF_CONFIG_MAX, &doc[i]);
    if (st == D9D_OK && !json_equal(doc[0], doc[1]))
        st = D9D_FAIL(D9D_EVERIFY, "config.json is not what it was, after both conversions");
    json_decref(doc[0]);
    json_decref(doc[1]);
    return st;
}

d9d_status d9di_certify_files(d9di_certify *c, d9d_certificate_check *out)
{
    comparison seen = {.arena = c->arena};
    uint64_t different;
    const char *own, *back;

    D9D_TRY(d9di_certify_path(c, "own", &own));
    D9D_TRY(d9di_certify_path(c, "back", &back));
    D9D_TRY(convert_to(c, c->folder, D9D_CONVERT_D9D, own));
    D9D_TRY(convert_to(c, own, D9D_CONVERT_HF, back));
    D9D_TRY(d9d_checkpoint_diff(c->folder, back, 1, NULL, count_tensor, &seen, &different));
    out->figure = (double)different;
    out->limit = 0;
    D9D_TRY(different == 0
                ? d9di_certify_detail(c, out, "%" PRIu64 " tensors, %" PRIu64 " bytes, config.json",
                                      seen.tensors, seen.bytes)
                : d9di_certify_detail(c, out, "of %" PRIu64 " tensors, the first %s", seen.tensors,
                                      seen.first));
    return compare_config(c->arena, c->folder, back);
}
