/* run_sources.c - see report/run_sources.h. */
#include "report/run_sources.h"

#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "d9d/base/fs.h"
#include "d9d/base/num_format.h"

#define MAX_CONFIG (UINT64_C(16) << 20)

d9d_status d9di_run_sources_file_path(d9d_arena *a, const char *run, const char *name,
                                      const char **out)
{
    const char *slash = strrchr(run, '/');
    struct stat s;

    if (stat(run, &s) != 0 || S_ISDIR(s.st_mode))
        *out = d9d_fs_join(a, run, name);
    else
        *out = d9d_arena_printf(a, "%.*s%s", slash ? (int)(slash - run) + 1 : 0, run, name);
    return *out != NULL ? D9D_OK : D9D_FAIL(D9D_ENOMEM, "%s: no memory", run);
}

/* "data" of a configuration is one dataset or a list. */
d9d_status d9di_run_sources_read(d9d_arena *a, const char *run, const char *const *dirs,
                                 size_t n_dirs, d9di_run_sources *out)
{
    const char *path;
    json_t *data;

    D9D_TRY(d9di_run_sources_file_path(a, run, "config.json", &path));
    D9D_TRY(d9d_json_read(path, MAX_CONFIG, &out->config));
    data = json_object_get(out->config, "data");
    out->n = json_is_array(data) ? json_array_size(data) : 1;
    if (n_dirs > 0 && n_dirs != out->n)
        return D9D_FAIL(D9D_ECONFIG, "%s: has %zu dataset%s; %zu are given in their place", path,
                        out->n, D9D_PLURAL(out->n), n_dirs);
    out->sources = calloc(out->n + 1, sizeof(*out->sources));
    if (out->sources == NULL)
        return D9D_FAIL(D9D_ENOMEM, "%s: %zu datasets", path, out->n);
    for (size_t i = 0; i < out->n; i++) {
        const json_t *v = json_is_array(data) ? json_array_get(data, i) : data;

        D9D_TRY(d9d_json_get_str(v, path, "dataset", &out->sources[i].dir));
        D9D_TRY(d9d_json_get_str(v, path, "split", &out->sources[i].split));
        if (n_dirs > 0)
            out->sources[i].dir = dirs[i];
        else if (json_is_object(json_object_get(v, "source")))
            D9D_TRY(d9d_json_get_str(json_object_get(v, "source"), path, "name",
                                     &out->sources[i].made));
    }
    return D9D_OK;
}

void d9di_run_sources_release(d9di_run_sources *s)
{
    for (size_t i = 0; s->sources != NULL && i < s->n; i++)
        d9d_dataset_close(s->sources[i].ds);
    free(s->sources);
    json_decref(s->config);
    *s = (d9di_run_sources){0};
}

d9d_status d9di_run_source_open(d9di_run_source *s)
{
    d9d_status st;

    if (s->ds != NULL)
        return D9D_OK;
    if (s->made != NULL)
        return D9D_FAIL(D9D_ENOTFOUND, "%s: its samples are made by %s and have no text", s->dir,
                        s->made);
    st = d9d_dataset_open(s->dir, s->split, &s->ds);
    return st != D9D_ENOTFOUND
               ? st
               : D9D_FAIL(st, "%s; --dataset DIR says where a dataset is now", d9d_err_message());
}
