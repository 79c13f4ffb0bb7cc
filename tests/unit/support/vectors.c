/* vectors.c - see vectors.h. */
#include "vectors.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "unit.h"

const d9d_safetensors_tensor *vectors_find(const d9d_safetensors_file *f, const char *name)
{
    const d9d_safetensors_tensor *t = d9d_safetensors_find(f, name);

    if (t == NULL)
        fail_msg("%s: no tensor %s", d9d_safetensors_path(f), name);
    return t;
}

static void *read_all(const d9d_safetensors_file *f, const char *name,
                      const d9d_safetensors_tensor **t, size_t *n)
{
    void *raw;

    *t = vectors_find(f, name);
    raw = malloc((*t)->bytes + 8);
    assert_non_null(raw);
    assert_ok(d9d_safetensors_read(f, *t, 0, raw, (*t)->bytes));
    *n = (*t)->bytes / d9d_dtype_size((*t)->dtype);
    return raw;
}

float *vectors_f32(const d9d_safetensors_file *f, const char *name, size_t *n)
{
    const d9d_safetensors_tensor *t;
    float *raw = read_all(f, name, &t, n);

    assert_int_equal(t->dtype, D9D_F32);
    return raw;
}

int32_t *vectors_i32(const d9d_safetensors_file *f, const char *name, size_t *n)
{
    const d9d_safetensors_tensor *t;
    void *raw = read_all(f, name, &t, n);
    int32_t *out = malloc((*n + 1) * sizeof(*out));

    assert_non_null(out);
    assert_true(t->dtype == D9D_I64 || t->dtype == D9D_I32);
    for (size_t i = 0; i < *n; i++)
        out[i] = t->dtype == D9D_I64 ? (int32_t)((int64_t *)raw)[i] : ((int32_t *)raw)[i];
    free(raw);
    return out;
}

double vectors_norm(const float *a, size_t n)
{
    double sum = 0;

    for (size_t i = 0; i < n; i++)
        sum += (double)a[i] * a[i];
    return sqrt(sum);
}

double vectors_distance(const float *a, const float *b, size_t n, double floor)
{
    double sum = 0;

    for (size_t i = 0; i < n; i++) {
        double d = (double)a[i] - b[i];

        sum += d * d;
    }
    return sqrt(sum) / fmax(vectors_norm(b, n), floor);
}

const char *vectors_path(const char *dir, const char *file)
{
    static _Thread_local char path[4096];
    const char *root = getenv("D9D_ROOT");

    if (dir[0] == '/')
        (void)snprintf(path, sizeof(path), "%s/%s", dir, file);
    else
        (void)snprintf(path, sizeof(path), "%s/tests/golden/%s/%s", root != NULL ? root : ".", dir,
                       file);
    return path;
}
