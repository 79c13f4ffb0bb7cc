/* adapter_read.c - reads an adapter directory of peft.  See d9d/model/lora/adapters.h.
 *
 * The model determines which tensors may be present; any other tensor is refused.
 */
#include <string.h>

#include "d9d/base/fs.h"
#include "d9d/base/json.h"
#include "d9d/base/num_format.h"
#include "model/lora/adapter_reader.h"

enum { CONFIG_BYTES = 16 << 20 };

/* The tensors of a file under shorter names. */
typedef struct memory_names {
    d9d_safetensors_tensor *tensors;
} memory_names;

static const d9d_safetensors_tensor *names_at(void *self, size_t i)
{
    return &((memory_names *)self)->tensors[i];
}

/* Find how the file begins its names, as if they were those of a checkpoint. */
static d9d_status prefixes_find(d9di_peft_reader *r)
{
    const size_t n = d9d_safetensors_count(r->file), k = strlen(D9DI_ADAPTER_PREFIX);
    memory_names names = {.tensors = d9d_arena_alloc(&r->arena, (n + 1) * sizeof(*names.tensors))};

    if (names.tensors == NULL)
        return d9di_peft_no_memory(r);
    for (size_t i = 0; i < n; i++) {
        const d9d_safetensors_tensor *t = d9d_safetensors_at(r->file, i);

        names.tensors[i] = *t;
        if (strncmp(t->name, D9DI_ADAPTER_PREFIX, k) == 0)
            names.tensors[i].name = t->name + k;
    }
    if (r->matrices->parts != NULL)
        r->as = d9d_hf_prefixes_of(r->matrices->parts,
                                   &(d9d_tensor_source){.self = &names, .n = n, .at = names_at});
    return D9D_OK;
}

static d9d_status tensors_check_used(const d9di_peft_reader *r)
{
    const size_t n = d9d_safetensors_count(r->file);

    for (size_t i = 0; i < n; i++)
        if (!r->taken[i])
            return D9D_FAIL(D9D_EMISMATCH,
                            "%s: of %zu tensor%s %zu belong to this model; %s does "
                            "not",
                            d9d_safetensors_path(r->file), n, D9D_PLURAL(n), r->used,
                            d9d_safetensors_at(r->file, i)->name);
    return r->ad->list.len + r->ad->saved.len > 0
               ? D9D_OK
               : D9D_FAIL(D9D_EMISMATCH, "%s: has no tensors", d9d_safetensors_path(r->file));
}

static d9d_status adapter_read(d9di_peft_reader *r, const char *dir)
{
    d9d_arena *a = &r->arena;
    const char *tensors = d9d_fs_join(a, dir, D9DI_ADAPTER_TENSORS);

    r->config_path = d9d_fs_join(a, dir, D9DI_ADAPTER_CONFIG);
    if (tensors == NULL || r->config_path == NULL)
        return D9D_FAIL(D9D_ENOMEM, "%s: out of memory", dir);
    D9D_TRY(d9d_json_read(r->config_path, CONFIG_BYTES, &r->doc));
    D9D_TRY(d9di_peft_config_check(r));
    D9D_TRY(d9d_safetensors_open(tensors, &r->file));
    D9D_TRY(d9di_adapters_create(&r->ad));
    r->taken = d9d_arena_alloc(a, d9d_safetensors_count(r->file) + 1);
    if (r->taken == NULL)
        return D9D_FAIL(D9D_ENOMEM, "%s: %zu tensors", tensors, d9d_safetensors_count(r->file));
    if (r->type == D9DI_PEFT_PROMPT) {
        D9D_TRY(d9di_peft_prompt_read(r));
        return tensors_check_used(r);
    }
    D9D_TRY(prefixes_find(r));
    for (size_t i = 0; i < r->matrices->n; i++)
        D9D_TRY(d9di_peft_matrix_read(r, &r->matrices->items[i]));
    D9D_TRY(d9di_peft_shared_read(r));
    D9D_TRY(d9di_peft_saved_read(r));
    if (r->ad->saved.len == 0)
        D9D_TRY(d9di_peft_require_unset(r, "modules_to_save"));
    return tensors_check_used(r);
}

d9d_status d9d_adapters_read(const char *dir, const d9d_model_matrices *of,
                             const d9d_adapter_kind *const *kinds, const char *base,
                             const d9d_log *log, d9d_adapters **out)
{
    d9di_peft_reader r = {.matrices = of, .kinds = kinds};
    const d9d_status st = adapter_read(&r, dir);

    if (st == D9D_OK) {
        d9di_peft_warn_missing(&r, log);
        d9di_peft_warn_other_base(&r, base, log);
        *out = r.ad;
    } else {
        d9d_adapters_free(r.ad);
    }
    d9d_safetensors_close(r.file);
    json_decref(r.doc);
    d9d_arena_release(&r.arena);
    return st;
}
