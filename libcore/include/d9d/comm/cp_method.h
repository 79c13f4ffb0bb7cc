/* cp_method.h - how attention reaches the keys of other ranks' positions, under context parallelism
 * of n ranks (d9d/nn/parallel_groups.h).
 *
 *     method        a rank computes             sends, a position: forward        and backward
 *     all-gather    its queries, all keys       (n-1) K (D + DV)                  twice that
 *     all-to-all    all positions, A/n heads    (n-1)/n (A + K) (D + DV)          that
 *
 *     ring            its queries, all keys       3/4 (n-1) K (D + DV)            twice that
 *
 * Numbers are elements for each of a rank's positions.  A are query heads, K key-value heads, D and
 * DV features of a key and a value.  All-to-all sends less where n exceeds 2/3 (1 + A/K).  n must
 * divide A; K counts as n where it is smaller, and n is then a multiple of it.
 *
 * Hybrid: all-to-all over m neighbours (context_parallel_replicate), all-gather over the n/m others
 * (context_parallel_shard).  The zigzag chunks of m neighbours make two larger ones, those of a
 * rank of n/m.  So a rank computes A/m heads as all-gather over n/m ranks computes all of them.
 * Ring in place of all-gather likewise.
 *
 * A ring holds keys and values of three ranks at a time, not of n, and sends while it computes.
 * The number is that of a causal mask; without one, or with prefixes and no window, it is that of
 * all-gather.  With a window of at most a chunk, S / 2n positions, a rank gets two chunks, whatever
 * n: 1 K (D + DV).
 */
#ifndef D9D_COMM_CP_METHOD_H
#define D9D_COMM_CP_METHOD_H

#ifdef __cplusplus
extern "C" {
#endif

/* Methods with their words in configurations. */
#define D9D_CP_METHODS(X)                                                                          \
    X(ALL_GATHER, "all_gather")                                                                    \
    X(ALL_TO_ALL, "all_to_all")                                                                    \
    X(HYBRID, "all_to_all+all_gather")                                                             \
    X(RING, "ring")                                                                                \
    X(HYBRID_RING, "all_to_all+ring")

typedef enum d9d_cp_method {
#define X(name, word) D9D_CP_##name,
    D9D_CP_METHODS(X)
#undef X
        D9D_N_CP_METHODS,
    /* In configurations alone: a plan chooses one of the above (d9d/plan/plan.h). */
    D9D_CP_AUTO = D9D_N_CP_METHODS
} d9d_cp_method;

#define D9D_CP_AUTO_NAME "auto"

static inline const char *d9d_cp_method_name(d9d_cp_method m)
{
    static const char *const names[] = {
#define X(name, word) word,
        D9D_CP_METHODS(X)
#undef X
            D9D_CP_AUTO_NAME,
    };

    return names[m];
}

#ifdef __cplusplus
}
#endif
#endif /* D9D_COMM_CP_METHOD_H */
