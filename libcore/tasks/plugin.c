/* plugin.c - see d9d/tasks/plugin.h. */
#include "d9d/tasks/plugin.h"

#include <dlfcn.h>
#include <link.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "d9d/base/fs.h"
#include "d9d/base/json.h"
#include "d9d/model/lora/adapters.h"
#include "d9d/models/models.h"

/* The first members of every table. */
typedef struct plugin_row {
    size_t size;
    const d9d_table *table;
} plugin_row;

/* --- kinds of tables ------------------------------------------------------------------ */

/* A required member of a table. */
typedef struct required_member {
    const char *name;
    size_t offset;
    const char *reason; /* explains it in parentheses; NULL: its name is enough */
} required_member;

typedef struct plugin_kind {
    const char *label; /* its name in messages */
    size_t size;       /* of a row in this library */
    size_t list;       /* offset of the list in d9d_plugin */
    const d9d_table *const *built_in;
    required_member needs[4]; /* terminated by a NULL name */
    size_t tables[2];         /* offsets of further key tables, ending in 0 */
} plugin_kind;

#define REQUIRED_BECAUSE(type, member, label)                                                      \
    {                                                                                              \
#member, offsetof(type, member), label                                                     \
    }
#define REQUIRED(type, member) REQUIRED_BECAUSE(type, member, NULL)
static const plugin_kind plugin_kinds[] = {
    {"model provider",
     sizeof(d9d_model_provider),
     offsetof(d9d_plugin, models),
     d9d_model_choices,
     {REQUIRED(d9d_model_provider, create),
      REQUIRED_BECAUSE(
          d9d_model_provider, model_types,
          " (which config.json it reads, and every field of it: d9d/model/hf/hf_fields.h)")},
     {offsetof(d9d_model_provider, dims)}},
    {"task",
     sizeof(d9d_train_task),
     offsetof(d9d_plugin, train_tasks),
     d9d_train_task_choices,
     {{NULL, 0, NULL}},
     {0}},
    {"task of inference",
     sizeof(d9d_infer_task_kind),
     offsetof(d9d_plugin, infer_tasks),
     d9d_infer_task_choices,
     {{NULL, 0, NULL}},
     {0}},
    {"optimizer",
     sizeof(d9d_optimizer_kind),
     offsetof(d9d_plugin, optimizers),
     d9d_optimizer_choices,
     {REQUIRED(d9d_optimizer_kind, update)},
     {0}},
    {"learning-rate schedule",
     sizeof(d9d_lr_schedule_kind),
     offsetof(d9d_plugin, lr_schedulers),
     d9d_lr_schedule_choices,
     {REQUIRED(d9d_lr_schedule_kind, create), REQUIRED(d9d_lr_schedule_kind, at)},
     {0}},
    {"schedule",
     sizeof(d9d_pipe_schedule_kind),
     offsetof(d9d_plugin, schedules),
     d9d_job_pipe_schedule_choices,
     {REQUIRED(d9d_pipe_schedule_kind, build)},
     {0}},
    {"metric",
     sizeof(d9d_metric_kind),
     offsetof(d9d_plugin, metrics),
     d9d_metric_choices,
     {REQUIRED(d9d_metric_kind, form), REQUIRED(d9d_metric_kind, update),
      REQUIRED(d9d_metric_kind, compute)},
     {0}},
    {"tracker",
     sizeof(d9d_sink_kind),
     offsetof(d9d_plugin, trackers),
     d9d_sink_choices,
     {REQUIRED(d9d_sink_kind, open), REQUIRED(d9d_sink_kind, put)},
     {0}},
    {"dataset",
     sizeof(d9d_dataset_kind),
     offsetof(d9d_plugin, datasets),
     d9d_dataset_choices,
     {REQUIRED(d9d_dataset_kind, info), REQUIRED(d9d_dataset_kind, sample)},
     {0}},
    {"reward",
     sizeof(d9d_reward_kind),
     offsetof(d9d_plugin, rewards),
     d9d_reward_choices,
     {REQUIRED(d9d_reward_kind, score)},
     {0}},
    {"method of fine-tuning",
     sizeof(d9d_peft_method),
     offsetof(d9d_plugin, peft_methods),
     d9d_peft_choices,
     {REQUIRED(d9d_peft_method, adapt)},
     {0}},
};
enum {
    MODELS, /* the first of plugin_kinds */
    N_PLUGIN_KINDS = sizeof(plugin_kinds) / sizeof(plugin_kinds[0]),
    PEFT_METHODS = N_PLUGIN_KINDS - 1, /* the last */
    PLUGINS_MAX = 64
};

struct d9d_plugins {
    d9d_arena arena;
    D9D_VEC(const d9d_table *) choices[N_PLUGIN_KINDS]; /* NULL-terminated, if there are any */
    D9D_VEC(const d9d_adapter_kind *) adapter_kinds;    /* the same */
    D9D_VEC(const d9d_job_event_handler *) events;
    D9D_VEC(const char *) files;
};

/* --- checks of a library -------------------------------------------------------------- */

static const size_t embeds[] = {D9D_PLUGIN_EMBEDS(D9D_PLUGIN_SIZE) 0};
#define EMBED_NAME(type) #type,
static const char *const embed_names[] = {D9D_PLUGIN_EMBEDS(EMBED_NAME) NULL};

/* Checks the sizes of structs that both sides allocate. */
static d9d_status check_embeds(const char *path, const size_t *sizes)
{
    for (size_t i = 0; embed_names[i] != NULL; i++) {
        if (sizes == NULL || sizes[i] == 0)
            return D9D_OK; /* an older plugin, which knows no more structs */
        if (sizes[i] != embeds[i])
            return D9D_FAIL(D9D_ECONFIG,
                            "%s: was built where %s has %zu bytes, here it has %zu; build it again",
                            path, embed_names[i], sizes[i], embeds[i]);
    }
    return D9D_OK;
}

enum { MAX_TABLE_BYTES = 64 << 10 }; /* bytes: larger tables are refused */

/* Copies `from` into this library's layout: missing members are zero, unknown ones must be zero. */
static d9d_status copy_table(const char *path, const char *label, const void *from, size_t given,
                             size_t known, void *to)
{
    memset(to, 0, known);
    memcpy(to, from, given < known ? given : known);
    for (size_t i = known; i < given; i++)
        if (given > MAX_TABLE_BYTES || ((const char *)from)[i] != 0)
            return D9D_FAIL(D9D_ECONFIG,
                            "%s: its %s uses %zu bytes of a table, of which this d9d knows %zu; it "
                            "was built for a newer one",
                            path, label, given, known);
    *(size_t *)to = known;
    return D9D_OK;
}

extern const ElfW(Ehdr) __ehdr_start /* the linker's; NOLINT(bugprone-reserved-identifier) */
    __attribute__((visibility("hidden")));

/* Checks what dlopen() reports badly, blocks on or crashes on: a pipe, a library for another
 * architecture, and a truncated library. */
static d9d_status check_file(const char *path)
{
    ElfW(Ehdr) h;
    d9d_status st = D9D_OK;
    struct stat s;
    FILE *f;

    if (strchr(path, '/') == NULL || !d9d_fs_exists(path))
        return D9D_OK;
    D9D_TRY(d9d_fs_check_regular(path));
    f = fopen(path, "rb");
    if (f == NULL)
        return D9D_OK;
    if (fread(&h, sizeof(h), 1, f) == 1 && memcmp(h.e_ident, ELFMAG, SELFMAG) == 0 &&
        fstat(fileno(f), &s) == 0) {
        const uint64_t end = h.e_shoff + (uint64_t)h.e_shnum * h.e_shentsize;

        if (h.e_machine != __ehdr_start.e_machine)
            st = D9D_FAIL(D9D_ECONFIG, "plugin: %s: is for another machine (ELF %d, this is %d)",
                          path, h.e_machine, __ehdr_start.e_machine);
        else if (end > (uint64_t)s.st_size)
            st = D9D_FAIL(
                D9D_ECONFIG,
                "plugin: %s: ends at byte %lld, its sections at %llu; was it copied whole?", path,
                (long long)s.st_size, (unsigned long long)end);
    }
    (void)fclose(f);
    return st;
}

/* dlsym() also finds symbols that are not functions. */
static d9d_status find_symbol(const char *path, d9d_plugin *out, const void **inside)
{
    const d9d_plugin *given;
    void *library;

    D9D_TRY(check_file(path));
    library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (library == NULL)
        return D9D_FAIL(D9D_ECONFIG, "plugin: %s", dlerror());
    given = dlsym(library, "d9d_plugin_table");
    if (given == NULL)
        return D9D_FAIL(D9D_ECONFIG, "%s: has no d9d_plugin_table, which D9D_PLUGIN() defines",
                        path);
    if (given->size < offsetof(d9d_plugin, models))
        return D9D_FAIL(D9D_ECONFIG, "%s: its table has %zu bytes; is it a plugin?", path,
                        given->size);
    if (given->abi != D9D_PLUGIN_ABI)
        return D9D_FAIL(D9D_ECONFIG, "%s: was built for plugins of version %d, this d9d loads %d",
                        path, given->abi, D9D_PLUGIN_ABI);
    D9D_TRY(check_embeds(path, given->embeds));
    *inside = given;
    return copy_table(path, "d9d_plugin", given, given->size, sizeof(*given), out);
}

/* --- its tables ------------------------------------------------------------------------------ */

static bool has_choice(const d9d_table *const *choices, const char *name)
{
    for (; choices != NULL && *choices != NULL; choices++)
        if (strcmp((*choices)->name, name) == 0)
            return true;
    return false;
}

/* True for a name that a configuration can use. */
static bool is_config_name(const char *name)
{
    static const char letters[] =
        "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_.-";

    return name[0] != '\0' && name[strspn(name, letters)] == '\0';
}

static d9d_status check_row(const d9d_plugins *p, size_t k, const char *path, const plugin_row *r)
{
    const plugin_kind *label = &plugin_kinds[k];

    if (r->table == NULL || r->table->name == NULL)
        return D9D_FAIL(D9D_ECONFIG, "%s: a table of the kind \"%s\" has no name", path,
                        label->label);
    if (!is_config_name(r->table->name))
        return D9D_FAIL(D9D_ECONFIG,
                        "%s: the name of a table of the kind \"%s\" is no word of letters, digits "
                        "and _ . -",
                        path, label->label);
    for (const required_member *n = label->needs; n->name != NULL; n++) {
        void *member;

        memcpy(&member, (const char *)r + n->offset, sizeof(member));
        if (member == NULL)
            return D9D_FAIL(D9D_ECONFIG, "%s: the %s \"%s\" has no %s%s", path, label->label,
                            r->table->name, n->name, n->reason != NULL ? n->reason : "");
    }
    if (has_choice(label->built_in, r->table->name) ||
        has_choice(p->choices[k].data, r->table->name))
        return D9D_FAIL(D9D_ECONFIG, "%s: the %s \"%s\" is there already", path, label->label,
                        r->table->name);
    return D9D_OK;
}

/* Copies the key table in the member at `offset` of a row into this library's layout. */
static d9d_status copy_key_table(d9d_plugins *p, const char *path, plugin_row *r, size_t offset,
                                 d9d_table **out)
{
    char *member = (char *)r + offset;
    const d9d_table *given;
    d9d_status st;

    *out = NULL;
    memcpy(&given, member, sizeof(given));
    if (given == NULL)
        return D9D_OK;
    st = d9d_config_extend(given, NULL, 0, &p->arena, out);
    if (st != D9D_OK)
        return D9D_FAIL(st, "%s: %s", path, d9d_err_message());
    memcpy(member, out, sizeof(*out));
    return D9D_OK;
}

/* Copies the family of a model provider, if it has one, and its key table. */
static d9d_status copy_family(d9d_plugins *p, const char *path, d9d_model_provider *m)
{
    const d9d_family *given = m->family;
    d9d_family *f;
    d9d_table *config;
    const char *lacks;
    d9d_status st;

    if (given == NULL)
        return D9D_OK;
    f = d9d_arena_alloc(&p->arena, sizeof(*f));
    if (f == NULL)
        return D9D_FAIL(D9D_ENOMEM, "%s: its family", path);
    D9D_TRY(copy_table(path, "family", given, given->size, sizeof(*f), f));
    lacks = f->class_name == NULL                  ? "class_name"
            : f->config == NULL                    ? "config"
            : f->layer < sizeof(d9d_decoder_layer) ? "layer, the size of its struct"
            : f->init == NULL                      ? "init"
            : f->forward == NULL                   ? "forward"
                                                   : NULL;
    if (lacks != NULL)
        return D9D_FAIL(D9D_ECONFIG, "%s: the family \"%s\" has no %s", path, m->table->name,
                        lacks);
    st = d9d_config_extend(f->config, NULL, 0, &p->arena, &config);
    if (st != D9D_OK)
        return D9D_FAIL(st, "%s: %s", path, d9d_err_message());
    f->config = config;
    m->family = f;
    return D9D_OK;
}

/* Text in files of adapters must be a JSON object: else a run fails when it writes them. */
static d9d_status check_fields(const char *path, const char *word, const char *label,
                               const char *text)
{
    json_t *object = NULL;
    bool is_object;

    if (text == NULL)
        return D9D_OK;
    is_object =
        d9d_json_parse(word, text, strlen(text), &object) == D9D_OK && json_is_object(object);
    json_decref(object);
    return is_object ? D9D_OK
                     : D9D_FAIL(D9D_ECONFIG,
                                "%s: the files of the method \"%s\" have %s that are "
                                "no JSON object: %s",
                                path, word, label, text);
}

static d9d_status check_adapter_files(const char *path, const char *word,
                                      const d9d_adapter_kind *kind)
{
    const d9d_adapter_files *files = kind->files;
    d9d_status st;

    if (kind->forward == NULL)
        return D9D_FAIL(D9D_ECONFIG,
                        "%s: the kind of the method \"%s\" has files of its own and no forward",
                        path, word);
    if (files->alpha != NULL && files->rank == NULL)
        return D9D_FAIL(D9D_ECONFIG, "%s: the files of the method \"%s\" have an alpha and no rank",
                        path, word);
    if (d9d_adapters_is_built_in(files->peft_type))
        return D9D_FAIL(D9D_ECONFIG,
                        "%s: the method \"%s\" has files of the peft_type \"%s\", which d9d reads "
                        "itself",
                        path, word, files->peft_type);
    st = d9d_adapter_kind_check(kind);
    if (st != D9D_OK)
        return D9D_FAIL(st, "%s: %s", path, d9d_err_message());
    D9D_TRY(check_fields(path, word, "fields", files->fields));
    return check_fields(path, word, "needs", files->needs);
}

/* Adds the kind of adapters of a method, if it has files of its own. */
static d9d_status add_adapter_kind(d9d_plugins *p, const char *path, const d9d_peft_method *method)
{
    const char *word = method->table->name;
    const d9d_adapter_kind *kind = method->kind;

    if (kind == NULL)
        return D9D_OK;
    if (kind->size != sizeof(*kind))
        return D9D_FAIL(D9D_ECONFIG,
                        "%s: the kind of the method \"%s\" says that it has %zu bytes, here it has "
                        "%zu; its size comes first, sizeof the struct",
                        path, word, kind->size, sizeof(*kind));
    if (kind->files == NULL || kind->files->peft_type == NULL)
        return D9D_FAIL(D9D_ECONFIG,
                        "%s: the kind of the method \"%s\" has no files with a peft_type", path,
                        word);
    D9D_TRY(check_adapter_files(path, word, kind));
    for (size_t i = 0; i < p->adapter_kinds.len; i++)
        if (strcmp(p->adapter_kinds.data[i]->files->peft_type, kind->files->peft_type) == 0)
            return D9D_FAIL(D9D_ECONFIG,
                            "%s: the method \"%s\" has files of the peft_type \"%s\", as "
                            "another method",
                            path, word, kind->files->peft_type);
    D9D_TRY(D9D_VEC_PUSH(&p->adapter_kinds, kind));
    D9D_TRY(D9D_VEC_PUSH(&p->adapter_kinds, NULL));
    p->adapter_kinds.len--; /* drop the terminating NULL */
    return D9D_OK;
}

/* Copies a row and its key tables into this library's layout. */
static d9d_status copy_row(d9d_plugins *p, size_t k, const char *path, const void *given)
{
    plugin_row *r = d9d_arena_alloc(&p->arena, plugin_kinds[k].size);
    d9d_table *table, *other;

    if (r == NULL)
        return D9D_FAIL(D9D_ENOMEM, "%s: its %s", path, plugin_kinds[k].label);
    if (*(const size_t *)given < sizeof(plugin_row))
        return D9D_FAIL(D9D_ECONFIG,
                        "%s: a table of the kind \"%s\" says that it has %zu bytes; its size comes "
                        "first, sizeof the struct",
                        path, plugin_kinds[k].label, *(const size_t *)given);
    D9D_TRY(copy_table(path, plugin_kinds[k].label, given, *(const size_t *)given,
                       plugin_kinds[k].size, r));
    D9D_TRY(check_row(p, k, path, r));
    D9D_TRY(copy_key_table(p, path, r, offsetof(plugin_row, table), &table));
    table->row = r;
    for (const size_t *at = plugin_kinds[k].tables; *at != 0; at++)
        D9D_TRY(copy_key_table(p, path, r, *at, &other));
    if (k == MODELS)
        D9D_TRY(copy_family(p, path, (d9d_model_provider *)(void *)r));
    if (k == PEFT_METHODS)
        D9D_TRY(add_adapter_kind(p, path, (const d9d_peft_method *)(const void *)r));
    D9D_TRY(D9D_VEC_PUSH(&p->choices[k], table));
    D9D_TRY(D9D_VEC_PUSH(&p->choices[k], NULL));
    p->choices[k].len--; /* drop the terminating NULL */
    return D9D_OK;
}

/* The path where the dynamic loader found it. */
static d9d_status store_file_path(d9d_plugins *p, const char *path, const void *inside)
{
    Dl_info of;
    const char *file = dladdr(inside, &of) != 0 ? of.dli_fname : path;

    file = d9d_arena_strndup(&p->arena, file, strlen(file));
    return file != NULL ? D9D_VEC_PUSH(&p->files, file)
                        : D9D_FAIL(D9D_ENOMEM, "%s: its file's name", path);
}

static d9d_status load_plugin(d9d_plugins *p, const char *path)
{
    const void *inside = NULL;
    d9d_plugin table;

    D9D_TRY(find_symbol(path, &table, &inside));
    D9D_TRY(store_file_path(p, path, inside));
    for (size_t k = 0; k < N_PLUGIN_KINDS; k++) {
        const void *const *list;

        memcpy(&list, (const char *)&table + plugin_kinds[k].list, sizeof(list));
        for (; list != NULL && *list != NULL; list++)
            D9D_TRY(copy_row(p, k, path, *list));
    }
    return table.events != NULL ? D9D_VEC_PUSH(&p->events, table.events) : D9D_OK;
}

/* --- the plugins of a configuration --------------------------------------------------- */

/* The path of a library, or the name that dlopen() should search for. */
static const char *find_library(d9d_arena *a, const char *config, const char *name)
{
    const char *slash = strrchr(config, '/');
    const int dir = slash != NULL ? (int)(slash - config) : 1;
    const char *beside;

    if (name[0] == '/' || (slash == NULL && strchr(name, '/') != NULL))
        return name;
    beside = d9d_arena_printf(a, "%.*s/%s", dir, slash != NULL ? config : ".", name);
    return beside == NULL || strchr(name, '/') != NULL || d9d_fs_exists(beside) ? beside : name;
}

static d9d_status load_by_name(d9d_plugins *p, const char *config, const json_t *name)
{
    const char *path;

    if (!json_is_string(name) || json_string_length(name) == 0)
        return D9D_FAIL(D9D_ECONFIG, "%s: plugin: expected the name of a shared library, or a list",
                        config);
    path = find_library(&p->arena, config, json_string_value(name));
    return path != NULL ? load_plugin(p, path) : D9D_FAIL(D9D_ENOMEM, "%s: plugin", config);
}

static d9d_status load_all(d9d_plugins *p, const char *config, const json_t *names)
{
    if (names == NULL)
        return D9D_OK;
    if (!json_is_array(names))
        return load_by_name(p, config, names);
    if (json_array_size(names) > PLUGINS_MAX)
        return D9D_FAIL(D9D_ECONFIG, "%s: plugin: %zu of them, at most %d", config,
                        json_array_size(names), PLUGINS_MAX);
    for (size_t i = 0; i < json_array_size(names); i++)
        D9D_TRY(load_by_name(p, config, json_array_get(names, i)));
    return D9D_OK;
}

d9d_status d9d_plugins_open(const json_t *doc, const char *path, d9d_plugins **out)
{
    d9d_plugins *p = calloc(1, sizeof(*p));
    d9d_status st;

    if (p == NULL)
        return D9D_FAIL(D9D_ENOMEM, "plugins: %zu bytes", sizeof(*p));
    st = load_all(p, path, json_object_get(doc, "plugin"));
    if (st == D9D_OK)
        *out = p;
    else
        d9d_plugins_close(p);
    return st;
}

void d9d_plugins_close(d9d_plugins *p)
{
    if (p == NULL)
        return;
    for (size_t k = 0; k < N_PLUGIN_KINDS; k++)
        D9D_VEC_RELEASE(&p->choices[k]);
    D9D_VEC_RELEASE(&p->adapter_kinds);
    D9D_VEC_RELEASE(&p->events);
    D9D_VEC_RELEASE(&p->files);
    d9d_arena_release(&p->arena);
    free(p);
}

d9d_status d9d_plugins_table(d9d_plugins *p, const d9d_table *table, const d9d_table **out)
{
    d9d_config_extension more[N_PLUGIN_KINDS];
    d9d_table *extended;
    size_t n = 0;

    for (size_t k = 0; k < N_PLUGIN_KINDS; k++)
        if (p->choices[k].len > 0)
            more[n++] = (d9d_config_extension){plugin_kinds[k].built_in, p->choices[k].data};
    D9D_TRY(d9d_config_extend(table, more, n, &p->arena, &extended));
    *out = extended;
    return D9D_OK;
}

d9d_status d9d_plugins_models(d9d_plugins *p, const d9d_table *const **out)
{
    const size_t more = p->choices[MODELS].len;
    const d9d_table **all;
    size_t n = 0;

    while (d9d_model_choices[n] != NULL)
        n++;
    all = d9d_arena_alloc(&p->arena, (n + more + 1) * sizeof(*all));
    if (all == NULL)
        return D9D_FAIL(D9D_ENOMEM, "plugins: a list of %zu models", n + more);
    memcpy(all, d9d_model_choices, n * sizeof(*all));
    if (more > 0)
        memcpy(all + n, p->choices[MODELS].data, more * sizeof(*all));
    all[n + more] = NULL;
    *out = all;
    return D9D_OK;
}

const d9d_adapter_kind *const *d9d_plugins_adapter_kinds(const d9d_plugins *p)
{
    return p != NULL ? p->adapter_kinds.data : NULL;
}

size_t d9d_plugins_count(const d9d_plugins *p)
{
    return p != NULL ? p->files.len : 0;
}

const char *d9d_plugins_file(const d9d_plugins *p, size_t i)
{
    return p->files.data[i];
}

d9d_status d9d_plugins_subscribe(const d9d_plugins *p, d9d_job_events *v)
{
    for (size_t i = 0; p != NULL && i < p->events.len; i++)
        D9D_TRY(d9d_job_events_subscribe(v, p->events.data[i], NULL));
    return D9D_OK;
}
