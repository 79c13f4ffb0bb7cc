/* ranks.c - see ranks.h. */
#include "ranks.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "d9d/base/rng.h"
#include "unit_device.h"

d9d_status ranks_open(d9d_bootstrap *bootstrap, const d9d_parallel_degrees *degrees, unsigned axes,
                      ranks *out)
{
    const d9d_mesh_opts opts = {.timeout_s = 600};
    const char *kind = unit_device_name();
    char which[32];

    *out = (ranks){.bootstrap = bootstrap,
                   .rank = d9d_bootstrap_rank(bootstrap),
                   .size = d9d_bootstrap_size(bootstrap),
                   .drawn = calloc(1, sizeof(*out->drawn))};
    if (out->drawn == NULL)
        return D9D_FAIL(D9D_ENOMEM, "no memory for random numbers");
    if (unit_device_is_cpu())
        (void)snprintf(which, sizeof(which), "%s", kind);
    else
        (void)snprintf(which, sizeof(which), "%s:%d", kind, out->rank);
    D9D_TRY(d9d_device_open(which, &out->dev));
    D9D_TRY(d9d_mesh_open(out->bootstrap, degrees, kind, out->dev->stream, &opts, &out->mesh));
    return d9d_mesh_group(out->mesh, axes, &out->comm);
}

void ranks_open_tensor(ranks *out)
{
    d9d_parallel_degrees d = {1, 1, 1, 1, 1, 1, 1, 1, D9D_CP_ALL_GATHER};
    d9d_bootstrap *bootstrap;

    assert_ok(d9d_bootstrap_open(&bootstrap));
    d.tensor_parallel = d9d_bootstrap_size(bootstrap);
    assert_ok(ranks_open(bootstrap, &d, D9D_AXIS(TP), out));
}

/* The first numbers of a stream: number i is the same in an array of any shape. */
struct ranks_drawn {
    uint64_t stream;
    int64_t n;
    float *x;
    struct ranks_drawn *next;
};

static const float *drawn_get(const ranks *r, uint64_t stream, int64_t n)
{
    struct ranks_drawn *d = *r->drawn;

    while (d != NULL && d->stream != stream)
        d = d->next;
    if (d == NULL) {
        d = calloc(1, sizeof(*d));
        assert_non_null(d);
        *d = (struct ranks_drawn){.stream = stream, .next = *r->drawn};
        *r->drawn = d;
    }
    if (n > d->n) {
        d->x = realloc(d->x, (size_t)n * sizeof(*d->x));
        assert_non_null(d->x);
    }
    for (; d->n < n; d->n++)
        d->x[d->n] = d9d_rng_normal((d9d_rng){17, stream}, (uint64_t)d->n);
    return d->x;
}

static void drawn_free(struct ranks_drawn **drawn)
{
    for (struct ranks_drawn *d = *drawn, *next; d != NULL; d = next) {
        next = d->next;
        free(d->x);
        free(d);
    }
    free(drawn);
}

void ranks_close(ranks *r)
{
    drawn_free(r->drawn);
    d9d_mesh_close(r->mesh);
    d9d_device_close(r->dev);
    d9d_bootstrap_close(r->bootstrap);
}

int ranks_run(ranks *r, const char *name, const struct CMUnitTest *tests, size_t n)
{
    const int failed = _cmocka_run_group_tests(name, tests, n, NULL, NULL);

    printf("rank %d of %d: %d failed\n", r->rank, r->size, failed);
    if (failed > 0)
        d9d_bootstrap_abort(r->bootstrap, 1, "a test failed");
    ranks_close(r);
    return failed > 0;
}

d9d_tensor ranks_numbers(const ranks *r, d9d_dtype t, d9d_shape shape, uint64_t stream)
{
    const int64_t n = d9d_shape_numel(&shape);
    const float *drawn = drawn_get(r, stream, n);
    float *host = calloc((size_t)n + 1, sizeof(*host));
    d9d_tensor x;

    for (int64_t i = 0; i < n; i++)
        if (t == D9D_F32)
            host[i] = drawn[i];
        else
            ((uint16_t *)(void *)host)[i] = d9d_bf16_from_f32(drawn[i]);
    assert_ok(d9d_tensor_from_host(r->dev, t, shape, host, &x));
    free(host);
    return x;
}

float *ranks_host(const d9d_tensor *x)
{
    float *host = calloc((size_t)d9d_tensor_numel(x) + 1, sizeof(*host));

    assert_ok(d9d_tensor_to_f32(x, host));
    return host;
}

void ranks_close_to(const char *what, const float *got, const float *want, int64_t n,
                    double tolerance)
{
    double off = 0, norm = 0;

    for (int64_t i = 0; i < n; i++) {
        off += ((double)got[i] - (double)want[i]) * ((double)got[i] - (double)want[i]);
        norm += (double)want[i] * (double)want[i];
    }
    if (!(off <= tolerance * tolerance * norm) && off != 0)
        fail_msg("%s: off by %g of %g", what, sqrt(off), sqrt(norm));
}
