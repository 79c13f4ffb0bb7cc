/* test_checkpointer_scale.c - manifests of thousands of ranks: Qwen3-235B-A22B with its moments on
 * 4,096 ranks, written by the functions of a save as one rank after the other, without weights.
 * Bounds are bytes, files and memory, which are those of each rank of a real job.  D9D_LONG takes
 * all 94 layers instead of 2. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "d9d/tape/param.h"
#include "support/save_ranks.h"
#include "support/unit.h"

enum { EXPERTS = 64, HIDDEN = 4096, VOCABULARY = 151936, MAX_ARRAYS = 4096, MB = 1 << 20 };

/* --- the model ---------------------------------------------------------------------------- */

static const struct weight {
    const char *name;
    d9d_shape shape;
    bool expert; /* cut by experts first */
} layer_weights[] = {
    {"input_layernorm.weight", {1, {HIDDEN}}, false},
    {"post_attention_layernorm.weight", {1, {HIDDEN}}, false},
    {"self_attn.q_proj.weight", {2, {8192, HIDDEN}}, false},
    {"self_attn.k_proj.weight", {2, {512, HIDDEN}}, false},
    {"self_attn.v_proj.weight", {2, {512, HIDDEN}}, false},
    {"self_attn.o_proj.weight", {2, {HIDDEN, 8192}}, false},
    {"self_attn.q_norm.weight", {1, {128}}, false},
    {"self_attn.k_norm.weight", {1, {128}}, false},
    {"mlp.router.gate.weight", {2, {128, HIDDEN}}, false},
    {"mlp.grouped_experts.gate_proj.weight", {3, {128, 1536, HIDDEN}}, true},
    {"mlp.grouped_experts.up_proj.weight", {3, {128, 1536, HIDDEN}}, true},
    {"mlp.grouped_experts.down_proj.weight", {3, {128, HIDDEN, 1536}}, true},
};
static const struct weight outer_weights[] = {
    {"model.embed_tokens.weight", {2, {VOCABULARY, HIDDEN}}, false},
    {"model.norm.weight", {1, {HIDDEN}}, false},
    {"lm_head.weight", {2, {VOCABULARY, HIDDEN}}, false},
};
enum {
    N_LAYER = sizeof(layer_weights) / sizeof(layer_weights[0]),
    N_OUTER = sizeof(outer_weights) / sizeof(outer_weights[0])
};

static int layers(void)
{
    return unit_is_long() ? 94 : 2;
}

/* The arrays of one rank. */
typedef struct model_set {
    d9d_arena arena;
    d9d_tensor tensors[MAX_ARRAYS];
    d9d_checkpointer_tensor items[MAX_ARRAYS];
    d9d_checkpointer_count counts[MAX_ARRAYS];
    d9d_checkpointer_set set;
} model_set;

static int64_t one_step = 1;

/* Cuts a weight as FSDP does, experts over expert_parallel and then over the ranks that share
 * them; false if the rank has nothing of it. */
static bool cut(const struct weight *w, int rank, int ranks, int64_t *start, d9d_shape *box)
{
    const int dim = w->expert ? 1 : 0;
    const int parts = w->expert ? ranks / EXPERTS : ranks, part = w->expert ? rank / EXPERTS : rank;

    *box = w->shape;
    if (w->expert) {
        box->dim[0] = w->shape.dim[0] / EXPERTS;
        start[0] = rank % EXPERTS * box->dim[0];
    }
    d9d_param_split_even(w->shape.dim[dim], parts, part, &start[dim], &box->dim[dim]);
    return box->dim[dim] > 0;
}

static void add_array(model_set *m, const struct weight *w, const char *name, const char *state,
                      int rank, int ranks)
{
    const size_t i = m->set.n;
    d9d_checkpointer_tensor *t = &m->items[i];
    d9d_shape box;

    *t = (d9d_checkpointer_tensor){
        .name = d9d_arena_printf(&m->arena, "%s%s", name, state),
        .group = *state != '\0' ? "optimizer" : "model",
        .tensor = &m->tensors[i],
        .global_shape = w->shape,
    };
    assert_non_null(t->name);
    if (!cut(w, rank, ranks, t->start, &box))
        return;
    m->tensors[i] = (d9d_tensor){.dtype = D9D_BF16, .shape = box};
    m->set.n++;
}

static void add_weight(model_set *m, const struct weight *w, const char *name, int rank, int ranks)
{
    static const char *const states[] = {"", ".exp_avg", ".exp_avg_sq"};

    for (size_t k = 0; k < 3; k++)
        add_array(m, w, name, states[k], rank, ranks);
    m->counts[m->set.n_counts++] =
        (d9d_checkpointer_count){d9d_arena_strdup(&m->arena, name), &one_step};
}

static void model_of_rank(model_set *m, int rank, int ranks)
{
    d9d_arena_release(&m->arena);
    m->set = (d9d_checkpointer_set){.items = m->items, .counts = m->counts};
    for (size_t i = 0; i < N_OUTER; i++)
        add_weight(m, &outer_weights[i], outer_weights[i].name, rank, ranks);
    for (int l = 0; l < layers(); l++)
        for (size_t i = 0; i < N_LAYER; i++)
            add_weight(m, &layer_weights[i],
                       d9d_arena_printf(&m->arena, "model.layers.%d.%s", l, layer_weights[i].name),
                       rank, ranks);
}

/* --- writing ------------------------------------------------------------------------------ */

static double seconds(void)
{
    struct timespec t;

    (void)clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* What a rank would have written: its two files, of 16 MiB chunks. */
static void write_share(d9di_checkpointer_save *s, model_set *m, int rank)
{
    static d9d_hash hashes[512];
    d9d_manifest_file files[2];
    char names[2][D9D_SLICES_FILE];

    model_of_rank(m, rank, s->ranks);
    save_as_rank(s, rank);
    for (size_t k = 0; k < 2; k++) {
        const char *group = k == 0 ? "model" : "optimizer";
        uint64_t bytes = 0;

        for (size_t i = 0; i < m->set.n; i++)
            if (strcmp(m->set.items[i].group, group) == 0)
                bytes += d9d_tensor_bytes(m->set.items[i].tensor);
        d9d_slices_file_name(group, rank, names[k]);
        files[k] = (d9d_manifest_file){
            names[k], bytes, (bytes + D9D_MANIFEST_CHUNK - 1) / D9D_MANIFEST_CHUNK, hashes};
        assert_true(files[k].n_chunks <= 512);
    }
    assert_ok(d9di_checkpointer_save_write_share(s, &m->set, files, 2));
}

static void write_checkpoint(const char *dir, int ranks)
{
    const d9d_checkpointer_state state = {.step = 1, .parent = -1, .finite = true};
    d9di_checkpointer_save s = save_of_ranks(dir, ranks, D9DI_CHECKPOINTER_RANKS_PER_DIR, &state);
    model_set *m = calloc(1, sizeof(*m));
    double at = seconds(), shares, parts;

    assert_non_null(m);
    for (int rank = 0; rank < ranks; rank++)
        write_share(&s, m, rank);
    shares = seconds() - at;
    at = seconds();
    for (int rank = 0; rank < ranks; rank += s.ranks_per_dir) {
        save_as_rank(&s, rank);
        assert_ok(d9di_checkpointer_save_write_part(&s));
    }
    parts = seconds() - at;
    at = seconds();
    assert_ok(d9di_checkpointer_save_write_root(&s));
    print_message("a rank's share in %.4f s, a directory of %d in %.3f s, the root in %.3f s\n",
                  shares / ranks, s.ranks_per_dir, parts * s.ranks_per_dir / ranks, seconds() - at);
    d9d_arena_release(&m->arena);
    free(m);
    d9di_checkpointer_save_release(&s);
}

static uint64_t size_of(const char *path)
{
    uint64_t bytes = 0;

    assert_ok(d9d_fs_size(path, &bytes));
    return bytes;
}

/* --- reading ------------------------------------------------------------------------------- */

typedef struct parts_seen {
    const d9d_slices *slices;
    bool seen[4096];
    int n, slices_read;
} parts_seen;

static d9d_status see_slice(void *arg, const d9d_slice *slice)
{
    parts_seen *p = arg;
    const int64_t part = slice->rank / p->slices->ranks_per_dir;

    p->n += !p->seen[part];
    p->seen[part] = true;
    p->slices_read++;
    return D9D_OK;
}

/* What one rank does before it reads weights: the root, the check of all its arrays, and the parts
 * that it needs. */
static void read_as_rank(const char *dir, int rank, int ranks, parts_seen *seen)
{
    model_set *m = calloc(1, sizeof(*m));
    d9di_checkpointer_manifest s;
    d9d_checkpointer_state state;

    assert_non_null(m);
    model_of_rank(m, rank, ranks);
    m->set.partial = true; /* arrays with fewer rows than ranks are not on every rank */
    assert_ok(d9d_checkpointer_check(dir, &m->set, &state));
    assert_int_equal(state.step, 1);
    assert_ok(d9di_checkpointer_manifest_open(dir, &s));
    *seen = (parts_seen){.slices = &s.slices};
    for (size_t i = 0; i < m->set.n; i++) {
        const d9d_box box = d9di_checkpointer_tensor_box(&m->set.items[i]);

        assert_ok(d9d_sliced_tensor_visit(d9d_slices_find(&s.slices, m->set.items[i].name), &box,
                                          see_slice, seen));
    }
    assert_true(seen->slices_read >= (int)m->set.n);
    assert_true(seen->slices_read <= 4 * (int)m->set.n);
    d9di_checkpointer_manifest_release(&s);
    d9d_arena_release(&m->arena);
    free(m);
}

/* Runs `work` in a process of its own, and gives the memory that this took, in MB, at most 200. */
enum { MAX_MB = 200 };
static int memory_of(void (*work)(void))
{
    struct rusage before, after;
    int status;
    pid_t child;

    (void)fflush(NULL);
    child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        long mb;

        (void)getrusage(RUSAGE_SELF, &before);
        work();
        (void)getrusage(RUSAGE_SELF, &after);
        mb = (after.ru_maxrss - before.ru_maxrss) / 1024;
        (void)fflush(NULL);
        _exit(mb > MAX_MB ? MAX_MB : (int)mb);
    }
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status));
    return WEXITSTATUS(status);
}

/* Sanitizers and valgrind have memory of their own, and take minutes. */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
enum { IS_SLOW = 1 };
#else
enum { IS_SLOW = 0 };
#endif

static bool bounds_memory(void)
{
    return !IS_SLOW && !unit_is_wrapped();
}

static int all_ranks(void)
{
    return bounds_memory() ? 4096 : 512;
}

static int fewer_ranks(void)
{
    return all_ranks() / 2;
}

static void write_all(void)
{
    write_checkpoint("c", all_ranks());
}

static void read_one(void)
{
    const double at = seconds();
    parts_seen seen;

    read_as_rank("c", fewer_ranks() / 2, fewer_ranks(), &seen);
    print_message("rank %d of %d: %d slices of %d directories, %.3f s\n", fewer_ranks() / 2,
                  fewer_ranks(), seen.slices_read, seen.n, seconds() - at);
}

static void test_thousands_of_ranks(void **state)
{
    enum { ARRAYS_OF_LAYER = 3 * N_LAYER };
    const uint64_t arrays = (uint64_t)(3 * N_OUTER + ARRAYS_OF_LAYER * layers());
    const d9di_checkpointer_save none = {.ranks_per_dir = D9DI_CHECKPOINTER_RANKS_PER_DIR};
    d9d_manifest *m;
    d9d_slices slices;
    parts_seen seen;
    uint64_t root, part;
    int memory;

    (void)state;
    memory = memory_of(write_all);
    print_message("memory of all ranks, one after the other: %d MB\n", memory);
    assert_true(memory < 150 || !bounds_memory());
    root = size_of("c/manifest.json");
    part = size_of("c/ranks-00000/manifest.json");
    print_message("%llu arrays: root %.3f MB, a directory's %.3f MB\n", (unsigned long long)arrays,
                  (double)root * 1e-6, (double)part * 1e-6);
    /* 700 bytes an array, however many ranks; 200 a directory. */
    assert_true(root < arrays * 700 + 200 * all_ranks() / none.ranks_per_dir + 4096);
    assert_true(part < 512 << 10);
    assert_ok(d9d_manifest_open_root("c", &m));
    assert_int_equal(d9d_manifest_count(m), all_ranks() / none.ranks_per_dir);
    assert_ok(d9d_slices_parse(m, "c/manifest.json", &slices));
    assert_int_equal(slices.n, arrays);
    for (size_t i = 0; i < slices.n; i++) { /* every element, in at most two runs */
        assert_true(slices.tensors[i].n_runs <= 2);
        assert_int_equal(d9d_sliced_tensor_volume(&slices.tensors[i]),
                         d9d_shape_numel(&slices.tensors[i].whole));
    }
    d9d_slices_release(&slices);
    d9d_manifest_close(m);
    for (int r = 0; r < 3; r++) {
        const int rank = (int[]){0, fewer_ranks() / 2 - 24, fewer_ranks() - 1}[r];

        /* Twice the slices, of the ranks before and after the cut; experts are elsewhere. */
        read_as_rank("c", rank, fewer_ranks(), &seen);
        assert_true(seen.n <= 6);
    }
    memory = memory_of(read_one);
    print_message("memory of a reader: %d MB\n", memory);
    assert_true(memory < 64 || !bounds_memory());
}

/* No directory gets more than 256 entries, with all groups of files. */
static void test_files_of_a_directory(void **state)
{
    enum { GROUPS = 3 };

    (void)state;
    assert_true(D9DI_CHECKPOINTER_RANKS_PER_DIR * GROUPS + 2 <= 256);
}

#define in_dir(f) cmocka_unit_test_setup_teardown(f, unit_dir_setup, unit_dir_teardown)

int main(void)
{

    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_files_of_a_directory),
        in_dir(test_thousands_of_ranks),
    };

    /* 4,096 files are synced, in memory where that is possible. */
    if (access("/dev/shm", W_OK) == 0)
        (void)setenv("TMPDIR", "/dev/shm", 1);
    return cmocka_run_group_tests_name("checkpointer_scale", tests, NULL, NULL);
}
