/* fuzz_checkpoint.c - any bytes as the manifest of a training checkpoint, with a valid hash. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "checkpointer/checkpointer_private.h"
#include "sealed.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

typedef struct tensor_check {
    const d9di_checkpointer_manifest *s;
    const d9d_sliced_tensor *t;
    int64_t *left;
} tensor_check;

static d9d_status count_slice(void *arg, const d9d_slice *slice)
{
    (void)slice;
    ++*(int64_t *)arg;
    return D9D_OK;
}

static d9d_status check_slice(void *arg, const d9d_slice *slice)
{
    const tensor_check *c = arg;
    int64_t found = 0;

    if (!d9d_box_fits(&slice->box, &c->t->whole) || slice->rank < 0 ||
        (slice->file == NULL && slice->rank >= c->s->slices.ranks) ||
        (slice->file != NULL && d9d_manifest_find(c->s->manifest, slice->file) == NULL))
        abort();
    *c->left -= d9d_box_volume(&slice->box);
    if (*c->left < 0) /* then two of them overlap */
        abort();
    if (d9d_sliced_tensor_visit(c->t, &slice->box, count_slice, &found) != D9D_OK ||
        found != (d9d_box_volume(&slice->box) > 0))
        abort();
    return D9D_OK;
}

/* What was accepted is what a reader counts on. */
static void check_tensor(const d9di_checkpointer_manifest *s, const d9d_sliced_tensor *t)
{
    int64_t left = d9d_shape_numel(&t->whole);

    if (left < 0 || d9d_slices_find(&s->slices, t->name) != t)
        abort();
    if (d9d_sliced_tensor_visit(t, NULL, check_slice, &(tensor_check){s, t, &left}) != D9D_OK)
        abort();
}

static void check_saved(const d9di_checkpointer_manifest *s)
{
    if (s->state.step < 0 || s->state.samples < 0 || s->state.parent < -1 ||
        s->state.seed > INT64_MAX || !json_is_object(s->counts))
        abort();
    for (size_t i = 0; i < s->n_rank_states && i < 100; i++) {
        char name[D9D_SLICES_FILE];

        if (d9di_checkpointer_manifest_rank_state(s, i, name) == NULL ||
            (s->rank_states != NULL &&
             d9d_manifest_find(s->manifest, d9di_checkpointer_manifest_rank_state(s, i, name)) ==
                 NULL))
            abort();
    }
    for (size_t i = 0; i < s->slices.n; i++)
        check_tensor(s, &s->slices.tensors[i]);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    d9d_buf text = sealed(data, size);
    d9d_manifest *m;
    d9di_checkpointer_manifest s;

    if (d9d_manifest_parse("dir", text.data, text.len, &m) == D9D_OK &&
        d9di_checkpointer_manifest_take("dir", m, &s) == D9D_OK) {
        check_saved(&s);
        d9di_checkpointer_manifest_release(&s);
    }
    d9d_buf_release(&text);
    return 0;
}
