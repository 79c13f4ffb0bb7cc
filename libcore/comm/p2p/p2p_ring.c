/* p2p_ring.c - posted messages between neighbours on GPUs of one host: d9d_p2p_ring_enable().
 *
 * Each rank has two rings of slots.  Its predecessor in the group fills the first, its successor
 * the second; in a group of two the other rank fills the first.  Two signals for each ring count
 * chunks:
 *
 *     rank a                                          rank b
 *     wait until b has consumed the slot's last chunk
 *     copy a chunk over the link          ------->    slot
 *     signal the number of chunks sent    ------->    ARRIVED
 *                                                     wait until there is one more
 *                                                     copy the slot to its destination
 *     CONSUMED                            <-------    signal the number of chunks consumed
 *
 * Streams wait by cuStreamWaitValue32() of the driver, and copy engines copy, so no SM is used.  A
 * pending NCCL message occupies SMs from its launch until the peer arrives; GEMMs that run
 * meanwhile take up to a third longer.
 */
#include <cuda_runtime_api.h>
#include <stdlib.h>
#include <string.h>

#include "comm/comm_private.h"
#include "d9d/kernels/cuda.h"

enum {
    CHUNK_BYTES = 4 << 20,
    RING_SLOTS = 8, /* of a ring; a power of two, because counts of chunks wrap at 2^32 */
    RINGS = 2,
    SIGNAL_STRIDE = 256,  /* bytes from one signal to the next */
    SIGNALS_BYTES = 4096, /* bytes of all signals */
    FROM_PREV = 0,        /* the ring that the predecessor fills */
    FROM_NEXT = 1,        /* the ring that the successor fills */
    NO_RING = -1,
};
/* The signals of each ring. */
enum { ARRIVED, CONSUMED };

typedef struct p2p_rings {
    char *local;
    d9d_peer_memory *peers;
    uint32_t sent[RINGS], received[RINGS]; /* chunks: into the neighbour's ring, out of the own */
} p2p_rings;

static const char *signal_at(const void *base, int word, int ring)
{
    return (const char *)base + (size_t)(word * RINGS + ring) * SIGNAL_STRIDE;
}

static char *slot_at(const void *base, int ring, uint32_t chunk)
{
    return (char *)(uintptr_t)base + SIGNALS_BYTES +
           (size_t)(ring * RING_SLOTS + (int)(chunk % RING_SLOTS)) * CHUNK_BYTES;
}

/* The ring of `to` that `from` fills. */
static int ring_between(const d9d_comm *c, int from, int to)
{
    if ((from + 1) % c->size == to)
        return FROM_PREV;
    return (to + 1) % c->size == from ? FROM_NEXT : NO_RING;
}

/* --- creation ------------------------------------------------------------------------ */

static d9d_status ring_alloc(d9d_comm *c, p2p_rings *m, bool *fine)
{
    const size_t bytes = SIGNALS_BYTES + (size_t)RINGS * RING_SLOTS * CHUNK_BYTES;
    const cudaStream_t s = d9d_cuda_stream_handle(d9d_comm_stream(c));
    void *local = NULL;
    const bool well = cudaMalloc(&local, bytes) == cudaSuccess &&
                      cudaMemsetAsync(local, 0, SIGNALS_BYTES, s) == cudaSuccess &&
                      cudaStreamSynchronize(s) == cudaSuccess;

    m->local = local;
    (void)cudaGetLastError(); /* out of memory is not an error: messages then use NCCL */
    D9D_TRY(d9di_comm_all_true(c, "mail", well, fine));
    if (!*fine)
        return D9D_OK;
    D9D_TRY(d9d_peer_map(c, "mail", &local, 1, &m->peers));
    *fine = m->peers != NULL && d9di_peer_has_signals(m->peers);
    return D9D_OK;
}

static void p2p_ring_close(d9d_comm *c, void *self)
{
    p2p_rings *m = self;

    d9d_peer_unmap(m->peers);
    if (!*c->failed) /* else freeing could block for ever */
        (void)cudaFree(m->local);
    free(m);
}

static d9d_status p2p_ring_create(d9d_comm *c, void **out)
{
    p2p_rings *m = calloc(1, sizeof(*m));
    bool fine = false;
    d9d_status st;

    if (m == NULL)
        return D9D_FAIL(D9D_ENOMEM, "%s: no memory for a P2P ring", c->name);
    st = ring_alloc(c, m, &fine);
    if (st == D9D_OK && fine)
        *out = m;
    else
        p2p_ring_close(c, m);
    return st;
}

/* --- messages --------------------------------------------------------------------------------- */

/* One chunk: when *wait_signal is at least wait_value, copy n bytes, then set *done_signal to
 * done_value. */
typedef struct chunk_copy {
    const void *wait_signal, *done_signal;
    uint32_t wait_value, done_value;
    void *dst;
    const void *src;
} chunk_copy;

static chunk_copy chunk_send(p2p_rings *m, int ring, char *theirs, char *src)
{
    const uint32_t chunk = m->sent[ring]++;

    return (chunk_copy){signal_at(m->local, CONSUMED, ring),
                        signal_at(theirs, ARRIVED, ring),
                        chunk + 1 - RING_SLOTS,
                        chunk + 1,
                        slot_at(theirs, ring, chunk),
                        src};
}

static chunk_copy chunk_recv(p2p_rings *m, int ring, char *theirs, char *dst)
{
    const uint32_t chunk = m->received[ring]++;

    return (chunk_copy){signal_at(m->local, ARRIVED, ring),
                        signal_at(theirs, CONSUMED, ring),
                        chunk + 1,
                        chunk + 1,
                        dst,
                        slot_at(m->local, ring, chunk)};
}

static bool p2p_ring_connects(const d9d_comm *c, int peer)
{
    return ring_between(c, c->rank, peer) != NO_RING;
}

static d9d_status p2p_ring_transfer(d9d_comm *c, void *self, const d9di_comm_call *k,
                                    d9d_stream stream)
{
    p2p_rings *m = self;
    const d9di_comm_msg *p = k->msgs;
    const size_t bytes = (size_t)p->n * d9d_dtype_size(p->t);
    const cudaStream_t s = d9d_cuda_stream_handle(stream);
    char *theirs = d9di_peer_ptr(m->peers, p->peer);
    const int ring =
        p->receive ? ring_between(c, p->peer, c->rank) : ring_between(c, c->rank, p->peer);

    for (size_t at = 0; at < bytes; at += CHUNK_BYTES) {
        const size_t n = bytes - at < CHUNK_BYTES ? bytes - at : CHUNK_BYTES;
        char *here = (char *)p->data + at;
        const chunk_copy g =
            p->receive ? chunk_recv(m, ring, theirs, here) : chunk_send(m, ring, theirs, here);
        int rc = d9di_peer_signal_wait(m->peers, stream, g.wait_signal, g.wait_value);

        if (rc == 0)
            rc = (int)cudaMemcpyAsync(g.dst, g.src, n, cudaMemcpyDefault, s);
        if (rc == 0)
            rc = d9di_peer_signal_write(m->peers, stream, g.done_signal, g.done_value);
        if (rc != 0)
            return d9di_comm_call_fail(c, k, "CUDA: %s", cudaGetErrorString((cudaError_t)rc));
    }
    return D9D_OK;
}

const d9di_p2p_ring_ops d9di_p2p_ring_cuda = {p2p_ring_create, p2p_ring_connects, p2p_ring_transfer,
                                              p2p_ring_close};
