/* fuzz_checkpoint.c - any bytes as the manifest of a training checkpoint, with a valid hash. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "checkpointer/checkpointer_private.h"
#include "sealed.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* What was accepted is what a reader counts on. */
static void check_tensor(const d9di_checkpointer_manifest *s, const d9d_sliced_tensor *t)
{
    int64_t left = d9d_shape_numel(&t->whole);

    if (left < 0 || d9d_slices_find(&s->slices, t->name) != t)
        abort();
    for (size_t i = 0; i < t->n_slices; i++) {
        const d9d_slice *slice = &t->slices[i];

        if (!d9d_box_fits(&slice->box, &t->whole) ||
            d9d_manifest_find(s->manifest, slice->file) == NULL)
            abort();
        left -= d9d_box_volume(&slice->box);
        if (left < 0) /* then two of them overlap */
            abort();
    }
}

static void check_saved(const d9di_checkpointer_manifest *s)
{
    if (s->state.step < 0 || s->state.samples < 0 || s->state.parent < -1 ||
        s->state.seed > INT64_MAX || !json_is_object(s->counts))
        abort();
    for (size_t i = 0; s->rank_states != NULL && i < json_array_size(s->rank_states); i++)
        if (d9d_manifest_find(s->manifest, json_string_value(json_array_get(s->rank_states, i))) ==
            NULL)
            abort();
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
