/* hf_names.c - see hf_names.h. */
#include "model/tensors/hf_names.h"

#include <ctype.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

const d9d_hf_parts d9d_hf_parts_default = {
    .prefix = "model.",
    .hf = {"model.embed_tokens", "model.layers", "model.norm", "lm_head", NULL, NULL, NULL}};
const d9d_decoder_names d9d_hf_own_names = {
    "model.embed_tokens",    "model.layers",          "model.norm", "lm_head",
    "model.embed_positions", "model.embeddings.norm", "mlm_head"};

#define EXPERT "{expert}"

static bool has_prefix(const char *name, const char *part)
{
    return strncmp(name, part, strlen(part)) == 0;
}

/* --- rows ------------------------------------------------------------------------------------ */

d9di_hf_view d9di_hf_view_of(d9d_weights_layout layout)
{
    return layout == D9D_LAYOUT_HF_FUSED ? D9DI_HF_FUSED : D9DI_HF_SEPARATE;
}

/* The kinds of rows of a view; the first kind that names a parameter counts. */
enum { MAX_KINDS = 5 };
static const int kinds[][MAX_KINDS] = {
    [D9DI_HF_SEPARATE] = {D9D_HF_ROWS_SEPARATE, D9D_HF_ROWS_BOTH, -1},
    [D9DI_HF_FUSED] = {D9D_HF_ROWS_FUSED, D9D_HF_ROWS_BOTH, -1},
    [D9DI_HF_MODEL] = {D9D_HF_ROWS_MODEL, D9D_HF_ROWS_FUSED, D9D_HF_ROWS_SEPARATE, D9D_HF_ROWS_BOTH,
                       -1}};

/* Which part of a row is this parameter?  -1: none. */
static int part_of(const d9d_hf_tensor *r, const char *rest)
{
    for (int i = 0; i < D9D_HF_PARTS && r->own[i] != NULL; i++)
        if (strcmp(r->own[i], rest) == 0)
            return i;
    return -1;
}

/* The row that has parameter `rest` of a layer, and which of its parts that is. */
static const d9d_hf_tensor *row_find(const d9d_hf_naming *n, const char *rest, d9di_hf_view view,
                                     int *part)
{
    for (const int *kind = kinds[view]; *kind >= 0; kind++)
        for (const d9d_hf_tensor *r = n->tensors; r != NULL && r->hf != NULL; r++) {
            *part = (int)r->rows == *kind ? part_of(r, rest) : -1;
            if (*part >= 0)
                return r;
        }
    *part = 0;
    return NULL;
}

/* --- layers ---------------------------------------------------------------------------------- */

/* Bytes of "LAYERS.N." at the beginning of a name; 0: it is not of a layer. */
static size_t layer_prefix(const char *layers, const char *name)
{
    size_t k = strlen(layers), digits;

    if (!has_prefix(name, layers) || name[k] != '.')
        return 0;
    k++;
    for (digits = 0; isdigit((unsigned char)name[k + digits]); digits++)
        continue;
    return digits > 0 && name[k + digits] == '.' ? k + digits + 1 : 0;
}

static const d9d_hf_prefixes prefixes[] = {{NULL, ""},
                                           {"", ""},
                                           {"model.language_model.", ""},
                                           {"language_model.model.", "language_model."}};
enum { N_PREFIXES = sizeof(prefixes) / sizeof(prefixes[0]) };
const d9d_hf_prefixes d9d_hf_prefixes_bare = {"", ""};

const char *d9d_hf_name_as(const d9d_hf_parts *parts, const d9d_hf_prefixes *as, const char *name,
                           d9d_arena *a)
{
    const size_t n = strlen(parts->prefix);

    if (as != NULL && as->model != NULL && n > 0 && has_prefix(name, parts->prefix))
        return d9d_arena_printf(a, "%s%s", as->model, name + n);
    if (as != NULL && strcmp(name, parts->hf.head) == 0)
        return d9d_arena_printf(a, "%s%s", as->head, name);
    return name;
}

/* Has the source a tensor of this part? */
static bool has_part(const d9d_tensor_source *src, const char *part)
{
    for (size_t i = 0; i < src->n; i++) {
        const char *name = src->at(src->self, i)->name;

        if (has_prefix(name, part) && name[strlen(part)] == '.')
            return true;
    }
    return false;
}

const d9d_hf_prefixes *d9d_hf_prefixes_of(const d9d_hf_parts *parts, const d9d_tensor_source *src)
{
    const d9d_hf_prefixes *found = &prefixes[0];
    d9d_arena a = {0};

    for (size_t i = 1; i < N_PREFIXES && found == &prefixes[0] && parts->prefix[0] != '\0'; i++) {
        const char *layers = d9d_hf_name_as(parts, &prefixes[i], parts->hf.layers, &a);
        const char *embed = d9d_hf_name_as(parts, &prefixes[i], parts->hf.embed, &a);

        if (layers != NULL && embed != NULL && (has_part(src, layers) || has_part(src, embed)))
            found = &prefixes[i];
    }
    d9d_arena_release(&a);
    return found;
}

static d9d_status no_memory(const d9d_hf_naming *n)
{
    return D9D_FAIL(D9D_ENOMEM, "%s: names in HuggingFace's files", n->name);
}

static d9d_status no_tensor(const d9d_hf_naming *n, const char *name)
{
    return D9D_FAIL(D9D_ENOTSUP, "%s: a HuggingFace checkpoint has no tensor for %s", n->name,
                    name);
}

static d9d_status layer_place(const d9d_hf_naming *n, const char *name, size_t prefix,
                              d9di_hf_view view, const d9d_hf_prefixes *as, d9d_arena *a,
                              d9di_hf_place *out)
{
    const size_t k = strlen(d9d_hf_own_names.layers);
    const char *layers = d9d_hf_name_as(n->parts, as, n->parts->hf.layers, a);
    const char *rest = name + prefix, *there;

    out->row = row_find(n, rest, view, &out->part);
    there = out->row != NULL ? out->row->hf : rest;
    if (there[0] == '\0')
        return no_tensor(n, name);
    if (layers == NULL)
        return no_memory(n);
    out->own_prefix = d9d_arena_strndup(a, name, prefix);
    out->hf_prefix = d9d_arena_printf(a, "%s%.*s", layers, (int)(prefix - k), name + k);
    if (out->own_prefix == NULL || out->hf_prefix == NULL)
        return no_memory(n);
    out->hf = d9d_arena_printf(a, "%s%s", out->hf_prefix, there);
    out->has_experts = strstr(there, EXPERT) != NULL;
    return out->hf != NULL ? D9D_OK : no_memory(n);
}

/* --- parts of the decoder ------------------------------------------------------------------- */

/* Does `name` consist of `begin`, one word and `end`? */
static bool is_between(const char *name, const char *begin, const char *end)
{
    const size_t k = strlen(name), b = strlen(begin), e = strlen(end);

    return k > b + e && has_prefix(name, begin) && strcmp(name + k - e, end) == 0;
}

/* Parts by the beginnings of their parameters' names here.  The name in the files is that of the
 * part, then `rest`, then the last component of the parameter's name. */
static const struct {
    const char *begin;
    bool of_split; /* the parameter is a table of the vocabulary: one word and ".weight" follow */
    size_t part;   /* offset in d9d_decoder_names, or */
    const char *name;
    const char *rest;
} part_rows[] = {
#define PART(member) offsetof(d9d_decoder_names, member), NULL
    {"model.embed_tokens.token_embedding.", true, PART(embed), ""},
    {"lm_head.lm_head.", true, PART(head), ""},
    {"model.norm.", false, PART(norm), ""},
    {"model.embeddings.norm.", false, PART(embed_norm), ""},
    {"model.embed_positions.", false, PART(positions), ""},
    {"mlm_head.dense.", false, PART(mlm_head), ".dense"},
    {"mlm_head.norm.", false, PART(mlm_head), ".norm"},
    {"mlm_head.decoder.", false, PART(head), ""},
    {"cls_head.score.", false, 0, "score", ""},
#undef PART
};
enum { PART_ROWS = sizeof(part_rows) / sizeof(part_rows[0]) };

/* The row of a parameter; PART_ROWS: none. */
static size_t part_row_find(const char *name)
{
    size_t i = 0;

    while (i < PART_ROWS &&
           !(part_rows[i].of_split ? is_between(name, part_rows[i].begin, ".weight")
                                   : has_prefix(name, part_rows[i].begin)))
        i++;
    return i;
}

/* What the files call the part of a row; NULL: they have none. */
static const char *part_name(const d9d_hf_naming *n, size_t row)
{
    const char *const *at =
        (const char *const *)(const void *)((const char *)&n->parts->hf + part_rows[row].part);

    return part_rows[row].name != NULL ? part_rows[row].name : *at;
}

static d9d_status part_place(const d9d_hf_naming *n, const char *name, const d9d_hf_prefixes *as,
                             d9d_arena *a, d9di_hf_place *out)
{
    const size_t row = part_row_find(name);
    const char *suffix = strrchr(name, '.'), *there = row < PART_ROWS ? part_name(n, row) : NULL;

    if (there == NULL)
        return no_tensor(n, name);
    out->own_prefix = out->hf_prefix = "";
    there = d9d_hf_name_as(n->parts, as, there, a);
    if (there == NULL)
        return no_memory(n);
    out->hf = d9d_arena_printf(a, "%s%s%s", there, part_rows[row].rest, suffix);
    return out->hf != NULL ? D9D_OK : no_memory(n);
}

d9d_status d9di_hf_place_find(const d9d_hf_naming *n, const char *name, d9di_hf_view view,
                              const d9d_hf_prefixes *as, d9d_arena *a, d9di_hf_place *out)
{
    const size_t prefix = layer_prefix(d9d_hf_own_names.layers, name);

    *out = (d9di_hf_place){0};
    return prefix > 0 ? layer_place(n, name, prefix, view, as, a, out)
                      : part_place(n, name, as, a, out);
}

const char *d9di_hf_expert_name(const char *pattern, int64_t e, d9d_arena *a)
{
    const char *at = strstr(pattern, EXPERT);

    return d9d_arena_printf(a, "%.*s%lld%s", (int)(at - pattern), pattern, (long long)e,
                            at + strlen(EXPERT));
}

bool d9d_hf_has_row(const d9d_hf_naming *n, const char *name)
{
    const size_t prefix = layer_prefix(d9d_hf_own_names.layers, name);
    const size_t row = part_row_find(name);
    int part;

    if (prefix == 0)
        return row < PART_ROWS && part_rows[row].name == NULL && part_name(n, row) != NULL;
    return (row_find(n, name + prefix, D9DI_HF_SEPARATE, &part) != NULL ||
            row_find(n, name + prefix, D9DI_HF_FUSED, &part) != NULL);
}

/* What follows "LAYERS." in a name of the files, whatever it begins with; NULL: it is of no layer.
 */
static const char *behind_layers(const d9d_hf_naming *n, const char *name)
{
    const char *found = NULL;
    d9d_arena a = {0};

    for (size_t i = 0; i < N_PREFIXES && found == NULL; i++) {
        const char *layers = d9d_hf_name_as(n->parts, &prefixes[i], n->parts->hf.layers, &a);

        if (layers != NULL && layer_prefix(layers, name) > 0)
            found = name + strlen(layers) + 1;
    }
    d9d_arena_release(&a);
    return found;
}

int64_t d9d_hf_layer_of(const d9d_hf_naming *n, const char *name)
{
    const char *at = behind_layers(n, name);

    return at != NULL ? strtoll(at, NULL, 10) : -1;
}

bool d9d_hf_is_unused(const d9d_hf_naming *n, const char *name)
{
    const char *at = behind_layers(n, name), *rest = at != NULL ? strchr(at, '.') : NULL;

    for (const d9d_hf_tensor *r = n->tensors; rest != NULL && r != NULL && r->hf != NULL; r++)
        if (r->own[0] == NULL && strcmp(r->hf, rest + 1) == 0)
            return true;
    return false;
}
