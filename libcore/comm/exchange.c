/* exchange.c - all-gather and broadcast into an arena.  See d9d/comm/exchange.h. */
#include "d9d/comm/exchange.h"

#include <string.h>

d9d_status d9d_bootstrap_allgather_arena(d9d_bootstrap *bootstrap, const void *local, size_t n,
                                         d9d_arena *a, d9d_bootstrap_blob **all)
{
    *all = d9d_arena_alloc(a, (size_t)d9d_bootstrap_size(bootstrap) * sizeof(**all));
    if (*all == NULL)
        return D9D_FAIL(D9D_ENOMEM, "bootstrap: no memory for the blobs of %d ranks",
                        d9d_bootstrap_size(bootstrap));
    return d9d_bootstrap_allgather(bootstrap, local, n, a, *all);
}

/* Header of each chunk of a broadcast: the bytes of the whole text. */
enum { TOTAL_BYTES = sizeof(uint64_t) };
#define NO_TEXT UINT64_MAX

/* Broadcast one chunk, from `at` on; *blob is what arrived. */
static d9d_status broadcast_chunk(d9d_bootstrap *bootstrap, const char *text, uint64_t total,
                                  uint64_t at, d9d_arena *a, d9d_bootstrap_blob *blob)
{
    const size_t max_bytes = d9d_bootstrap_max_bytes(bootstrap) - TOTAL_BYTES;
    const size_t n = total == NO_TEXT         ? 0
                     : total - at < max_bytes ? (size_t)(total - at)
                                              : max_bytes;
    const bool tells = d9d_bootstrap_rank(bootstrap) == 0;
    char *local = d9d_arena_alloc(a, TOTAL_BYTES + n);
    d9d_bootstrap_blob *all;

    if (local == NULL)
        return D9D_FAIL(D9D_ENOMEM, "bootstrap: no memory for a blob of %zu bytes", n);
    memcpy(local, &total, TOTAL_BYTES);
    if (n > 0)
        memcpy(local + TOTAL_BYTES, text + at, n);
    D9D_TRY(d9d_bootstrap_allgather_arena(bootstrap, local, tells ? TOTAL_BYTES + n : 0, a, &all));
    *blob = all[0];
    return D9D_OK;
}

/* In chunks, because the bytes that a rank may send shrink with the number of ranks. */
d9d_status d9d_bootstrap_broadcast_text(d9d_bootstrap *bootstrap, d9d_arena *a, const char **text)
{
    const bool tells = d9d_bootstrap_rank(bootstrap) == 0 && *text != NULL;
    uint64_t total = tells ? strlen(*text) : NO_TEXT, at = 0;
    d9d_bootstrap_blob blob = {0};
    char *received = NULL;

    do {
        D9D_TRY(broadcast_chunk(bootstrap, *text, tells ? total : NO_TEXT, at, a, &blob));
        if (blob.n >= TOTAL_BYTES)
            memcpy(&total, blob.data, TOTAL_BYTES);
        if (blob.n < TOTAL_BYTES || total == NO_TEXT) /* a simulated rank 0 sends no text */
            break;
        if (received == NULL)
            received = d9d_arena_alloc(a, total + 1);
        if (received == NULL || blob.n - TOTAL_BYTES > total - at)
            return D9D_FAIL(D9D_ECOMM, "bootstrap: rank 0 sent %zu bytes of a text of %llu",
                            blob.n - TOTAL_BYTES, (unsigned long long)total);
        memcpy(received + at, (const char *)blob.data + TOTAL_BYTES, blob.n - TOTAL_BYTES);
        at += blob.n - TOTAL_BYTES;
    } while (at < total);
    *text = received;
    return D9D_OK;
}

d9d_status d9d_comm_allgather_arena(d9d_comm *world, const char *label, const void *local, size_t n,
                                    d9d_arena *a, d9d_comm_blob **all)
{
    const int ranks = d9d_comm_size(world);

    *all = d9d_arena_alloc(a, (size_t)ranks * sizeof(**all));
    return *all == NULL
               ? D9D_FAIL(D9D_ENOMEM, "%s: no memory for the blobs of %d ranks", label, ranks)
               : d9d_comm_allgather_bytes(world, label, local, n, a, *all);
}
