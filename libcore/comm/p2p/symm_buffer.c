/* symm_buffer.c - staging buffers (symmetric memory): two buffers for each rank that its peers
 * read.  See d9d/comm/comm.h. */
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "comm/comm_private.h"
#include "d9d/base/hash.h"
#include "d9d/base/num_format.h"
#include "d9d/comm/mesh.h"

enum { MIN_BYTES = 256 << 10 }; /* bytes to a rank: below it a collective is as fast */
enum { RETRY_AFTER = 64 };      /* requests that are ignored after a refusal */
enum {
    SIZE_ALIGN = 2 << 20
}; /* of a buffer's size, so that slowly growing sizes rarely reallocate */

typedef enum p2p_wish { P2P_AUTO, P2P_OFF, P2P_FORCE } p2p_wish;

/* What the environment asks for: D9D_P2P, or D9D_COMM_SHARE=0/1, which 0.1 had in its place. */
static p2p_wish p2p_read_wish(void)
{
    static const struct {
        const char *name, *value;
        p2p_wish wish;
    } rows[] = {
        {"D9D_P2P", "off", P2P_OFF},        {"D9D_P2P", "force", P2P_FORCE},
        {"D9D_P2P", "auto", P2P_AUTO},      {"D9D_COMM_SHARE", "0", P2P_OFF},
        {"D9D_COMM_SHARE", "1", P2P_FORCE},
    };

    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        const char *value = getenv(rows[i].name);

        if (value != NULL && strcmp(value, rows[i].value) == 0)
            return rows[i].wish;
    }
    return P2P_AUTO;
}

bool d9di_peer_is_allowed(bool by_default)
{
    const p2p_wish wish = p2p_read_wish();

    return wish == P2P_AUTO ? by_default : wish == P2P_FORCE;
}

static bool p2p_is_forced(void)
{
    return p2p_read_wish() == P2P_FORCE;
}

void d9di_comm_host_id(char out[D9DI_COMM_HOST_ID_MAX])
{
    const int fd = open("/proc/sys/kernel/random/boot_id", O_RDONLY | O_CLOEXEC);
    const ssize_t n = fd < 0 ? 0 : read(fd, out, D9DI_COMM_HOST_ID_MAX - 1);

    memset(out + (n < 0 ? 0 : n), 0, D9DI_COMM_HOST_ID_MAX - (size_t)(n < 0 ? 0 : n));
    if (fd >= 0)
        (void)close(fd);
}

d9d_status d9di_comm_all_true(d9d_comm *c, const char *label, bool local, bool *out)
{
    const char vote = local ? 1 : 0;
    d9d_comm_blob *all;
    d9d_arena a = {0};
    d9d_status st;

    all = d9d_arena_alloc(&a, (size_t)c->size * sizeof(*all));
    if (all == NULL)
        return D9D_FAIL(D9D_ENOMEM, "%s: %s: out of memory", c->name, label);
    st = d9d_comm_allgather_bytes(c, label, &vote, 1, &a, all);
    *out = st == D9D_OK;
    for (int r = 0; st == D9D_OK && r < c->size; r++)
        *out = *out && all[r].n == 1 && *(const char *)all[r].data == 1;
    d9d_arena_release(&a);
    return st;
}

/* A hash of this host; zeros if this rank's memory may not be read. */
static d9d_hash host_hash(const d9d_comm *c)
{
    char host[D9DI_COMM_HOST_ID_MAX];

    d9di_comm_host_id(host);
    return host[0] != '\0' && d9di_peer_is_allowed(c->ops->p2p_default)
               ? d9d_hash_bytes(host, sizeof(host))
               : (d9d_hash){0};
}

d9d_status d9di_comm_is_single_host(d9d_comm *c, const char *label, bool *out)
{
    const d9d_hash nowhere = {0};
    d9d_hash local;
    d9d_comm_blob *all;
    d9d_arena a = {0};
    d9d_status st = D9D_OK;

    *out = c->hosts == D9DI_HOSTS_ONE;
    if (c->hosts != D9DI_HOSTS_UNKNOWN)
        return D9D_OK;
    local = host_hash(c);
    all = d9d_arena_alloc(&a, (size_t)c->size * sizeof(*all));
    if (all == NULL)
        return D9D_FAIL(D9D_ENOMEM, "%s: %s: out of memory", c->name, label);
    st = d9d_comm_allgather_bytes(c, label, &local, sizeof(local), &a, all);
    *out = st == D9D_OK;
    for (int r = 0; st == D9D_OK && r < c->size; r++)
        *out = *out && all[r].n == sizeof(local) &&
               memcmp(all[r].data, all[0].data, sizeof(local)) == 0 &&
               memcmp(all[r].data, &nowhere, sizeof(local)) != 0;
    if (st == D9D_OK)
        c->hosts = *out ? D9DI_HOSTS_ONE : D9DI_HOSTS_MORE;
    d9d_arena_release(&a);
    return st;
}

/* --- staging buffers ----------------------------------------------------------------- */

void d9di_symm_buffer_close(d9d_comm *c)
{
    for (int r = 0; c->symm.arrived != NULL && r < c->size; r++)
        d9d_comm_event_free(c, c->symm.arrived[r]);
    free(c->symm.arrived);
    c->symm.arrived = NULL;
    if (c->symm.handle != NULL)
        c->ops->symm_buffer->close(c->symm.handle);
    c->symm.handle = NULL;
    c->symm.bytes = 0;
}

/* True if this request is to be tried: exponential backoff after refusals. */
static bool retry_is_due(d9d_comm *c)
{
    if (c->symm.n_refused == 0)
        return true;
    c->symm.n_asked++;
    if (c->symm.n_asked < RETRY_AFTER << (c->symm.n_refused < 16 ? c->symm.n_refused - 1 : 15))
        return false;
    c->symm.n_asked = 0;
    return true;
}

/* Allocate the larger buffers before the old ones are freed, if there is memory for both. */
static d9d_status buffers_create(d9d_comm *c, uint64_t bytes)
{
    void *more = NULL;

    D9D_TRY(c->ops->symm_buffer->create(c, bytes, &more));
    if (c->symm.handle != NULL)
        c->ops->symm_buffer->close(c->symm.handle);
    c->symm.handle = more;
    c->symm.bytes = more != NULL ? bytes : 0;
    return D9D_OK;
}

/* All ranks get the same result. */
static d9d_status buffers_grow(d9d_comm *c, uint64_t bytes)
{
    const uint64_t had = c->symm.bytes;

    D9D_TRY(buffers_create(c, bytes));
    if (c->symm.handle == NULL && had > 0) /* the old buffers are freed by now: try again */
        D9D_TRY(buffers_create(c, bytes));
    if (c->symm.handle != NULL) {
        c->symm.n_refused = 0;
        return D9D_OK;
    }
    if (c->symm.n_refused++ == 0 && c->opts != NULL)
        d9d_log_warn(c->opts->log,
                     "%s: two staging buffers of %llu MiB cannot be allocated on all of its %d "
                     "rank%s: tokens are exchanged by send and receive, which is slower",
                     c->name, (unsigned long long)(bytes >> 20), c->size, D9D_PLURAL(c->size));
    return had > 0 ? buffers_create(c, had) : D9D_OK; /* back to the old size */
}

d9d_status d9d_symm_buffer_reserve(d9d_comm *c, uint64_t bytes)
{
    const uint64_t rounded = (bytes + SIZE_ALIGN - 1) / SIZE_ALIGN * SIZE_ALIGN;
    bool near = true;

    if (c == NULL || c->ops->symm_buffer == NULL || c->symm.disabled || bytes <= c->symm.bytes ||
        !retry_is_due(c))
        return D9D_OK;
    if (c->ops->host_local)
        D9D_TRY(d9di_comm_is_single_host(c, "symm_buffer", &near));
    if (!near)
        return D9D_OK;
    if (c->symm.arrived == NULL)
        c->symm.arrived = calloc((size_t)c->size, sizeof(*c->symm.arrived));
    if (c->symm.arrived == NULL)
        return D9D_FAIL(D9D_ENOMEM, "%s: no memory for staging buffers", c->name);
    D9D_TRY(buffers_grow(c, rounded));
    return c->symm.handle != NULL
               ? d9di_comm_all_true(c, "symm_buffer", p2p_is_forced(), &c->symm.forced)
               : D9D_OK;
}

d9d_status d9d_symm_buffer_agree(d9d_comm *c, d9d_comm *world)
{
    if (c == NULL)
        return D9D_OK;
    D9D_TRY(d9d_symm_buffer_reserve(c, 1));
    D9D_TRY(d9di_comm_all_true(world, "symm_buffer", c->symm.bytes > 0, &c->symm.agreed));
    if (c->symm.agreed)
        return D9D_OK;
    d9di_symm_buffer_close(c);
    c->symm.disabled = true;
    return D9D_OK;
}

bool d9d_symm_buffer_agreed(const d9d_comm *c)
{
    return c != NULL && c->symm.agreed;
}

bool d9d_symm_buffer_is_worthwhile(const d9d_comm *c, uint64_t bytes)
{
    return d9d_symm_buffer_bytes(c) > 0 && (c->symm.forced || bytes >= MIN_BYTES);
}

bool d9d_symm_buffer_is_forced(const d9d_comm *c)
{
    return d9d_symm_buffer_bytes(c) > 0 && c->symm.forced;
}

uint64_t d9d_symm_buffer_bytes(const d9d_comm *c)
{
    return c == NULL ? 0 : c->symm.bytes;
}

void *d9d_symm_buffer_local(const d9d_comm *c)
{
    return d9d_symm_buffer_bytes(c) == 0
               ? NULL
               : c->ops->symm_buffer->ptr(c->symm.handle, c->symm.current, c->rank);
}

/* Publish the buffer that was written, and make the other one current. */
static d9d_status swap_and_barrier(d9d_comm *c, const char *label, bool signaled,
                                   const d9di_peer_get *gets, int n)
{
    c->symm.current = 1 - c->symm.current;
    return d9di_comm_submit(c, &(d9di_comm_call){.coll = D9DI_COLL_PEER_BARRIER,
                                                 .t = D9D_U8,
                                                 .label = label,
                                                 .stream = d9d_comm_stream(c),
                                                 .peer_memory = c->symm.handle,
                                                 .signaled = signaled,
                                                 .gets = gets,
                                                 .n_gets = n});
}

d9d_status d9d_symm_buffer_barrier(d9d_comm *c, const char *label)
{
    return swap_and_barrier(c, label, false, NULL, 0);
}

d9d_status d9d_symm_buffer_get(d9d_comm *c, d9d_stream s, int from, uint64_t offset, void *dst,
                               uint64_t n)
{
    const char *theirs = c->ops->symm_buffer->ptr(c->symm.handle, 1 - c->symm.current, from);

    return n == 0 ? D9D_OK : c->ops->symm_buffer->copy(c, s, dst, theirs + offset, n);
}

d9d_status d9d_symm_buffer_put(d9d_comm *c, d9d_stream s, uint64_t offset, const void *src,
                               uint64_t n)
{
    char *local = d9d_symm_buffer_local(c);

    return n == 0 ? D9D_OK : c->ops->symm_buffer->copy(c, s, local + offset, src, n);
}

d9d_status d9d_symm_buffer_signal(d9d_comm *c, d9d_stream s, int to)
{
    return c->ops->symm_buffer->signal(c->symm.handle, s, to);
}

d9d_status d9d_symm_buffer_get_on_signal(d9d_comm *c, const char *label,
                                         const d9d_symm_buffer_slice *parts, int n)
{
    d9di_peer_get *gets = calloc((size_t)n + 1, sizeof(*gets));
    d9d_status st;

    if (gets == NULL)
        return D9D_FAIL(D9D_ENOMEM, "%s: %s: no memory for %d slices", c->name, label, n);
    for (int i = 0; i < n; i++) {
        const char *theirs =
            c->ops->symm_buffer->ptr(c->symm.handle, c->symm.current, parts[i].from);

        gets[i] = (d9di_peer_get){.from = parts[i].from,
                                  .dst = parts[i].dst,
                                  .src = theirs + parts[i].offset,
                                  .n = parts[i].n,
                                  .done_event = &c->symm.arrived[parts[i].from]};
    }
    st = swap_and_barrier(c, label, true, gets, n);
    free(gets);
    return st;
}

d9d_status d9d_symm_buffer_wait(d9d_comm *c, int from, d9d_stream s)
{
    return d9d_stream_wait_event(c, c->symm.arrived[from], s);
}
