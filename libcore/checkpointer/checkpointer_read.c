/* checkpointer_read.c - fills a run's tensors from the slices that intersect them.  See
 * d9d/checkpointer/checkpointer.h. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "checkpointer/checkpointer_private.h"
#include "d9d/base/num_format.h"

/* --- the set against the manifest --------------------------------------------------- */

/* Elements of a box that slices have. */
typedef struct coverage {
    const d9d_box *box;
    int64_t elements;
} coverage;

static d9d_status add_covered(void *arg, const d9d_slice *slice)
{
    coverage *c = arg;
    d9d_box both;

    if (d9d_box_intersect(c->box, &slice->box, &both))
        c->elements += d9d_box_volume(&both);
    return D9D_OK;
}

/* Checks that slices cover the box.  They do not overlap, so counting elements is enough. */
static d9d_status check_covered(const d9di_checkpointer_manifest *s, const d9d_sliced_tensor *t,
                                const d9d_box *box)
{
    const int64_t want = d9d_box_volume(box);
    coverage have = {.box = box};
    char text[D9D_BOX_TEXT];

    D9D_TRY(d9d_sliced_tensor_visit(t, box, add_covered, &have));
    if (have.elements != want)
        return D9D_FAIL(
            D9D_EMISMATCH, "%s: tensor %s: of the %" PRId64 " element%s of %s it has %" PRId64,
            s->path, t->name, want, D9D_PLURAL(want), d9d_box_text(box, text), have.elements);
    return D9D_OK;
}

/* True for an older checkpoint, which stored optimizer state in the dtype of the weights. */
static bool is_widened(const d9d_sliced_tensor *t, const d9d_checkpointer_tensor *item)
{
    return item->widens && t->dtype == D9D_BF16 && item->tensor->dtype == D9D_F32;
}

/* `older`: the checkpoint has no master weights. */
static d9d_status check_item(const d9di_checkpointer_manifest *s,
                             const d9d_checkpointer_tensor *item, bool older)
{
    const d9d_sliced_tensor *t = d9d_slices_find(&s->slices, item->name);
    const d9d_box box = d9di_checkpointer_tensor_box(item);
    char have[128], want[128];

    if (t == NULL && item->residual && older)
        return D9D_OK;
    if (t == NULL)
        return D9D_FAIL(D9D_EMISMATCH, "%s: has no tensor %s, which this run needs", s->path,
                        item->name);
    if (t->dtype != item->tensor->dtype && !is_widened(t, item))
        return D9D_FAIL(D9D_EMISMATCH, "%s: tensor %s is %s, this run needs %s", s->path,
                        item->name, d9d_dtype_name(t->dtype), d9d_dtype_name(item->tensor->dtype));
    if (!d9d_shape_equal(&t->whole, &item->global_shape))
        return D9D_FAIL(D9D_EMISMATCH, "%s: tensor %s has shape %s, this run needs %s", s->path,
                        item->name, d9d_shape_text(&t->whole, have, sizeof(have)),
                        d9d_shape_text(&item->global_shape, want, sizeof(want)));
    if (!d9d_box_fits(&box, &item->global_shape))
        return D9D_FAIL(D9D_EINVAL, "checkpoint: tensor %s: its box is not a part of %s",
                        item->name, d9d_shape_text(&item->global_shape, want, sizeof(want)));
    return check_covered(s, t, &box);
}

/* Checks that everything in the checkpoint is in the set. */
static d9d_status check_unused(const d9di_checkpointer_manifest *s, const d9d_checkpointer_set *set)
{
    d9d_map wanted = {0};
    d9d_status st = D9D_OK;

    for (size_t i = 0; i < set->n; i++)
        D9D_TRY_OR(st, d9d_map_put(&wanted, set->items[i].name, strlen(set->items[i].name), NULL),
                   out);
    for (size_t i = 0; i < set->n_former; i++)
        D9D_TRY_OR(st, d9d_map_put(&wanted, set->former[i], strlen(set->former[i]), NULL), out);
    for (size_t i = 0; i < s->slices.n && st == D9D_OK; i++)
        if (!d9d_map_has(&wanted, s->slices.tensors[i].name, strlen(s->slices.tensors[i].name)))
            st = D9D_FAIL(D9D_EMISMATCH, "%s: has tensor %s, which this run does not have", s->path,
                          s->slices.tensors[i].name);
out:
    d9d_map_release(&wanted);
    return st;
}

static d9d_status check_set(const d9di_checkpointer_manifest *s, const d9d_checkpointer_set *set)
{
    const bool older = !d9di_checkpointer_has_masters(s, set);

    D9D_TRY(d9di_checkpointer_check_optimizer(s, set));
    for (size_t i = 0; i < set->n; i++)
        D9D_TRY(check_item(s, &set->items[i], older));
    D9D_TRY(d9di_checkpointer_check_masters(s, set));
    for (size_t i = 0; i < set->n_counts; i++)
        if (json_object_get(s->counts, set->counts[i].name) == NULL)
            return D9D_FAIL(D9D_EMISMATCH, "%s: optimizer_steps: has no %s, which this run needs",
                            s->path, set->counts[i].name);
    return set->partial ? D9D_OK : check_unused(s, set);
}

/* --- files ------------------------------------------------------------------------------ */

typedef struct slice_reader {
    const d9di_checkpointer_manifest *saved;
    d9d_map files; /* d9d_safetensors_file by name */
    char *buffer;
} slice_reader;

static d9d_status open_slice_file(slice_reader *r, const char *name, d9d_safetensors_file **out)
{
    d9d_safetensors_file *f = d9d_map_get(&r->files, name, strlen(name));
    d9d_arena a = {0};
    char *path;
    d9d_status st;

    if (f != NULL) {
        *out = f;
        return D9D_OK;
    }
    path = d9d_fs_join(&a, r->saved->dir, name);
    if (path == NULL) {
        st = D9D_FAIL(D9D_ENOMEM, "%s: no memory for a name", r->saved->dir);
        goto out;
    }
    D9D_TRY_OR(st, d9d_manifest_check_size(r->saved->manifest, name), out);
    D9D_TRY_OR(st, d9d_safetensors_open(path, &f), out);
    st = d9d_map_put(&r->files, name, strlen(name), f);
    if (st == D9D_OK)
        *out = f;
    else
        d9d_safetensors_close(f);
out:
    d9d_arena_release(&a);
    return st;
}

/* The tensor of a slice in its file; it must agree with the manifest. */
static d9d_status find_slice(slice_reader *r, const d9d_sliced_tensor *t, const d9d_slice *slice,
                             d9d_safetensors_file **file, const d9d_safetensors_tensor **out)
{
    char name[D9D_SLICES_FILE];
    const d9d_safetensors_tensor *found;

    D9D_TRY(open_slice_file(r, d9d_slices_file(&r->saved->slices, t, slice, name), file));
    found = d9d_safetensors_find(*file, t->name);
    if (found == NULL)
        return D9D_FAIL(D9D_EFORMAT, "%s: has no tensor %s, which %s places there",
                        d9d_safetensors_path(*file), t->name, D9D_MANIFEST_NAME);
    if (found->dtype != t->dtype || found->ndim != slice->box.ndim ||
        (found->ndim > 0 && memcmp(found->shape, slice->box.size,
                                   (size_t)found->ndim * sizeof(found->shape[0])) != 0)) {
        char have[D9D_SAFETENSORS_DESCRIBE], want[D9D_BOX_TEXT];

        return D9D_FAIL(D9D_EFORMAT, "%s: tensor %s is %s, %s says %s %s",
                        d9d_safetensors_path(*file), t->name, d9d_safetensors_describe(found, have),
                        D9D_MANIFEST_NAME, d9d_dtype_safetensors(t->dtype),
                        d9d_box_text(&slice->box, want));
    }
    *out = found;
    return D9D_OK;
}

/* Calls fn for every slice that intersects the item's box. */
typedef struct slice_overlap {
    const d9d_checkpointer_tensor *item;
    d9d_safetensors_file *file;
    const d9d_safetensors_tensor *from;
    d9d_box both, slice, box;
} slice_overlap;

typedef struct overlap_visit {
    slice_reader *reader;
    const d9d_sliced_tensor *tensor;
    slice_overlap m;
    d9d_status (*fn)(slice_reader *r, const slice_overlap *m); /* NULL: only find the slices */
} overlap_visit;

static d9d_status visit_overlap(void *arg, const d9d_slice *slice)
{
    overlap_visit *v = arg;

    v->m.slice = slice->box;
    if (!d9d_box_intersect(&v->m.box, &v->m.slice, &v->m.both))
        return D9D_OK;
    D9D_TRY(find_slice(v->reader, v->tensor, slice, &v->m.file, &v->m.from));
    return v->fn != NULL ? v->fn(v->reader, &v->m) : D9D_OK;
}

static d9d_status for_each_overlap(slice_reader *r, const d9d_checkpointer_tensor *item,
                                   d9d_status (*fn)(slice_reader *r, const slice_overlap *m))
{
    overlap_visit v = {.reader = r,
                       .tensor = d9d_slices_find(&r->saved->slices, item->name),
                       .m = {.item = item, .box = d9di_checkpointer_tensor_box(item)},
                       .fn = fn};

    return v.tensor != NULL ? d9d_sliced_tensor_visit(v.tensor, &v.m.box, visit_overlap, &v)
                            : D9D_OK;
}

/* --- bytes ------------------------------------------------------------------------------ */

typedef struct copy_target {
    slice_reader *source;
    const slice_overlap *overlap;
} copy_target;

/* Widens bfloat16 to float32 in place, from the last element to the first. */
static void widen_bf16(void *buffer, uint64_t n)
{
    char *at = buffer;
    uint16_t half;

    for (uint64_t i = n; i-- > 0;) {
        float whole;

        memcpy(&half, at + i * sizeof(half), sizeof(half));
        whole = d9d_bf16_to_f32(half);
        memcpy(at + i * sizeof(whole), &whole, sizeof(whole));
    }
}

static d9d_status copy_run(void *arg, int64_t src, int64_t dst, int64_t n)
{
    const copy_target *to = arg;
    const d9d_safetensors_tensor *from = to->overlap->from;
    const d9d_tensor *t = to->overlap->item->tensor;
    const uint64_t width = d9d_dtype_size(t->dtype), stored = d9d_dtype_size(from->dtype);
    const uint64_t max_bytes = D9DI_CHECKPOINTER_IO_BYTES / width, count = (uint64_t)n;

    for (uint64_t at = 0, now; at < count; at += now) {
        now = count - at < max_bytes ? count - at : max_bytes;
        D9D_TRY(d9d_safetensors_read(to->overlap->file, from, ((uint64_t)src + at) * stored,
                                     to->source->buffer, now * stored));
        if (stored < width)
            widen_bf16(to->source->buffer, now);
        D9D_TRY(d9d_device_upload(d9d_tensor_device(t),
                                  (char *)d9d_tensor_data(t) + ((uint64_t)dst + at) * width,
                                  to->source->buffer, now * width));
    }
    return D9D_OK;
}

static d9d_status read_overlap(slice_reader *r, const slice_overlap *m)
{
    return d9d_box_runs(&m->both, &m->slice, &m->box, copy_run, &(copy_target){r, m});
}

static void reader_release(slice_reader *r)
{
    for (size_t i = 0; i < r->files.len; i++)
        d9d_safetensors_close(r->files.entries[i].value);
    d9d_map_release(&r->files);
    free(r->buffer);
}

/* Logs what starts differently because the checkpoint is older. */
static void log_older_checkpoint(const d9di_checkpointer_manifest *s,
                                 const d9d_checkpointer_set *set, const d9d_log *log)
{
    bool lacks = false, widened = false;

    for (size_t i = 0; i < set->n; i++) {
        const d9d_sliced_tensor *t = d9d_slices_find(&s->slices, set->items[i].name);

        lacks = lacks || (t == NULL && set->items[i].residual);
        widened = widened || (t != NULL && is_widened(t, &set->items[i]));
    }
    if (lacks)
        d9d_log_info(log,
                     "%s: has no master_residual: float32 master weights begin as its bfloat16 "
                     "weights",
                     s->path);
    if (widened)
        d9d_log_info(log, "%s: its optimizer state is bfloat16, and float32 from here on", s->path);
}

static d9d_status read_tensors(const d9di_checkpointer_manifest *s, const d9d_checkpointer_set *set)
{
    slice_reader r = {.saved = s, .buffer = malloc(D9DI_CHECKPOINTER_IO_BYTES)};
    d9d_status st = D9D_OK;

    if (r.buffer == NULL)
        return D9D_FAIL(D9D_ENOMEM, "%s: no memory to read it", s->dir);
    for (size_t i = 0; i < set->n; i++)
        D9D_TRY_OR(st, for_each_overlap(&r, &set->items[i], NULL), out);
    for (size_t i = 0; i < set->n; i++)
        D9D_TRY_OR(st, for_each_overlap(&r, &set->items[i], read_overlap), out);
out:
    reader_release(&r);
    return st;
}

d9d_status d9d_checkpointer_check(const char *path, const d9d_checkpointer_set *set,
                                  d9d_checkpointer_state *state)
{
    d9di_checkpointer_manifest s;
    d9d_status st;

    D9D_TRY(d9di_checkpointer_manifest_open(path, &s));
    st = check_set(&s, set);
    if (st == D9D_OK)
        *state = s.state;
    d9di_checkpointer_manifest_release(&s);
    return st;
}

d9d_status d9d_checkpointer_read(const char *path, const d9d_checkpointer_set *set,
                                 const d9d_log *log, d9d_checkpointer_state *state)
{
    d9di_checkpointer_manifest s;
    d9d_status st;

    D9D_TRY(d9di_checkpointer_manifest_open(path, &s));
    D9D_TRY_OR(st, check_set(&s, set), out);
    log_older_checkpoint(&s, set, log);
    D9D_TRY_OR(st, read_tensors(&s, set), out);
    for (size_t i = 0; i < set->n_counts; i++)
        *set->counts[i].value = json_integer_value(json_object_get(s.counts, set->counts[i].name));
    *state = s.state;
out:
    d9di_checkpointer_manifest_release(&s);
    return st;
}
