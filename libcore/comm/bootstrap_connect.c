/* bootstrap_connect.c - the ranks meet: the first exchange, which the launcher carries, and
 * the tree of connections.  See bootstrap_private.h. */
#include <stddef.h>
#include <string.h>
#include <unistd.h>

#include "comm/bootstrap_hello.h"

enum { CONNECT_S = 60 }; /* where the caller has no limit */

/* The hello of a rank, and its address unless NULL, which the launcher has. */
static d9d_status get_first(const d9di_bootstrap_backend *b, int rank, d9di_bootstrap_hello *hello,
                            d9di_bootstrap_address *address)
{
    d9d_bootstrap_blob blob;
    d9d_arena a = {0};
    d9d_status st;

    D9D_TRY_OR(st, b->get(b->self, rank, &a, &blob), out);
    D9D_TRY_OR(
        st, d9di_bootstrap_hello_read(&blob, rank, address != NULL ? sizeof(*address) : 0, hello),
        out);
    if (address == NULL || hello->carrier != D9DI_BOOTSTRAP_BY_TCP)
        goto out;
    if (blob.n == sizeof(d9di_bootstrap_invitation))
        memcpy(address, (const char *)blob.data + offsetof(d9di_bootstrap_invitation, address),
               sizeof(*address));
    else
        st = D9D_FAIL(D9D_ECOMM, "bootstrap: rank %d gave %zu bytes as its address, not %zu", rank,
                      blob.n, sizeof(d9di_bootstrap_invitation));
out:
    d9d_arena_release(&a);
    return st;
}

/* PMIx carries the messages of this rank: of those of all?  The first rank that reads this says
 * it. */
static d9d_status meet_by_launcher(const d9di_bootstrap_backend *b,
                                   const d9di_bootstrap_hello *self, bool *reported)
{
    d9d_status st = D9D_OK;
    d9di_bootstrap_hello first, h;

    D9D_TRY(b->publish(b->self, b->timeout_s, self, sizeof(*self)));
    for (int r = 0, reader = b->rank; st == D9D_OK && r < b->size; r++) {
        D9D_TRY(get_first(b, r, &h, NULL));
        first = r == 0 ? h : first;
        reader = h.carrier != D9DI_BOOTSTRAP_BY_TCP && r < reader ? r : reader;
        st = d9di_bootstrap_hello_compare(&first, 0, &h, r);
        *reported = reader != b->rank;
    }
    *reported = *reported && st != D9D_OK;
    return st;
}

/* Every rank of the tree answers, or no rank may use it. */
static d9d_status try_tree(d9di_bootstrap_tree *t, double limit_s)
{
    d9d_bootstrap_blob none;
    d9d_arena a = {0};
    int rank;
    const d9d_status st = d9di_bootstrap_tree_first(t, limit_s, NULL, 0, &a, &rank, &none);

    d9d_arena_release(&a);
    return st;
}

/* The address of the rank above, of rank 0 none.  A parent that does not connect is compared with
 * this rank, and reports it. */
static d9d_status get_parent(const d9di_bootstrap_backend *b, const d9di_bootstrap_hello *self,
                             d9di_bootstrap_address *out, bool *reported)
{
    const int parent = d9di_bootstrap_tree_parent(b->rank);
    d9di_bootstrap_hello hello;
    d9d_status st;

    memset(out, 0, sizeof(*out));
    if (parent < 0)
        return D9D_OK;
    D9D_TRY(get_first(b, parent, &hello, out));
    st = d9di_bootstrap_hello_compare(&hello, parent, self, b->rank);
    *reported = st != D9D_OK;
    return st;
}

static d9d_status connect_all(const d9di_bootstrap_backend *b, int listener,
                              const d9di_bootstrap_address *self,
                              const d9di_bootstrap_address *parent, double limit_s,
                              d9di_bootstrap_tree **out)
{
    d9d_status st;

    D9D_TRY(d9di_bootstrap_tree_create(b->rank, b->size, out));
    st = d9di_bootstrap_tree_connect(*out, listener, self, parent, limit_s);
    if (st == D9D_OK)
        st = try_tree(*out, limit_s);
    if (st != D9D_OK) {
        d9di_bootstrap_tree_free(*out);
        *out = NULL;
    }
    return st;
}

static d9d_status meet_by_tcp(const d9di_bootstrap_backend *b, const d9di_bootstrap_hello *hello,
                              d9di_bootstrap_meeting *out)
{
    const double limit_s = b->timeout_s > 0 && b->timeout_s < CONNECT_S ? b->timeout_s : CONNECT_S;
    const bool listens = d9di_bootstrap_tree_child(b->rank, b->size, 0) >= 0;
    d9di_bootstrap_address parent;
    d9di_bootstrap_invitation self = {.hello = *hello};
    d9d_status st;

    out->unconnected =
        d9di_bootstrap_listen(b->node, listens, b->one_node, &self.address, &out->listener);
    if (out->unconnected != D9D_OK)
        memset(&self.address, 0, sizeof(self.address));
    st = b->publish(b->self, b->timeout_s, &self, sizeof(self));
    if (st == D9D_OK)
        st = get_parent(b, hello, &parent, &out->reported);
    if (st == D9D_OK && out->unconnected == D9D_OK)
        out->unconnected =
            connect_all(b, out->listener, &self.address, &parent, limit_s, &out->tree);
    if (st == D9D_OK && out->listener >= 0) {
        (void)close(out->listener);
        out->listener = -1;
    }
    return st;
}

d9d_status d9di_bootstrap_meet(const d9di_bootstrap_backend *b, d9di_bootstrap_meeting *out)
{
    d9di_bootstrap_hello hello;

    *out = (d9di_bootstrap_meeting){.unconnected = D9D_OK, .listener = -1};
    d9di_bootstrap_hello_make(b->node, b->size, &hello);
    return hello.carrier == D9DI_BOOTSTRAP_BY_TCP ? meet_by_tcp(b, &hello, out)
                                                  : meet_by_launcher(b, &hello, &out->reported);
}
