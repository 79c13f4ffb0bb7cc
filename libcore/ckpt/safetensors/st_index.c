/* st_index.c - see st_index.h. */
#include "ckpt/safetensors/st_index.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "ckpt/safetensors/json_scan.h"
#include "d9d/base/fs.h"
#include "d9d/base/json.h"

static d9d_status read_weight_map(d9di_json_scan *s, d9di_safetensors_index *x, d9d_map *files)
{
    bool more;
    char *name, *file;
    size_t n, k;

    D9D_TRY(d9di_json_scan_open(s, '{'));
    for (bool first = true;; first = false) {
        D9D_TRY(d9di_json_scan_more(s, '}', first, &more));
        if (!more)
            return D9D_OK;
        D9D_TRY(d9di_json_scan_key(s, &x->arena, &name, &n));
        D9D_TRY(d9di_json_scan_string(s, &x->arena, &file, &k));
        D9D_TRY(d9d_fs_check_name(file, k, x->path));
        if (d9d_map_has(&x->map, name, n))
            return D9D_FAIL(D9D_EFORMAT, "%s: tensor %s is listed twice", x->path, name);
        /* Keeps one copy of each file name. */
        if (!d9d_map_has(files, file, k))
            D9D_TRY(d9d_map_put(files, file, k, file));
        D9D_TRY(d9d_map_put(&x->map, name, n, d9d_map_get(files, file, k)));
    }
}

static int compare_names(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

static d9d_status list_files(d9di_safetensors_index *x, const d9d_map *files)
{
    x->files = d9d_arena_alloc(&x->arena, (files->len + 1) * sizeof(*x->files));
    if (x->files == NULL)
        return D9D_FAIL(D9D_ENOMEM, "%s: out of memory", x->path);
    for (size_t i = 0; i < files->len; i++)
        x->files[x->n_files++] = files->entries[i].value;
    qsort(x->files, x->n_files, sizeof(*x->files), compare_names);
    return D9D_OK;
}

static d9d_status read_members(d9di_json_scan *s, d9di_safetensors_index *x, d9d_map *files)
{
    bool more, found = false;
    char *key;
    size_t n;

    D9D_TRY(d9di_json_scan_open(s, '{'));
    for (bool first = true;; first = false) {
        D9D_TRY(d9di_json_scan_more(s, '}', first, &more));
        if (!more)
            break;
        D9D_TRY(d9di_json_scan_key(s, &x->arena, &key, &n));
        if (strcmp(key, "weight_map") != 0) {
            D9D_TRY(d9di_json_scan_skip(s));
            continue;
        }
        if (found)
            return D9D_FAIL(D9D_EFORMAT, "%s: weight_map is there twice", x->path);
        found = true;
        D9D_TRY(read_weight_map(s, x, files));
    }
    D9D_TRY(d9di_json_scan_end(s));
    if (!found)
        return D9D_FAIL(D9D_EFORMAT, "%s: no weight_map", x->path);
    if (x->map.len == 0)
        return D9D_FAIL(D9D_EFORMAT, "%s: weight_map names no tensor", x->path);
    return list_files(x, files);
}

d9d_status d9di_safetensors_index_parse(const char *path, const char *text, size_t n,
                                        d9di_safetensors_index *out)
{
    d9di_json_scan s = d9di_json_scan_start(path, text, n);
    d9d_map files = {0};
    d9d_status st;

    out->path = d9d_arena_strdup(&out->arena, path);
    if (out->path == NULL)
        return D9D_FAIL(D9D_ENOMEM, "%s: out of memory", path);
    st = read_members(&s, out, &files);
    d9d_map_release(&files);
    return st;
}

d9d_status d9di_safetensors_index_read(const char *path, d9di_safetensors_index *out)
{
    d9d_buf text = {0};
    d9d_status st;

    D9D_TRY_OR(st, d9d_fs_check_regular(path), out);
    D9D_TRY_OR(st, d9d_fs_read(path, D9DI_SAFETENSORS_INDEX_MAX, &text), out);
    st = d9di_safetensors_index_parse(path, text.data, text.len, out);
out:
    d9d_buf_release(&text);
    return st;
}

void d9di_safetensors_index_release(d9di_safetensors_index *x)
{
    d9d_map_release(&x->map);
    d9d_arena_release(&x->arena);
}

d9d_status d9di_safetensors_index_begin(d9d_buf *b, uint64_t total_bytes)
{
    return d9d_buf_printf(
        b, "{\n  \"metadata\": {\n    \"total_size\": %" PRIu64 "\n  },\n  \"weight_map\": {\n",
        total_bytes);
}

d9d_status d9di_safetensors_index_add(d9d_buf *b, const char *name, const char *file, bool last)
{
    D9D_TRY(d9d_buf_append(b, "    ", 4));
    D9D_TRY(d9d_json_put_str(b, name, strlen(name)));
    return d9d_buf_printf(b, ": \"%s\"%s\n", file, last ? "" : ",");
}

d9d_status d9di_safetensors_index_end(d9d_buf *b)
{
    return d9d_buf_printf(b, "  }\n}\n");
}
