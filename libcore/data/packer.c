/* packer.c - see packer.h. */
#include "data/packer.h"

#include <stdlib.h>

#include "data/jsonl.h"

enum { OPEN_PACKS = 16 };

struct pack {
    d9d_ids tokens;
    d9di_labels labels;
    D9D_VEC(uint32_t) segments;
    int64_t room; /* positions that still fit */
};

struct d9di_packer {
    d9di_sink *store;
    size_t split;
    int64_t size;
    struct pack packs[OPEN_PACKS]; /* the first `open` are in use, in order of opening */
    size_t open;
};

d9d_status d9di_packer_create(d9di_sink *store, size_t split, int64_t pack, d9di_packer **out)
{
    d9di_packer *p = calloc(1, sizeof(*p));

    if (!p)
        return D9D_FAIL(D9D_ENOMEM, "no memory to pack with");
    p->store = store;
    p->split = split;
    p->size = pack;
    *out = p;
    return D9D_OK;
}

/* Write a pack and put it behind those that stay open. */
static d9d_status close_pack(d9di_packer *p, size_t at)
{
    struct pack done = p->packs[at];
    const d9d_status st = d9di_sink_add(p->store, p->split, done.tokens.data,
                                        done.labels.len > 0 ? done.labels.data : NULL,
                                        done.tokens.len, done.segments.data, done.segments.len);

    for (; at + 1 < p->open; at++)
        p->packs[at] = p->packs[at + 1];
    done.tokens.len = done.labels.len = done.segments.len = 0;
    p->packs[at] = done;
    p->open--;
    return st;
}

/* The open pack with the least room in which `length` fits; p->open when there is none. */
static size_t best_fit(const d9di_packer *p, int64_t length)
{
    size_t best = p->open, i;

    for (i = 0; i < p->open; i++)
        if (p->packs[i].room >= length &&
            (best == p->open || p->packs[i].room < p->packs[best].room))
            best = i;
    return best;
}

d9d_status d9di_packer_add(d9di_packer *p, const uint32_t *tokens, const int32_t *labels, size_t n,
                           int64_t length)
{
    const uint32_t stored = (uint32_t)n;
    struct pack *pack;
    size_t at, i;

    if (p->size == 0)
        return d9di_sink_add(p->store, p->split, tokens, labels, n, &stored, 1);
    at = best_fit(p, length);
    if (at == p->open && p->open == OPEN_PACKS) {
        D9D_TRY(close_pack(p, best_fit(p, 0)));
        at = p->open;
    }
    pack = &p->packs[at];
    if (at == p->open) {
        pack->room = p->size;
        p->open++;
    }
    D9D_TRY(D9D_VEC_RESERVE(&pack->tokens, n));
    D9D_TRY(D9D_VEC_RESERVE(&pack->labels, n));
    for (i = 0; i < n; i++) {
        pack->tokens.data[pack->tokens.len++] = tokens[i];
        if (labels)
            pack->labels.data[pack->labels.len++] = labels[i];
    }
    D9D_TRY(D9D_VEC_PUSH(&pack->segments, stored));
    pack->room -= length;
    return D9D_OK;
}

d9d_status d9di_packer_flush(d9di_packer *p)
{
    while (p->open > 0)
        D9D_TRY(close_pack(p, 0));
    return D9D_OK;
}

void d9di_packer_free(d9di_packer *p)
{
    size_t i;

    if (!p)
        return;
    for (i = 0; i < OPEN_PACKS; i++) {
        D9D_VEC_RELEASE(&p->packs[i].tokens);
        D9D_VEC_RELEASE(&p->packs[i].labels);
        D9D_VEC_RELEASE(&p->packs[i].segments);
    }
    free(p);
}
