/* p2p_ring.c - posted messages between neighbours on GPUs of one host: d9d_comm_mail_want().
 *
 * Each rank has two rings of slots, of which the one before it in the group fills the first and the
 * one behind it the second; in a group of two the other rank fills the first.  Beside them are
 * words that count:
 *
 *     rank a                                          rank b
 *     wait until b has taken what was in the slot
 *     copy a piece over the link          ------->    slot
 *     write how many there are            ------->    arrived
 *                                                     wait until there is one more
 *                                                     copy the slot to where it belongs
 *     taken                               <-------    write how many are taken
 *
 * Waiting is done by what feeds the GPU (cuStreamWaitValue32 of the driver) and copying by its copy
 * engines, while a message of NCCL's keeps multiprocessors from the moment it is queued until the
 * other rank comes: products beside one that waits take up to a third longer.
 */
#include <cuda_runtime_api.h>
#include <stdlib.h>
#include <string.h>

#include "d9d/kernels/cuda.h"
#include "comm/comm_private.h"

enum {
    PIECE = 4 << 20,
    SLOTS = 8, /* of a ring, a power of two: counts of pieces may pass 2^32 */
    RINGS = 2,
    WORD = 256,  /* bytes from one word to the next */
    HEAD = 4096, /* of words */
    FIRST = 0,   /* of a rank's two neighbours, or of its rings: what is before it fills it */
    SECOND = 1,  /* ... or behind it */
    NOBODY = -1,
};
/* Words of each ring. */
enum { ARRIVED, TAKEN };

typedef struct mail {
    char *mine;
    d9d_comm_shared *shared;
    uint32_t sent[RINGS], got[RINGS]; /* pieces: through the neighbour's ring, from one's own */
} mail;

static const char *word_at(const void *base, int word, int ring)
{
    return (const char *)base + (size_t)(word * RINGS + ring) * WORD;
}

static char *slot_at(const void *base, int ring, uint32_t piece)
{
    return (char *)(uintptr_t)base + HEAD + (size_t)(ring * SLOTS + (int)(piece % SLOTS)) * PIECE;
}

/* The ring of `to` that `from` fills. */
static int ring_between(const d9d_comm *c, int from, int to)
{
    if ((from + 1) % c->size == to)
        return FIRST;
    return (to + 1) % c->size == from ? SECOND : NOBODY;
}

/* --- making it ------------------------------------------------------------------------------ */

static d9d_status fill(d9d_comm *c, mail *m, bool *fine)
{
    const size_t bytes = HEAD + (size_t)RINGS * SLOTS * PIECE;
    const cudaStream_t s = d9d_cuda_stream_queue(d9d_comm_queue(c));
    void *mine = NULL;
    const bool well = cudaMalloc(&mine, bytes) == cudaSuccess &&
                      cudaMemsetAsync(mine, 0, HEAD, s) == cudaSuccess &&
                      cudaStreamSynchronize(s) == cudaSuccess;

    m->mine = mine;
    (void)cudaGetLastError(); /* what cannot be is no failure */
    D9D_TRY(d9di_comm_all(c, "mail", well, fine));
    if (!*fine)
        return D9D_OK;
    D9D_TRY(d9d_comm_share(c, "mail", &mine, 1, &m->shared));
    *fine = m->shared != NULL && d9di_shared_speaks(m->shared);
    return D9D_OK;
}

static void mail_close(d9d_comm *c, void *self)
{
    mail *m = self;

    d9d_comm_unshare(m->shared);
    if (!*c->failed) /* else freeing could wait for ever */
        (void)cudaFree(m->mine);
    free(m);
}

static d9d_status mail_make(d9d_comm *c, void **out)
{
    mail *m = calloc(1, sizeof(*m));
    bool fine = false;
    d9d_status st;

    if (m == NULL)
        return D9D_FAIL(D9D_ENOMEM, "%s: no memory for mail", c->name);
    st = fill(c, m, &fine);
    if (st == D9D_OK && fine)
        *out = m;
    else
        mail_close(c, m);
    return st;
}

/* --- messages --------------------------------------------------------------------------------- */

/* One piece: when `gate` has come to `when`, n bytes, then `told` is `now`. */
typedef struct passage {
    const void *gate, *told;
    uint32_t when, now;
    void *dst;
    const void *src;
} passage;

static passage sending(mail *m, int ring, char *theirs, char *src)
{
    const uint32_t piece = m->sent[ring]++;

    return (passage){word_at(m->mine, TAKEN, ring),
                     word_at(theirs, ARRIVED, ring),
                     piece + 1 - SLOTS,
                     piece + 1,
                     slot_at(theirs, ring, piece),
                     src};
}

static passage receiving(mail *m, int ring, char *theirs, char *dst)
{
    const uint32_t piece = m->got[ring]++;

    return (passage){
        word_at(m->mine, ARRIVED, ring), word_at(theirs, TAKEN, ring), piece + 1, piece + 1, dst,
        slot_at(m->mine, ring, piece)};
}

static bool mail_reaches(const d9d_comm *c, int peer)
{
    return ring_between(c, c->rank, peer) != NOBODY;
}

static d9d_status mail_move(d9d_comm *c, void *self, const d9di_call *k, d9d_stream stream)
{
    mail *m = self;
    const d9di_p2p_msg *p = k->pieces;
    const size_t bytes = (size_t)p->n * d9d_dtype_size(p->t);
    const cudaStream_t s = d9d_cuda_stream_queue(stream);
    char *theirs = d9di_shared_at(m->shared, p->peer);
    const int ring =
        p->receive ? ring_between(c, p->peer, c->rank) : ring_between(c, c->rank, p->peer);

    for (size_t at = 0; at < bytes; at += PIECE) {
        const size_t n = bytes - at < PIECE ? bytes - at : PIECE;
        char *here = (char *)p->data + at;
        const passage g =
            p->receive ? receiving(m, ring, theirs, here) : sending(m, ring, theirs, here);
        int rc = d9di_word_wait(m->shared, stream, g.gate, g.when);

        if (rc == 0)
            rc = (int)cudaMemcpyAsync(g.dst, g.src, n, cudaMemcpyDefault, s);
        if (rc == 0)
            rc = d9di_word_write(m->shared, stream, g.told, g.now);
        if (rc != 0)
            return d9di_call_fail(c, k, "CUDA: %s", cudaGetErrorString((cudaError_t)rc));
    }
    return D9D_OK;
}

const d9di_mail_ops d9di_mail_cuda = {mail_make, mail_reaches, mail_move, mail_close};
