/* stage.c - distribution of layers over stages.  See d9d/pipe/stage.h.
 */
#include "d9d/pipe/stage.h"

/* Layers, virtual ones included, of the stages before `index`: the first total % count stages
 * have one more than the others. */
static int64_t layers_before(int64_t total, int64_t count, int64_t index)
{
    const int64_t extra = total % count;

    return index * (total / count) + (index < extra ? index : extra);
}

d9d_status d9d_stage_layers(int64_t n_layers, int64_t virtual_pre, int64_t virtual_post,
                            d9d_stage s, int64_t *first, int64_t *end)
{
    int64_t total, lo = 0, hi = 0;

    if (n_layers < 0 || virtual_pre < 0 || virtual_post < 0 ||
        __builtin_add_overflow(n_layers, virtual_pre, &total) ||
        __builtin_add_overflow(total, virtual_post, &total))
        return D9D_FAIL(D9D_ECONFIG,
                        "pipeline: %lld layers with %lld virtual before and %lld after",
                        (long long)n_layers, (long long)virtual_pre, (long long)virtual_post);
    if (s.count < 1 || s.index < 0 || s.index >= s.count)
        return D9D_FAIL(D9D_ECONFIG, "pipeline: stage %d of %d", s.index, s.count);
    for (int i = 0; i < s.count; i++) {
        const int64_t from = i == 0 ? 0 : layers_before(total, s.count, i) - virtual_pre;
        const int64_t to =
            i == s.count - 1 ? n_layers : layers_before(total, s.count, i + 1) - virtual_pre;

        if (to <= from)
            return D9D_FAIL(D9D_ECONFIG,
                            "pipeline: stage %d of %d gets no layer: %lld layers, %lld virtual "
                            "before and %lld after",
                            i, s.count, (long long)n_layers, (long long)virtual_pre,
                            (long long)virtual_post);
        if (i == s.index) {
            lo = from;
            hi = to;
        }
    }
    *first = lo;
    *end = hi;
    return D9D_OK;
}
