/* bootstrap_connect.c - from the launcher's exchange to a tree of connections.  See
 * bootstrap_private.h. */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "comm/bootstrap_private.h"

enum {
    CONNECT_S = 60, /* where the caller has no limit */
    FEW = 64        /* ranks whose messages the launcher carries as fast */
};

/* D9D_BOOTSTRAP chooses; else it is the number of ranks. */
static bool is_wanted(int size)
{
    const char *by = getenv("D9D_BOOTSTRAP");

    return by != NULL && by[0] != '\0' ? strcmp(by, "pmix") != 0 : size > FEW;
}

/* The address of the rank above, which the launcher has; of rank 0 none. */
static d9d_status get_parent(const d9di_bootstrap_backend *b, d9di_bootstrap_address *out)
{
    const int parent = d9di_bootstrap_tree_parent(b->rank);
    d9d_bootstrap_blob blob;
    d9d_arena a = {0};
    d9d_status st = D9D_OK;

    memset(out, 0, sizeof(*out));
    if (parent < 0)
        return D9D_OK;
    D9D_TRY_OR(st, b->get(b->self, parent, &a, &blob), out);
    if (blob.n == sizeof(*out))
        memcpy(out, blob.data, sizeof(*out));
    else
        st = D9D_FAIL(D9D_ECOMM, "bootstrap: rank %d gave %zu bytes as its address, not %zu",
                      parent, blob.n, sizeof(*out));
out:
    d9d_arena_release(&a);
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

static d9d_status connect_all(const d9di_bootstrap_backend *b, int listener,
                              const d9di_bootstrap_address *self, double limit_s,
                              d9di_bootstrap_tree **out)
{
    d9di_bootstrap_address parent;
    d9d_status st;

    D9D_TRY(get_parent(b, &parent));
    D9D_TRY(d9di_bootstrap_tree_create(b->rank, b->size, out));
    st = d9di_bootstrap_tree_connect(*out, listener, self, &parent, limit_s);
    if (st == D9D_OK)
        st = try_tree(*out, limit_s);
    if (st != D9D_OK) {
        d9di_bootstrap_tree_free(*out);
        *out = NULL;
    }
    return st;
}

d9d_status d9di_bootstrap_connect(const d9di_bootstrap_backend *b, d9di_bootstrap_tree **out,
                                  d9d_status *unconnected)
{
    const double limit_s = b->timeout_s > 0 && b->timeout_s < CONNECT_S ? b->timeout_s : CONNECT_S;
    const bool listens = d9di_bootstrap_tree_child(b->rank, b->size, 0) >= 0;
    d9di_bootstrap_address self;
    int listener = -1;
    d9d_status st;

    *out = NULL;
    *unconnected = D9D_OK;
    if (!is_wanted(b->size))
        return D9D_OK;
    *unconnected = d9di_bootstrap_listen(b->node, listens, b->one_node, &self, &listener);
    if (*unconnected != D9D_OK)
        memset(&self, 0, sizeof(self));
    st = b->publish(b->self, b->timeout_s, &self, sizeof(self));
    if (st == D9D_OK && *unconnected == D9D_OK)
        *unconnected = connect_all(b, listener, &self, limit_s, out);
    if (listener >= 0)
        (void)close(listener);
    return st;
}
