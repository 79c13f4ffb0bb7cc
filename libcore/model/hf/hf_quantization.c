/* hf_quantization.c - quantised weights of a model folder: found by its config.json, decoded when
 * they are read.  See d9d/model/hf/hf_config.h.
 */
#include <string.h>

#include "d9d/base/fs.h"
#include "model/hf/hf_config_fields.h"

/* --- files beside config.json ------------------------------------------------------------- */

/* The file where older quantisers put quantization_config by itself, if the folder has one; NULL.
 */
static const char *find_other_config(d9d_arena *a, const char *dir)
{
    static const char *const names[] = {"quantize_config.json", "quant_config.json"};

    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        const char *path = d9d_fs_join(a, dir, names[i]);

        if (path != NULL && d9d_fs_exists(path))
            return names[i];
    }
    return NULL;
}

/* Does the document, or the text model in it, say how its weights are quantised? */
static bool has_quantization(const json_t *doc)
{
    return d9di_hf_member(doc, D9D_QUANTIZATION_FIELD) != NULL ||
           d9di_hf_member(json_object_get(doc, "text_config"), D9D_QUANTIZATION_FIELD) != NULL;
}

/* "quantization", as it is, in quantization_config: messages then name the file that has it. */
static d9d_status quantization_take(json_t *doc, json_t *from, const char *file)
{
    json_t *members = json_object_get(from, "quantization");
    json_t *q;

    if (!json_is_object(members))
        return D9D_FAIL(D9D_EFORMAT, "%s: \"quantization\" must be an object", file);
    if (d9di_hf_member(members, "quant_algo") == NULL) /* caches alone */
        return D9D_OK;
    q = json_pack("{s:s, s:O}", "quant_method", "modelopt", "quantization", members);
    if (q == NULL || json_object_set_new(doc, D9D_QUANTIZATION_FIELD, q) != 0)
        return D9D_FAIL(D9D_ENOMEM, "%s: out of memory", file);
    return D9D_OK;
}

d9d_status d9di_hf_config_quantization_beside(json_t *doc, const char *beside)
{
    d9d_arena a = {0};
    const char *file = d9d_fs_join(&a, beside, D9D_QUANTIZATION_BESIDE);
    json_t *from = NULL;
    d9d_status st = D9D_OK;

    if (file == NULL) {
        st = D9D_FAIL(D9D_ENOMEM, "%s: out of memory", beside);
        goto out;
    }
    if (has_quantization(doc) || !d9d_fs_exists(file))
        goto out;
    D9D_TRY_OR(st, d9d_json_read(file, D9D_HF_CONFIG_MAX, &from), out);
    D9D_TRY_OR(st, quantization_take(doc, from, file), out);
out:
    json_decref(from);
    d9d_arena_release(&a);
    return st;
}

/* --- decoding --------------------------------------------------------------------------------- */

static d9d_status fail_names(d9d_checkpoint *c, const char *where, const char *scales,
                             const char *methods)
{
    d9d_arena a = {0};
    const char *other = find_other_config(&a, d9d_checkpoint_dir(c));
    d9d_status st = D9D_FAIL(D9D_EMISMATCH,
                             "%s: tensor %s is of weights that are quantised (%s), and %s has "
                             "no " D9D_QUANTIZATION_FIELD " that says so%s%s%s",
                             d9d_checkpoint_dir(c), scales, methods, where,
                             other != NULL ? "; give it the members of " : "",
                             other != NULL ? other : "", other != NULL ? " and quant_method" : "");

    d9d_arena_release(&a);
    return st;
}

/* Without a method, names of quantised tensors would be read as a model's own. */
static d9d_status check_names(d9d_checkpoint *c, const char *where)
{
    const d9d_tensor_source src = d9d_checkpoint_source(c);
    const char *scales;
    d9d_buf methods = {0};
    d9d_status st = d9d_quantization_guess(&src, &scales, &methods);

    if (st == D9D_OK && scales != NULL)
        st = fail_names(c, where, scales, methods.data);
    d9d_buf_release(&methods);
    return st;
}

d9d_status d9d_hf_config_decode(const json_t *doc, const char *where, d9d_dtype to,
                                d9d_checkpoint *c)
{
    d9d_quantization q;

    D9D_TRY(d9d_quantization_read(doc, where, &q));
    if (q.method == D9D_QUANTIZATION_NONE)
        return check_names(c, where);
    return d9d_checkpoint_decode(c, &q, to == D9D_BF16 ? D9D_BF16 : D9D_F32);
}

d9d_status d9d_hf_config_decode_dir(const char *otherwise, d9d_dtype to, d9d_checkpoint *c)
{
    d9d_arena a = {0};
    const char *file = d9d_fs_join(&a, d9d_checkpoint_dir(c), D9D_HF_CONFIG_NAME);
    json_t *doc = NULL;
    d9d_status st = D9D_OK;

    if (file == NULL) {
        st = D9D_FAIL(D9D_ENOMEM, "%s: out of memory", d9d_checkpoint_dir(c));
        goto out;
    }
    if (!d9d_fs_exists(file))
        file = otherwise;
    if (file != NULL)
        D9D_TRY_OR(st, d9d_hf_config_load(file, &doc), out);
    st = d9d_hf_config_decode(doc, file != NULL ? file : d9d_checkpoint_dir(c), to, c);
out:
    json_decref(doc);
    d9d_arena_release(&a);
    return st;
}

bool d9d_hf_config_unquantize(json_t *doc)
{
    return json_object_del(doc, D9D_QUANTIZATION_FIELD) == 0;
}
