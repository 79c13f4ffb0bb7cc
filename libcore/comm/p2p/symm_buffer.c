/* symm_buffer.c - two rooms of memory a rank, from which the others take: d9d/comm/comm.h. */
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "comm/comm_private.h"
#include "d9d/base/hash.h"
#include "d9d/comm/mesh.h"

enum { LEAST = 256 << 10 }; /* bytes to a rank: with fewer a collective call is as fast */
enum { AGAIN = 64 };        /* askings after a refusal, before one is tried again */
enum { ALIGN = 2 << 20 };   /* of a room's size: sizes that grow little by little are few */

bool d9di_may_share(bool unless_said)
{
    const char *wish = getenv("D9D_COMM_SHARE");

    return wish == NULL ? unless_said : strcmp(wish, "0") != 0;
}

static bool shares_always(void)
{
    const char *wish = getenv("D9D_COMM_SHARE");

    return wish != NULL && strcmp(wish, "1") == 0;
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

/* What a rank says of where it lives: zeros where nobody may read its memory. */
static d9d_hash host_of(const d9d_comm *c)
{
    char host[D9DI_HOST_MAX];

    d9di_host_name(host);
    return host[0] != '\0' && d9di_may_share(c->wire->shares) ? d9d_hash_bytes(host, sizeof(host))
                                                              : (d9d_hash){0};
}

d9d_status d9di_comm_near(d9d_comm *c, const char *what, bool *out)
{
    const d9d_hash mine = host_of(c), nowhere = {0};
    d9d_comm_word *all;
    d9d_arena a = {0};
    d9d_status st = D9D_OK;

    *out = c->hosts == D9DI_HOSTS_ONE;
    if (c->hosts != D9DI_HOSTS_UNKNOWN)
        return D9D_OK;
    all = d9d_arena_alloc(&a, (size_t)c->size * sizeof(*all));
    if (all == NULL)
        return D9D_FAIL(D9D_ENOMEM, "%s: %s: out of memory", c->name, what);
    st = d9d_comm_gather_words(c, what, &mine, sizeof(mine), &a, all);
    *out = st == D9D_OK;
    for (int r = 0; st == D9D_OK && r < c->size; r++)
        *out = *out && all[r].n == sizeof(mine) &&
               memcmp(all[r].data, all[0].data, sizeof(mine)) == 0 &&
               memcmp(all[r].data, &nowhere, sizeof(mine)) != 0;
    if (st == D9D_OK)
        c->hosts = *out ? D9DI_HOSTS_ONE : D9DI_HOSTS_MORE;
    d9d_arena_release(&a);
    return st;
}

/* --- rooms ------------------------------------------------------------------------------- */

void d9di_rooms_close(d9d_comm *c)
{
    for (int r = 0; c->rooms.there != NULL && r < c->size; r++)
        d9d_comm_point_free(c, c->rooms.there[r]);
    free(c->rooms.there);
    c->rooms.there = NULL;
    if (c->rooms.of != NULL)
        c->wire->rooms->close(c->rooms.of);
    c->rooms.of = NULL;
    c->rooms.bytes = 0;
}

/* Of the next asking that is tried: the first, and then twice as many as the time before. */
static bool is_due(d9d_comm *c)
{
    if (c->rooms.refused == 0)
        return true;
    c->rooms.asked++;
    if (c->rooms.asked < AGAIN << (c->rooms.refused < 16 ? c->rooms.refused - 1 : 15))
        return false;
    c->rooms.asked = 0;
    return true;
}

/* Larger ones before those that there are go, where there is memory for both. */
static d9d_status rooms_make(d9d_comm *c, uint64_t bytes)
{
    void *more = NULL;

    D9D_TRY(c->wire->rooms->make(c, bytes, &more));
    if (c->rooms.of != NULL)
        c->wire->rooms->close(c->rooms.of);
    c->rooms.of = more;
    c->rooms.bytes = more != NULL ? bytes : 0;
    return D9D_OK;
}

/* All ranks come to the same. */
static d9d_status rooms_grow(d9d_comm *c, uint64_t bytes)
{
    const uint64_t had = c->rooms.bytes;

    D9D_TRY(rooms_make(c, bytes));
    if (c->rooms.of == NULL && had > 0) /* without the others there is more memory */
        D9D_TRY(rooms_make(c, bytes));
    if (c->rooms.of != NULL) {
        c->rooms.refused = 0;
        return D9D_OK;
    }
    if (c->rooms.refused++ == 0 && c->how != NULL)
        d9d_log_warn(c->how->log,
                     "%s: two times %llu MiB that its %d ranks could read from cannot be had on "
                     "all of them: rows go as messages, which is slower, until they can",
                     c->name, (unsigned long long)(bytes >> 20), c->size);
    return had > 0 ? rooms_make(c, had) : D9D_OK; /* what there was serves what is as small */
}

d9d_status d9d_comm_rooms_want(d9d_comm *c, uint64_t bytes)
{
    const uint64_t whole = (bytes + ALIGN - 1) / ALIGN * ALIGN;
    bool near = true;

    if (c == NULL || c->wire->rooms == NULL || c->rooms.never || bytes <= c->rooms.bytes ||
        !is_due(c))
        return D9D_OK;
    if (c->wire->hosts)
        D9D_TRY(d9di_comm_near(c, "rooms", &near));
    if (!near)
        return D9D_OK;
    if (c->rooms.there == NULL)
        c->rooms.there = calloc((size_t)c->size, sizeof(*c->rooms.there));
    if (c->rooms.there == NULL)
        return D9D_FAIL(D9D_ENOMEM, "%s: no memory for rooms", c->name);
    D9D_TRY(rooms_grow(c, whole));
    return c->rooms.of != NULL ? d9di_comm_all(c, "rooms", shares_always(), &c->rooms.always)
                               : D9D_OK;
}

d9d_status d9d_comm_rooms_agree(d9d_comm *c, d9d_comm *world)
{
    if (c == NULL)
        return D9D_OK;
    D9D_TRY(d9d_comm_rooms_want(c, 1));
    D9D_TRY(d9di_comm_all(world, "rooms", c->rooms.bytes > 0, &c->rooms.agreed));
    if (c->rooms.agreed)
        return D9D_OK;
    d9di_rooms_close(c);
    c->rooms.never = true;
    return D9D_OK;
}

bool d9d_comm_rooms_agreed(const d9d_comm *c)
{
    return c != NULL && c->rooms.agreed;
}

bool d9d_comm_rooms_suit(const d9d_comm *c, uint64_t bytes)
{
    return d9d_comm_room_bytes(c) > 0 && (c->rooms.always || bytes >= LEAST);
}

bool d9d_comm_rooms_always(const d9d_comm *c)
{
    return d9d_comm_room_bytes(c) > 0 && c->rooms.always;
}

uint64_t d9d_comm_room_bytes(const d9d_comm *c)
{
    return c == NULL ? 0 : c->rooms.bytes;
}

void *d9d_comm_room(const d9d_comm *c)
{
    return d9d_comm_room_bytes(c) == 0 ? NULL
                                       : c->wire->rooms->at(c->rooms.of, c->rooms.turn, c->rank);
}

/* The room that is written now is taken from, and the other is the next. */
static d9d_status turn(d9d_comm *c, const char *what, bool told, const d9di_take *takes, int n)
{
    c->rooms.turn = 1 - c->rooms.turn;
    return d9di_comm_go(c, &(d9di_call){.verb = D9DI_FENCE,
                                        .t = D9D_U8,
                                        .what = what,
                                        .stream = d9d_comm_queue(c),
                                        .fenced = c->rooms.of,
                                        .told = told,
                                        .takes = takes,
                                        .n_takes = n});
}

d9d_status d9d_comm_room_open(d9d_comm *c, const char *what)
{
    return turn(c, what, false, NULL, 0);
}

d9d_status d9d_comm_room_take(d9d_comm *c, d9d_stream s, int from, uint64_t offset, void *dst,
                              uint64_t n)
{
    const char *theirs = c->wire->rooms->at(c->rooms.of, 1 - c->rooms.turn, from);

    return n == 0 ? D9D_OK : c->wire->rooms->copy(c, s, dst, theirs + offset, n);
}

d9d_status d9d_comm_room_put(d9d_comm *c, d9d_stream s, uint64_t offset, const void *src,
                             uint64_t n)
{
    char *mine = d9d_comm_room(c);

    return n == 0 ? D9D_OK : c->wire->rooms->copy(c, s, mine + offset, src, n);
}

d9d_status d9d_comm_room_tell(d9d_comm *c, d9d_stream s, int to)
{
    return c->wire->rooms->tell(c->rooms.of, s, to);
}

d9d_status d9d_comm_room_take_each(d9d_comm *c, const char *what, const d9d_room_part *parts, int n)
{
    d9di_take *takes = calloc((size_t)n + 1, sizeof(*takes));
    d9d_status st;

    if (takes == NULL)
        return D9D_FAIL(D9D_ENOMEM, "%s: %s: no memory for %d parts", c->name, what, n);
    for (int i = 0; i < n; i++) {
        const char *theirs = c->wire->rooms->at(c->rooms.of, c->rooms.turn, parts[i].from);

        takes[i] = (d9di_take){.from = parts[i].from,
                               .dst = parts[i].dst,
                               .src = theirs + parts[i].offset,
                               .n = parts[i].n,
                               .there = &c->rooms.there[parts[i].from]};
    }
    st = turn(c, what, true, takes, n);
    free(takes);
    return st;
}

d9d_status d9d_comm_room_join(d9d_comm *c, int from, d9d_stream s)
{
    return d9d_comm_join_at(c, c->rooms.there[from], s);
}
