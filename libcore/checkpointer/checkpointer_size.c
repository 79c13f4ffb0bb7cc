/* checkpointer_size.c - bounds the size of a checkpoint's manifest before anything is written.  See
 * d9d/checkpointer/checkpointer.h. */
#include <string.h>

#include "checkpointer/checkpointer_private.h"

enum {
    FIXED_BYTES = 4096,    /* the state's numbers and hashes, and member names */
    FILE_BYTES = 128,      /* an entry in the list of files, without name and hashes */
    HASH_BYTES = 36,       /* "<32 hex digits>", and a comma */
    COUNT_BYTES = 32,      /* a number after a name */
    HEADER_BYTES = 256,    /* per tensor in a file's header, without its name */
    SEPARATOR_BYTES = 4,   /* between members of a list */
    RANK_SUFFIX_BYTES = 20 /* of "-r00000.safetensors" */
};

static uint64_t decimal_digits(int64_t v)
{
    uint64_t n = 1;

    for (; v >= 10; v /= 10)
        n++;
    return n;
}

static d9d_status json_length(const json_t *v, d9d_buf *b, uint64_t *out)
{
    b->len = 0;
    D9D_TRY(d9d_json_put(b, v, -1));
    *out = b->len;
    return D9D_OK;
}

/* The entry as the writer makes it for the first box; all others have the same length, except for
 * `start`. */
static d9d_status tensor_bytes(const d9d_checkpointer_tensor *t, d9d_buf *b, uint64_t *sum)
{
    const d9d_checkpointer_set one = {.items = (d9d_checkpointer_tensor *)(uintptr_t)t, .n = 1};
    const uint64_t boxes = t->n_boxes > 0 ? (uint64_t)t->n_boxes : 1;
    uint64_t entry = 0, slice = 0;
    json_t *root = NULL, *tensor;
    d9d_status st;

    D9D_TRY(d9di_checkpointer_manifest_describe_rank(&one, 0, &root));
    tensor = json_array_get(json_object_get(root, "tensors"), 0);
    st = json_length(tensor, b, &entry);
    if (st == D9D_OK)
        st = json_length(json_array_get(json_object_get(tensor, "slices"), 0), b, &slice);
    json_decref(root);
    entry -= slice;
    slice += SEPARATOR_BYTES;
    for (int d = 0; d < t->global_shape.ndim; d++)
        slice += decimal_digits(t->global_shape.dim[d]);
    *sum += entry + boxes * slice + strlen(t->name) + COUNT_BYTES;
    return st;
}

static bool is_first(const d9d_checkpointer_tensor *t)
{
    for (int d = 0; d < t->global_shape.ndim; d++)
        if (t->start[d] != 0)
            return false;
    return true;
}

static uint64_t file_bytes(const char *group, uint64_t bytes)
{
    return FILE_BYTES + strlen(group) + RANK_SUFFIX_BYTES +
           (bytes / D9D_MANIFEST_CHUNK + 1) * HASH_BYTES;
}

/* This rank's files: one per group, and rank state. */
static uint64_t files_bytes(const d9d_checkpointer_set *local)
{
    uint64_t sum = 0, bytes = 0;

    for (size_t i = 0; i < local->n; i++) {
        const d9d_checkpointer_tensor *t = &local->items[i];

        if (i > 0 && strcmp(t->group, t[-1].group) != 0) {
            sum += file_bytes(t[-1].group, bytes);
            bytes = 0;
        }
        bytes += d9d_tensor_bytes(t->tensor) + strlen(t->name) + HEADER_BYTES;
        if (i + 1 == local->n)
            sum += file_bytes(t->group, bytes);
    }
    for (size_t i = bytes = 0; i < local->n_rank_states; i++)
        bytes += (uint64_t)local->rank_states[i].n * 8 + strlen(local->rank_states[i].name) +
                 HEADER_BYTES;
    if (local->n_rank_states > 0)
        sum += file_bytes(D9DI_CHECKPOINTER_RANK_STATE, bytes) +
               sizeof(D9DI_CHECKPOINTER_RANK_STATE) + RANK_SUFFIX_BYTES;
    return sum;
}

d9d_status d9d_checkpointer_manifest_bytes(const d9d_checkpointer_set *local, uint64_t *tensors,
                                           uint64_t *files)
{
    d9d_buf b = {0};
    d9d_status st = D9D_OK;

    *tensors = 0;
    for (size_t i = 0; i < local->n && st == D9D_OK; i++)
        if (is_first(&local->items[i]))
            st = tensor_bytes(&local->items[i], &b, tensors);
    *files = files_bytes(local);
    d9d_buf_release(&b);
    return st;
}

d9d_status d9d_checkpointer_manifest_check_bytes(uint64_t rank_bytes, int64_t ranks,
                                                 uint64_t *bytes)
{
    *bytes = rank_bytes + FIXED_BYTES;
    if (*bytes <= D9D_MANIFEST_MAX)
        return D9D_OK;
    return D9D_FAIL(D9D_ECONFIG,
                    "checkpoint: its manifest over %lld ranks would have up to %llu bytes, at most "
                    "%llu are read: with fewer ranks that cut parameters, or more pipeline stages, "
                    "it is smaller",
                    (long long)ranks, (unsigned long long)*bytes, D9D_MANIFEST_MAX);
}
