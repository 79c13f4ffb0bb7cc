/* hosts_driver.c - how ranks agree on symmetric staging buffers: `hosts_driver ACT`.
 *
 *     bytes     requests staging buffers of growing size; prints the bytes that the ranks of the
 *               world exchanged for them, how often buffers were created, and their size
 *     refuse    buffers beyond a size fail on all ranks, for a while: prints what remains, the
 *               messages, and when the ranks try again
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "comm/comm_private.h"
#include "d9d/comm/mesh.h"
#include "d9d/device/device.h"

enum { MIB = 1 << 20 };

/* The backend of the world's collectives, and counters. */
static struct {
    const d9di_comm_backend_ops *wire;
    long long exchanged; /* bytes exchanged */
    uint64_t max_bytes;  /* limit of a buffer; 0: none */
    int made, open, both, lines;
} seen;

static d9d_status count_words(d9d_comm *c, const d9di_comm_call *k)
{
    for (int r = 0; r < c->size; r++)
        seen.exchanged += k->recv[r];
    return seen.wire->run[D9DI_COLL_ALLGATHER_BYTES](c, k);
}

static d9d_status count_make(d9d_comm *c, uint64_t bytes, void **out)
{
    *out = NULL;
    seen.made++;
    if (seen.max_bytes > 0 && bytes > seen.max_bytes)
        return D9D_OK;
    D9D_TRY(seen.wire->symm_buffer->create(c, bytes, out));
    seen.open += *out != NULL;
    seen.both += seen.open == 2;
    return D9D_OK;
}

static void count_close(void *buffer)
{
    seen.open--;
    seen.wire->symm_buffer->close(buffer);
}

static void hear(void *arg, d9d_log_level level, const char *text)
{
    (void)arg;
    if (level == D9D_LOG_WARN && strstr(text, "exchanged by send and receive") != NULL)
        seen.lines++;
}

static void tell_bytes(const d9d_comm *c)
{
    printf("rank %d: %lld bytes, made %d, MiB %lld\n", c->rank, seen.exchanged, seen.made,
           (long long)(d9d_symm_buffer_bytes(c) / MIB));
}

static d9d_status act_bytes(d9d_comm *c)
{
    for (uint64_t n = 1; n <= 4; n++)
        D9D_TRY(d9d_symm_buffer_reserve(c, n * 2 * MIB));
    tell_bytes(c);
    return D9D_OK;
}

static d9d_status act_refuse(d9d_comm *c)
{
    int asked = 0, made;

    D9D_TRY(d9d_symm_buffer_reserve(c, 2 * MIB));
    D9D_TRY(d9d_symm_buffer_reserve(c, 4 * MIB)); /* in addition to the existing buffers */
    printf("rank %d: both %d, MiB %lld\n", c->rank, seen.both,
           (long long)(d9d_symm_buffer_bytes(c) / MIB));
    seen.max_bytes = 4 * MIB;
    D9D_TRY(d9d_symm_buffer_reserve(c, 8 * MIB));
    printf("rank %d: refused, MiB %lld, lines %d\n", c->rank,
           (long long)(d9d_symm_buffer_bytes(c) / MIB), seen.lines);
    for (made = seen.made; seen.made == made; asked++)
        D9D_TRY(d9d_symm_buffer_reserve(c, 8 * MIB));
    printf("rank %d: tried again after %d, MiB %lld, lines %d\n", c->rank, asked,
           (long long)(d9d_symm_buffer_bytes(c) / MIB), seen.lines);
    seen.max_bytes = 0;
    for (asked = 0; d9d_symm_buffer_bytes(c) < 8 * MIB; asked++)
        D9D_TRY(d9d_symm_buffer_reserve(c, 8 * MIB));
    printf("rank %d: had after %d, MiB %lld, open %d\n", c->rank, asked,
           (long long)(d9d_symm_buffer_bytes(c) / MIB), seen.open);
    return D9D_OK;
}

static d9d_status act(d9d_comm *c, const char *what)
{
    const d9di_comm_backend_ops *own = c->ops;
    d9di_symm_buffer_ops buffer = *own->symm_buffer;
    d9di_comm_backend_ops wire = *own;
    d9d_status st;

    buffer.create = count_make;
    buffer.close = count_close;
    wire.run[D9DI_COLL_ALLGATHER_BYTES] = count_words;
    wire.symm_buffer = &buffer;
    seen.wire = own;
    c->ops = &wire;
    st = (strcmp(what, "refuse") == 0 ? act_refuse : act_bytes)(c);
    c->ops = own;
    return st;
}

int main(int argc, char **argv)
{
    const d9d_log log = {.line = hear, .level = D9D_LOG_WARN};
    const d9d_mesh_opts opts = {.timeout_s = 100, .log = &log};
    d9d_parallel_degrees degrees = {1, 1, 1, 1, 1, 1, 1, 1, D9D_CP_ALL_GATHER};
    d9d_bootstrap *bootstrap = NULL;
    d9d_mesh *mesh = NULL;
    d9d_device *dev = NULL;
    d9d_comm *world;
    d9d_status st = argc == 2 ? d9d_bootstrap_open(&bootstrap) : D9D_FAIL(D9D_EINVAL, "ACT");

    if (st == D9D_OK) {
        degrees.data_parallel_shard = d9d_bootstrap_size(bootstrap);
        st = d9d_device_open("cpu", &dev);
    }
    if (st == D9D_OK)
        st = d9d_mesh_open(bootstrap, &degrees, "cpu", dev->stream, &opts, &mesh);
    if (st == D9D_OK)
        st = d9d_mesh_group(mesh, D9D_AXES_WORLD, &world);
    if (st == D9D_OK)
        st = act(world, argv[1]);
    if (st != D9D_OK)
        printf("failed: %s\n", d9d_err_message());
    d9d_mesh_close(mesh);
    d9d_device_close(dev);
    d9d_bootstrap_close(bootstrap);
    return st == D9D_OK ? 0 : 1;
}
