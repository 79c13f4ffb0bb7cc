/* topology_driver.c - compares models for tests/multirank/topology.bats: `topology_driver A B`
 * prints the largest |a - b| / |b| of a tensor (2-norms, float32).  Status 1 if that is above 1e-5
 * or the checkpoints have different tensors. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "d9d/ckpt/dir/checkpoint.h"

static d9d_status values(const d9d_checkpoint *c, const char *name, float **out, size_t *n)
{
    for (size_t i = 0; i < d9d_checkpoint_count(c); i++) {
        const d9d_safetensors_tensor *t = d9d_checkpoint_at(c, i);

        if (strcmp(t->name, name) != 0)
            continue;
        if (t->dtype != D9D_F32)
            return D9D_FAIL(D9D_ENOTSUP, "%s is not float32", name);
        *n = t->bytes / sizeof(float);
        *out = malloc(t->bytes + 1);
        if (*out == NULL)
            return D9D_FAIL(D9D_ENOMEM, "%s: out of memory", name);
        return d9d_checkpoint_read(c, i, 0, *out, t->bytes);
    }
    return D9D_FAIL(D9D_EMISMATCH, "%s: has no tensor %s", d9d_checkpoint_dir(c), name);
}

static d9d_status distance(const d9d_checkpoint *a, const d9d_checkpoint *b, const char *name,
                           double *out)
{
    float *x = NULL, *y = NULL;
    double error = 0, size = 0;
    size_t n = 0, m = 0;
    d9d_status st = values(a, name, &x, &n);

    if (st == D9D_OK)
        st = values(b, name, &y, &m);
    if (st == D9D_OK && n != m)
        st = D9D_FAIL(D9D_EMISMATCH, "%s: %zu elements, and %zu", name, n, m);
    for (size_t i = 0; st == D9D_OK && i < n; i++) {
        error += pow((double)x[i] - (double)y[i], 2);
        size += pow((double)y[i], 2);
    }
    *out = error == 0 ? 0 : sqrt(error / size);
    free(x);
    free(y);
    return st;
}

static d9d_status compare(const d9d_checkpoint *a, const d9d_checkpoint *b)
{
    const char *worst = "";
    double max_error = 0;

    if (d9d_checkpoint_count(a) != d9d_checkpoint_count(b))
        return D9D_FAIL(D9D_EMISMATCH, "%zu tensors, and %zu", d9d_checkpoint_count(a),
                        d9d_checkpoint_count(b));
    for (size_t i = 0; i < d9d_checkpoint_count(b); i++) {
        const char *name = d9d_checkpoint_at(b, i)->name;
        double error;

        D9D_TRY(distance(a, b, name, &error));
        if (!(error <= max_error)) {
            max_error = error;
            worst = name;
        }
    }
    printf("%.2g %s\n", max_error, worst);
    return max_error <= 1e-5 ? D9D_OK
                             : D9D_FAIL(D9D_EMISMATCH, "%s differs by %g", worst, max_error);
}

int main(int argc, char **argv)
{
    d9d_checkpoint *a = NULL, *b = NULL;
    d9d_status st = argc == 3 ? d9d_checkpoint_open(argv[1], &a) : D9D_EINVAL;

    if (st == D9D_OK)
        st = d9d_checkpoint_open(argv[2], &b);
    if (st == D9D_OK)
        st = compare(a, b);
    if (st != D9D_OK)
        fprintf(stderr, "%s\n", d9d_err_message());
    d9d_checkpoint_close(a);
    d9d_checkpoint_close(b);
    return d9d_status_exit_code(st);
}
