/* gather.c - see loop/gather.h.  A parameter at a time; every rank gives what it keeps. */
#include "loop/gather.h"

#include <stdlib.h>
#include <string.h>

#include "d9d/ckpt/slices.h"

/* What a rank gives: which part it is, and behind it the elements. */
typedef struct part {
    d9d_box box;
} part;

static d9d_box box_of(const d9d_param *p)
{
    d9d_box b = {.ndim = p->box.ndim};

    memcpy(b.start, p->start, sizeof(b.start));
    memcpy(b.size, p->box.dim, sizeof(b.size));
    return b;
}

/* From a part's elements into the whole. */
typedef struct copy {
    char *to;
    const char *from;
    size_t size; /* of an element */
} copy;

static d9d_status copy_run(void *arg, int64_t src, int64_t dst, int64_t n)
{
    const copy *c = arg;

    memcpy(c->to + (size_t)dst * c->size, c->from + (size_t)src * c->size, (size_t)n * c->size);
    return D9D_OK;
}

static d9d_status put_part(d9d_param *to, const d9d_comm_word *w)
{
    copy c = {d9d_tensor_data(&to->own), (const char *)w->data + sizeof(part),
              d9d_dtype_size(to->dtype)};
    const d9d_box whole = box_of(to);
    part head;

    if (w->n == 0)
        return D9D_OK;
    memcpy(&head, w->data, sizeof(head));
    return d9d_box_runs(&head.box, &head.box, &whole, copy_run, &c);
}

/* This rank's part, if no other gives the same. */
static d9d_status take_part(const d9d_param *p, d9d_arena *a, void **data, size_t *n)
{
    const part head = {box_of(p)};
    const uint64_t bytes = d9d_tensor_bytes(&p->own);

    *n = 0;
    if (!p->counts || bytes == 0)
        return D9D_OK;
    *data = d9d_arena_alloc(a, sizeof(head) + bytes);
    if (*data == NULL)
        return D9D_FAIL(D9D_ENOMEM, "%s: no memory to pass it on", p->name);
    memcpy(*data, &head, sizeof(head));
    *n = sizeof(head) + bytes;
    return d9d_device_download(d9d_tensor_device(&p->own), (char *)*data + sizeof(head),
                               d9d_tensor_data(&p->own), bytes);
}

/* `to` is NULL but on rank 0. */
static d9d_status gather_one(d9di_engine *e, d9d_param *p, d9d_param *to)
{
    const int ranks = d9d_comm_size(e->world);
    d9d_arena a = {0};
    d9d_comm_word *words = d9d_arena_alloc(&a, (size_t)ranks * sizeof(*words));
    void *mine = NULL;
    size_t n;
    d9d_status st = D9D_OK;

    if (words == NULL)
        st = D9D_FAIL(D9D_ENOMEM, "%s: words of %d ranks", p->name, ranks);
    if (st == D9D_OK)
        st = take_part(p, &a, &mine, &n);
    if (st == D9D_OK)
        st = d9d_comm_gather_words(e->world, p->name, mine, n, &a, words);
    for (int r = 0; st == D9D_OK && to != NULL && r < ranks; r++)
        st = put_part(to, &words[r]);
    d9d_arena_release(&a);
    return st;
}

/* An empty parameter of the whole shape, in host memory. */
static d9d_status copy_make(d9di_whole *w, const d9d_param *p, d9d_param **out)
{
    d9d_param *to = &w->copies[w->n];

    *to = (d9d_param){.name = p->name,
                      .id = p->id,
                      .whole = p->whole,
                      .box = p->whole,
                      .work = p->whole,
                      .dtype = p->dtype,
                      .counts = true};
    D9D_TRY(d9d_tensor_alloc(w->host, p->dtype, p->whole, &to->own));
    w->params.p[w->n++] = to;
    w->params.n = w->n;
    *out = to;
    return D9D_OK;
}

static d9d_status gather_all(d9di_engine *e, d9di_whole *w)
{
    const bool keeps = d9d_comm_rank(e->world) == 0;

    if (keeps) {
        D9D_TRY(d9d_device_open("cpu", &w->host));
        w->copies = d9d_arena_alloc(&w->arena, e->params.n * sizeof(*w->copies));
        w->params.p = d9d_arena_alloc(&w->arena, e->params.n * sizeof(d9d_param *));
        if (w->copies == NULL || w->params.p == NULL)
            return D9D_FAIL(D9D_ENOMEM, "no memory for %zu parameters", e->params.n);
    }
    for (size_t i = 0; i < e->params.n; i++) {
        d9d_param *to = NULL;

        if (keeps)
            D9D_TRY(copy_make(w, e->params.p[i], &to));
        D9D_TRY(gather_one(e, e->params.p[i], to));
    }
    return D9D_OK;
}

d9d_status d9di_whole_gather(d9di_engine *e, d9di_whole *out)
{
    d9d_status st;

    *out = (d9di_whole){.params = e->params};
    if (e->world == NULL)
        return D9D_OK;
    st = gather_all(e, out);
    if (st != D9D_OK)
        d9di_whole_release(out);
    return st;
}

void d9di_whole_release(d9di_whole *w)
{
    for (size_t i = 0; i < w->n; i++)
        d9d_tensor_release(&w->copies[i].own);
    d9d_device_close(w->host);
    d9d_arena_release(&w->arena);
    *w = (d9di_whole){0};
}
