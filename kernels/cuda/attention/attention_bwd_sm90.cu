/* attention_bwd_sm90.cu - the gradient of causal attention on Hopper, in bfloat16, for any
 * rows, packed documents and pieces of them.
 *
 *     P = exp(scale Q K' - lse)        dS = P (dO V' - delta)        delta = rows of dO O
 *
 *     of queries    dQ = scale dS K
 *     of keys       dK = scale dS' Q          dV = P' dO
 *
 * One launch for keys and one for queries; every sum is made by one block in one order.  The first
 * makes the scores and keeps dS in memory, for as many heads as there is room for; of the others
 * the second makes the scores again, 7 products in all where 5 would do.  The bits are the same.
 *
 * A block has BLOCK_ROWS cells of one side of the scores, `still`, half for each of its two warp
 * groups, and walks along the other side's tiles of 64, which the producer brings into a ring:
 *
 *     still     Q dO     K V        X = still[0] moving[0]'    Y = still[1] moving[1]'
 *     moving    K V      Q dO       sum[0] += dS moving[0]     sum[1] += P moving[1], of keys
 *
 * Heads of more than 128 features have no room for that: their blocks have 64 cells, one warp group
 * makes X and P, the other Y and dS, each its sums, and no dS is kept.
 *
 * Tiles begin with a segment, so that what comes out is the same wherever it lies.  Keys of
 * segments that begin with one key have queries in all of them, and in all heads of their group.
 * Blocks stay for the launch and claim cells from a list, that which is the most work first.
 */
#include "cuda/attention/attention_bwd_sm90_d128.cuh"
#include "cuda/attention/attention_bwd_sm90_d256.cuh"

namespace
{

/* --- before the two launches ----------------------------------------------------------------- */

/* Blocks of the launch before: the lists, and what of each row the kernels want. */
enum { LISTS = 3 };

/* Of [B S, A, D], and lse [B, A, S]. */
struct rows {
    const bf16 *dout, *o;
    const float *lse;
    float *lse2, *delta; /* out */
    int d;
};

/* A warp has a row of a head. */
DEVICE void make_row(const sizes &n, const rows &x, int64_t row)
{
    const int h = (int)(row % n.a), token = (int)(row / n.a);
    const int64_t to = (int64_t)h * n.b * n.s + token;
    float sum = 0.0f;

    for (int f = 2 * (threadIdx.x % WARP); f < x.d; f += 2 * WARP) {
        const float2 a = __bfloat1622float2(*(const __nv_bfloat162 *)(x.dout + row * x.d + f));
        const float2 b = __bfloat1622float2(*(const __nv_bfloat162 *)(x.o + row * x.d + f));

        sum = fmaf(a.x, b.x, fmaf(a.y, b.y, sum));
    }
    sum = group_sum<WARP>(sum);
    if (threadIdx.x % WARP != 0)
        return;
    x.lse2[to] = x.lse[((int64_t)(token / n.s) * n.a + h) * n.s + token % n.s] * CUDART_L2E_F;
    x.delta[to] = sum;
}

} // namespace

static __global__ void __launch_bounds__(LIST_BLOCK)
    prepare_kernel(sizes n, rows x, tasks queries, tasks keys, slopes kept)
{
    const int64_t all = (int64_t)n.b * n.s * n.a, step = (gridDim.x - LISTS) * (LIST_BLOCK / WARP);

    if (blockIdx.x == 0)
        make_list<true>(n, keys);
    else if (blockIdx.x == 1)
        make_list<false>(n, queries);
    else if (blockIdx.x == 2)
        place_slopes(n, kept);
    else
        for (int64_t row = ((int64_t)blockIdx.x - LISTS) * (LIST_BLOCK / WARP) + threadIdx.x / WARP;
             row < all; row += step)
            make_row(n, x, row);
}

namespace
{

/* --- the kernel ------------------------------------------------------------------------------ */

template <int D, bool KEYS> DEVICE void make_barriers(const place &at)
{
    typedef layout<D> L;

    for (int i = 0; i < L::STAGES; i++) {
        barrier_init(at.full + 8 * i, KEYS ? 2 : 1);
        barrier_init(at.free + 8 * i, CREW_WARPS);
    }
    barrier_init(at.there, 1);
    barrier_init(at.used, CREW_WARPS);
    for (int i = 0; L::TOGETHER && i < BUFFERS * GROUP / WARP; i++) {
        barrier_init(at.given + 8 * i, 1);
        barrier_init(at.taken + 8 * i, 1);
    }
    barriers_made();
}

template <int D, bool KEYS>
__global__ void __launch_bounds__(BLOCK, 1)
    din_kernel(const __grid_constant__ maps m, const __grid_constant__ job p)
{
    if constexpr (HAVE_WGMMA) {
        extern __shared__ __align__(1024) unsigned char tiles[];
        const place at = place_of<D>(shared_address(tiles));
        const int warp = __shfl_sync(~0u, (int)threadIdx.x / WARP, 0);

        if (threadIdx.x == 0)
            make_barriers<D, KEYS>(at);
        __syncthreads();
        if (warp >= CREW_WARPS) {
            asm volatile("setmaxnreg.dec.sync.aligned.u32 40;");
            if (warp == CREW_WARPS)
                producer<D, KEYS>{p, m, at, (int)threadIdx.x % WARP}.run();
        } else {
            const int thread = (int)threadIdx.x % GROUP;
            const crew<D, KEYS> mine = {
                p, at, warp / (GROUP / WARP), thread, thread / WARP, thread % WARP};

            asm volatile("setmaxnreg.inc.sync.aligned.u32 232;");
            if constexpr (layout<D>::TOGETHER)
                together<D, KEYS>{mine}.run();
            else
                apart<D, KEYS>{mine}.run();
        }
    }
}

/* --- launching ------------------------------------------------------------------------------- */

/* Of [cells, heads, d]: slabs of 64 features of one head, zeros where it has fewer. */
void map_of(encoder *e, CUtensorMap *m, const void *x, int64_t cells, int64_t heads, int64_t d)
{
    const cuuint64_t dim[] = {(cuuint64_t)d, (cuuint64_t)heads, (cuuint64_t)cells};
    const cuuint64_t stride[] = {(cuuint64_t)d * 2, (cuuint64_t)(heads * d * 2)};
    const cuuint32_t box[] = {64, 1, SIDE};

    e->make(m, D9D_BF16, x, 3, dim, stride, box);
}

template <int D, bool KEYS>
d9d_status launch(d9d_stream s, const char *op, const maps &m, const job &p)
{
    auto *const k = din_kernel<D, KEYS>;

    D9D_TRY(d9di_allow_shared(op, (const void *)k, layout<D>::BYTES));
    k<<<(unsigned)s->sms, BLOCK, layout<D>::BYTES, d9di_queue(s)>>>(m, p);
    return d9di_launched(op);
}

/* Keys, and then queries, which may find slopes. */
template <int D>
d9d_status launch_both(d9d_stream s, const d9di_attention *c, job p, tasks of_queries)
{
    const d9d_attention_dims &n = c->n;
    encoder e = {c->op, (encode *)s->encode_map, D9D_OK};
    maps m;

    map_of(&e, &m.still[0], c->k, n.b * n.z, n.kv, n.d);
    map_of(&e, &m.still[1], c->v, n.b * n.z, n.kv, n.d);
    map_of(&e, &m.moving[0], c->q, n.b * n.s, n.a, n.d);
    map_of(&e, &m.moving[1], c->dout, n.b * n.s, n.a, n.d);
    D9D_TRY(e.st);
    D9D_TRY((launch<D, true>(s, c->op, m, p)));
    p.to[0] = (bf16 *)c->dq;
    p.to[1] = NULL;
    p.of = of_queries;
    return launch<D, false>(s, c->op, {{m.moving[0], m.moving[1]}, {m.still[0], m.still[1]}}, p);
}

/* By the features of a tile. */
struct way {
    int features, rows; /* of a block's tiles */
    d9d_status (*launch)(d9d_stream s, const d9di_attention *c, job p, tasks of_queries);
};
template <int D> constexpr way of_features = {D, layout<D>::TILES *SIDE, launch_both<D>};
const way ways[] = {of_features<64>,  of_features<80>,  of_features<96>,
                    of_features<112>, of_features<128>, of_features<160>,
                    of_features<192>, of_features<224>, of_features<256>};
enum { MOST_FEATURES = 256 };

/* The first that a head fits in. */
const way &way_for(const d9d_attention_dims &n)
{
    const way *by = ways;

    while (by->features < n.d)
        by++;
    return *by;
}

/* An array of n. */
template <class T> T *take(d9di_room *r, int64_t n)
{
    return (T *)d9di_room_take(r, n * (int64_t)sizeof(T));
}

/* Segments, and units of slopes that there is room for. */
struct counts {
    int64_t segments, units;
};

counts counts_of(d9d_stream s, const d9d_attention_dims &n)
{
    const int64_t room = way_for(n).rows == BLOCK_ROWS ? d9di_attention_scratch(s) : 0;

    return {n.segment != NULL ? n.segments : n.b * d9di_max(1, n.pieces),
            d9di_min(room / UNIT_BYTES, d9di_slope_units(&n))};
}

struct extras {
    d9d_segment *list;
    float *lse, *delta;
    tasks queries, keys;
    slopes kept;
};

tasks take_tasks(d9di_room *r, int64_t cells, int64_t rows, int64_t segments)
{
    const int64_t most = cells / rows + segments;

    return {take<int32_t>(r, 2), take<task>(r, most), (int32_t)most};
}

extras take_extras(const d9d_attention_dims &n, const counts &of, d9di_room *r)
{
    const int64_t rows = n.b * n.s * n.a, block = way_for(n).rows;

    return {take<d9d_segment>(r, n.segment == NULL ? of.segments : 0),
            take<float>(r, rows),
            take<float>(r, rows),
            take_tasks(r, n.b * n.s, block, of.segments),
            take_tasks(r, n.b * n.z, block, of.segments),
            {take<char>(r, of.units * UNIT_BYTES), of.units, take<int32_t>(r, of.segments),
             take<int32_t>(r, 1), take<int32_t>(r, 1)}};
}

sizes sizes_of(const d9d_attention_dims &n, const d9d_segment *segment, int64_t segments)
{
    return {segment,        (int)segments,     (int)n.b,
            (int)n.s,       (int)n.z,          (int)n.a,
            (int)n.kv,      (int)(n.a / n.kv), n.window > 0 ? (int)d9di_min(n.window, +FAR) : +FAR,
            way_for(n).rows};
}

d9d_status run(d9d_stream s, const d9di_attention *c, const extras &x, int64_t segments)
{
    const d9d_attention_dims &n = c->n;
    const job p = {sizes_of(n, n.segment != NULL ? n.segment : x.list, segments),
                   n.scale,
                   x.lse,
                   x.delta,
                   {(bf16 *)c->dk, (bf16 *)c->dv},
                   x.keys,
                   x.kept,
                   (int)n.d};

    if (n.segment == NULL)
        D9D_TRY(d9di_documents_list(s, c, x.list));
    prepare_kernel<<<(unsigned)(LISTS + 2 * s->sms), LIST_BLOCK, 0, d9di_queue(s)>>>(
        p.n, {(const bf16 *)c->dout, (const bf16 *)c->o, c->lse, x.lse, x.delta, p.d}, x.queries,
        x.keys, x.kept);
    D9D_TRY(d9di_launched(c->op));
    return way_for(n).launch(s, c, p, x.queries);
}

} // namespace

bool d9di_attention_din_wgmma_takes(d9d_stream s, const d9di_attention *c)
{
    const d9d_attention_dims *n = &c->n;

    return c->dout != NULL && s->encode_map != NULL && s->options.attention != D9D_CUDA_OWN &&
           n->t == D9D_BF16 && n->d % 8 == 0 && n->d <= MOST_FEATURES && n->causal &&
           n->b * d9di_max(n->s, n->z) < FAR && n->b * n->s * n->a < INT32_MAX;
}

d9d_status d9di_attention_din_wgmma(d9d_stream s, const d9di_attention *c)
{
    const counts of = counts_of(s, c->n);
    d9di_room r = {nullptr, 0};
    void *scratch;
    d9d_status st;

    (void)take_extras(c->n, of, &r);
    const int64_t bytes = r.used;

    D9D_TRY(d9di_take(s, bytes, &scratch));
    r = {(char *)scratch, 0};
    st = run(s, c, take_extras(c->n, of, &r), of.segments);
    d9di_give(s, scratch, bytes);
    return st;
}
