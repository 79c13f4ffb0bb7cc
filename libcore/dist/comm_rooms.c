/* comm_rooms.c - two rooms of memory a rank, from which the others take: d9d/dist/comm.h. */
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "dist/comm_private.h"

enum { ALIGN = 2 << 20 }; /* of a room's size: sizes that grow little by little are few */

bool d9di_may_share(bool unless_said)
{
    const char *wish = getenv("D9D_COMM_SHARE");

    return wish == NULL ? unless_said : strcmp(wish, "0") != 0;
}

void d9di_host_name(char out[D9DI_HOST_MAX])
{
    const int fd = open("/proc/sys/kernel/random/boot_id", O_RDONLY | O_CLOEXEC);
    const ssize_t n = fd < 0 ? 0 : read(fd, out, D9DI_HOST_MAX - 1);

    memset(out + (n < 0 ? 0 : n), 0, D9DI_HOST_MAX - (size_t)(n < 0 ? 0 : n));
    if (fd >= 0)
        (void)close(fd);
}

d9d_status d9di_comm_all(d9d_comm *c, const char *what, bool mine, bool *out)
{
    const char said = mine ? 1 : 0;
    d9d_comm_word *all;
    d9d_arena a = {0};
    d9d_status st;

    all = d9d_arena_alloc(&a, (size_t)c->size * sizeof(*all));
    if (all == NULL)
        return D9D_FAIL(D9D_ENOMEM, "%s: %s: out of memory", c->name, what);
    st = d9d_comm_gather_words(c, what, &said, 1, &a, all);
    *out = st == D9D_OK;
    for (int r = 0; st == D9D_OK && r < c->size; r++)
        *out = *out && all[r].n == 1 && *(const char *)all[r].data == 1;
    d9d_arena_release(&a);
    return st;
}

/* --- rooms ------------------------------------------------------------------------------- */

void d9di_rooms_close(d9d_comm *c)
{
    if (c->rooms.of != NULL)
        c->wire->rooms->close(c->rooms.of);
    c->rooms.of = NULL;
    c->rooms.bytes = 0;
}

d9d_status d9d_comm_rooms_want(d9d_comm *c, uint64_t bytes)
{
    const uint64_t whole = (bytes + ALIGN - 1) / ALIGN * ALIGN;

    if (c == NULL || c->wire->rooms == NULL || c->rooms.refused || bytes <= c->rooms.bytes)
        return D9D_OK;
    d9di_rooms_close(c);
    D9D_TRY(c->wire->rooms->make(c, whole, &c->rooms.of));
    c->rooms.refused = c->rooms.of == NULL;
    c->rooms.bytes = c->rooms.of != NULL ? whole : 0;
    return D9D_OK;
}

uint64_t d9d_comm_room_bytes(const d9d_comm *c)
{
    return c == NULL ? 0 : c->rooms.bytes;
}

void *d9d_comm_room(const d9d_comm *c)
{
    return d9d_comm_room_bytes(c) == 0 ? NULL : c->wire->rooms->mine(c->rooms.of, c->rooms.turn);
}

d9d_status d9d_comm_room_open(d9d_comm *c, const char *what)
{
    c->rooms.turn = 1 - c->rooms.turn;
    return c->wire->rooms->fence(c->rooms.of, d9d_comm_queue(c), what);
}

d9d_status d9d_comm_room_take(d9d_comm *c, d9d_stream s, int from, uint64_t offset, void *dst,
                              uint64_t n)
{
    if (n == 0)
        return D9D_OK;
    return c->wire->rooms->take(c->rooms.of, s, 1 - c->rooms.turn, from, offset, dst, n);
}
