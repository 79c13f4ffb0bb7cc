/* bootstrap_hello.c - see bootstrap_hello.h. */
#include "comm/bootstrap_hello.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { FEW = 64 }; /* ranks whose messages the launcher carries as fast */

static const struct {
    const char *value, *name;
} carriers[] = {
    [D9DI_BOOTSTRAP_BY_PMIX] = {"pmix", "PMIx"},
    [D9DI_BOOTSTRAP_BY_TCP] = {"tcp", "TCP"},
    [D9DI_BOOTSTRAP_BY_UNKNOWN] = {NULL, NULL},
};

static d9di_bootstrap_carrier carrier_of(const char *value, int size)
{
    if (value[0] == '\0')
        return size > FEW ? D9DI_BOOTSTRAP_BY_TCP : D9DI_BOOTSTRAP_BY_PMIX;
    for (int i = D9DI_BOOTSTRAP_BY_PMIX; i < D9DI_BOOTSTRAP_BY_UNKNOWN; i++)
        if (strcmp(value, carriers[i].value) == 0)
            return (d9di_bootstrap_carrier)i;
    return D9DI_BOOTSTRAP_BY_UNKNOWN;
}

bool d9d_bootstrap_connects(int size)
{
    d9di_bootstrap_hello h;

    d9di_bootstrap_hello_make("", size, &h);
    return h.carrier == D9DI_BOOTSTRAP_BY_TCP;
}

void d9di_bootstrap_hello_make(const char *node, int size, d9di_bootstrap_hello *out)
{
    const char *value = getenv("D9D_BOOTSTRAP");

    memset(out, 0, sizeof(*out));
    value = value != NULL ? value : "";
    out->carrier = carrier_of(value, size);
    (void)snprintf(out->value, sizeof(out->value), "%s", value);
    (void)snprintf(out->node, sizeof(out->node), "%s", node);
}

d9d_status d9di_bootstrap_hello_read(const d9d_bootstrap_blob *blob, int rank, size_t rest,
                                     d9di_bootstrap_hello *out)
{
    if (blob->n < sizeof(*out))
        return D9D_FAIL(D9D_ECOMM,
                        "bootstrap: rank %d sent %zu bytes as its first message, not %zu: it may "
                        "run another version",
                        rank, blob->n, sizeof(*out) + rest);
    memcpy(out, blob->data, sizeof(*out));
    out->value[sizeof(out->value) - 1] = out->node[sizeof(out->node) - 1] = '\0';
    if (out->carrier < D9DI_BOOTSTRAP_BY_PMIX || out->carrier > D9DI_BOOTSTRAP_BY_UNKNOWN)
        return D9D_FAIL(D9D_ECOMM,
                        "bootstrap: rank %d sent carrier %u in its first message, not 1 to %d: it "
                        "may run another version",
                        rank, out->carrier, D9DI_BOOTSTRAP_BY_UNKNOWN);
    return D9D_OK;
}

static d9d_status fail_unknown(const d9di_bootstrap_hello *h, int rank)
{
    return D9D_FAIL(D9D_ECONFIG,
                    "D9D_BOOTSTRAP is \"%s\" on rank %d (%s): it is \"pmix\" or \"tcp\", and the "
                    "same on all ranks",
                    h->value, rank, h->node);
}

d9d_status d9di_bootstrap_hello_compare(const d9di_bootstrap_hello *a, int rank_a,
                                        const d9di_bootstrap_hello *b, int rank_b)
{
    const char *value_a = a->value[0] != '\0' ? a->value : "not set";
    const char *value_b = b->value[0] != '\0' ? b->value : "not set";

    if (a->carrier == D9DI_BOOTSTRAP_BY_UNKNOWN)
        return fail_unknown(a, rank_a);
    if (b->carrier == D9DI_BOOTSTRAP_BY_UNKNOWN)
        return fail_unknown(b, rank_b);
    if (a->carrier == b->carrier)
        return D9D_OK;
    return D9D_FAIL(D9D_ECONFIG,
                    "rank %d (%s) exchanges messages by %s and rank %d (%s) by %s: D9D_BOOTSTRAP "
                    "is %s on the first and %s on the second; set it alike on all ranks",
                    rank_a, a->node, carriers[a->carrier].name, rank_b, b->node,
                    carriers[b->carrier].name, value_a, value_b);
}
