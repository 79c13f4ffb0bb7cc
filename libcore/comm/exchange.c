/* exchange.c - see d9d/comm/exchange.h. */
#include "d9d/comm/exchange.h"

#include <string.h>

d9d_status d9d_bootstrap_allgather_arena(d9d_boot *boot, const void *mine, size_t n, d9d_arena *a,
                                         d9d_boot_word **all)
{
    *all = d9d_arena_alloc(a, (size_t)d9d_boot_size(boot) * sizeof(**all));
    if (*all == NULL)
        return D9D_FAIL(D9D_ENOMEM, "launch: words of %d ranks", d9d_boot_size(boot));
    return d9d_boot_gather(boot, mine, n, a, *all);
}

/* Ahead of a piece of what rank 0 tells: bytes of all of it. */
enum { TOTAL = sizeof(uint64_t) };
#define NOTHING UINT64_MAX

/* One piece, from `at` on; what has come is in *word. */
static d9d_status tell_piece(d9d_boot *boot, const char *text, uint64_t total, uint64_t at,
                             d9d_arena *a, d9d_boot_word *word)
{
    const size_t most = d9d_boot_most(boot) - TOTAL;
    const size_t n = total == NOTHING ? 0 : total - at < most ? (size_t)(total - at) : most;
    const bool tells = d9d_boot_rank(boot) == 0;
    char *mine = d9d_arena_alloc(a, TOTAL + n);
    d9d_boot_word *all;

    if (mine == NULL)
        return D9D_FAIL(D9D_ENOMEM, "launch: a word of %zu bytes", n);
    memcpy(mine, &total, TOTAL);
    if (n > 0)
        memcpy(mine + TOTAL, text + at, n);
    D9D_TRY(d9d_bootstrap_allgather_arena(boot, mine, tells ? TOTAL + n : 0, a, &all));
    *word = all[0];
    return D9D_OK;
}

/* However many ranks there are, and however little each may then say at once. */
d9d_status d9d_bootstrap_broadcast_text(d9d_boot *boot, d9d_arena *a, const char **text)
{
    const bool tells = d9d_boot_rank(boot) == 0 && *text != NULL;
    uint64_t total = tells ? strlen(*text) : NOTHING, at = 0;
    d9d_boot_word word = {0};
    char *told = NULL;

    do {
        D9D_TRY(tell_piece(boot, *text, tells ? total : NOTHING, at, a, &word));
        if (word.n >= TOTAL)
            memcpy(&total, word.data, TOTAL);
        if (word.n < TOTAL || total == NOTHING) /* the first of imagined ranks says nothing */
            break;
        if (told == NULL)
            told = d9d_arena_alloc(a, total + 1);
        if (told == NULL || word.n - TOTAL > total - at)
            return D9D_FAIL(D9D_ECOMM, "launch: rank 0 tells %zu of %llu bytes", word.n - TOTAL,
                            (unsigned long long)total);
        memcpy(told + at, (const char *)word.data + TOTAL, word.n - TOTAL);
        at += word.n - TOTAL;
    } while (at < total);
    *text = told;
    return D9D_OK;
}

d9d_status d9d_comm_allgather_arena(d9d_comm *world, const char *what, const void *mine, size_t n,
                                    d9d_arena *a, d9d_comm_word **all)
{
    const int ranks = d9d_comm_size(world);

    *all = d9d_arena_alloc(a, (size_t)ranks * sizeof(**all));
    return *all == NULL ? D9D_FAIL(D9D_ENOMEM, "%s of %d ranks", what, ranks)
                        : d9d_comm_gather_words(world, what, mine, n, a, *all);
}
