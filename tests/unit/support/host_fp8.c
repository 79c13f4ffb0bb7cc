/* host_fp8.c - quantised matrices in host memory, see host_call.h. */
#include "host_call.h"

/* The device's copy of an operand of `rows` rows. */
static d9d_fp8_operand operand(host_call *c, const d9d_fp8_operand *x, int64_t rows, bool out)
{
    const int64_t scales = x->scale_by_row ? rows : 1, n = rows * x->row_stride;
    d9d_fp8_operand d = *x;

    d.data = host_out(c, x->t, x->data, n);
    d.scale = host_out(c, D9D_F32, x->scale, scales);
    for (size_t i = 0; i < c->n && !out; i++)
        if (c->array[i].dev == d.data || c->array[i].dev == (void *)d.scale)
            c->array[i].out = false;
    return d;
}

static d9d_status on_fp8_quantise(d9d_stream s, d9d_dtype t, const void *x, int64_t m, int64_t n,
                                  const d9d_fp8_operand *rows, const d9d_fp8_operand *cols)
{
    host_call c = host_begin();
    d9d_fp8_operand r, k;

    (void)s;
    if (rows != NULL)
        r = operand(&c, rows, m, true);
    if (cols != NULL)
        k = operand(&c, cols, n, true);
    return host_end(&c, c.k->fp8->quantise(c.s, t, host_in(&c, t, x, m * n), m, n,
                                           rows != NULL ? &r : NULL, cols != NULL ? &k : NULL));
}

static d9d_status on_fp8_gemm(d9d_stream s, const d9d_fp8_gemm_dims *g, const d9d_fp8_operand *a,
                              const d9d_fp8_operand *b, void *y)
{
    host_call c = host_begin();
    const d9d_fp8_operand da = operand(&c, a, g->m, false), db = operand(&c, b, g->n, false);
    d9d_fp8_gemm_dims d = *g;

    (void)s;
    d.addend = host_in(&c, g->ct, g->addend, g->m * g->n);
    return host_end(&c, c.k->fp8->product(c.s, &d, &da, &db, host_out(&c, g->ct, y, g->m * g->n)));
}

static d9d_status on_fp8_grouped_gemm(d9d_stream s, const d9d_fp8_grouped_dims *g,
                                      const d9d_fp8_operand *a, const d9d_fp8_operand *b, void *y)
{
    const bool is_fwd = g->form == D9D_FP8_GROUPED_FWD, is_wgrad = g->form == D9D_FP8_GROUPED_WGRAD;
    const int64_t results = is_wgrad ? g->e * g->in * g->out : g->rows * (is_fwd ? g->out : g->in);
    host_call c = host_begin();
    const d9d_fp8_operand da = operand(&c, a, is_wgrad ? g->in : g->rows, false),
                          db = operand(&c, b, is_fwd || is_wgrad ? g->out : g->e * g->in, false);
    d9d_fp8_grouped_dims d = *g;

    (void)s;
    d.offset = host_ints(&c, g->offset, g->e + 1);
    return host_end(&c, c.k->fp8->grouped(c.s, &d, &da, &db, host_out(&c, g->ct, y, results)));
}

/* Maxima on the device; of n columns, and of rows up to the last place that one of m has. */
static d9d_fp8_maxima maxima(host_call *c, const d9d_fp8_maxima *a, int64_t m, int64_t n)
{
    const int64_t places = m > 0 ? m + (a->group > 0 ? (m - 1) / a->group * a->skip : 0) : 0;
    d9d_fp8_maxima d = *a;

    d.all = host_out(c, D9D_I32, a->all, 1);
    d.rows = host_out(c, D9D_I32, a->rows, places);
    d.cols = host_out(c, D9D_I32, a->cols, n);
    return d;
}

static d9d_status on_fp8_amax(d9d_stream s, d9d_dtype t, const void *x, int64_t m, int64_t n,
                              const d9d_fp8_maxima *to)
{
    host_call c = host_begin();
    const d9d_fp8_maxima d = maxima(&c, to, m, n);

    (void)s;
    return host_end(&c, c.k->fp8->amax(c.s, t, host_in(&c, t, x, m * n), m, n, &d));
}

static d9d_status on_fp8_encode(d9d_stream s, d9d_dtype t, const void *x, int64_t m, int64_t n,
                                const d9d_fp8_maxima *by, d9d_dtype f, void *y)
{
    host_call c = host_begin();
    const d9d_fp8_maxima d = maxima(&c, by, m, n);

    (void)s;
    return host_end(&c, c.k->fp8->encode(c.s, t, host_in(&c, t, x, m * n), m, n, &d, f,
                                         host_out(&c, f, y, m * n)));
}

static d9d_status on_fp8_scales(d9d_stream s, d9d_dtype f, const int32_t *a, int64_t n,
                                float *scale)
{
    host_call c = host_begin();

    (void)s;
    return host_end(
        &c, c.k->fp8->scales(c.s, f, host_ints(&c, a, n), n, host_out(&c, D9D_F32, scale, n)));
}

static d9d_status on_fp8_transpose(d9d_stream s, const void *x, int64_t m, int64_t n, void *y)
{
    host_call c = host_begin();

    (void)s;
    return host_end(&c, c.k->fp8->transpose(c.s, host_in(&c, D9D_U8, x, m * n), m, n,
                                            host_out(&c, D9D_U8, y, n * d9d_fp8_padded(m))));
}

HOST_KERNELS(fp8, D9D_FP8_KERNELS)
