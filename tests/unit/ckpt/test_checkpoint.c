/* test_checkpoint.c - directories: shards, index, manifest, verify, diff. */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "d9d/base/rng.h"
#include "d9d/ckpt/dir/checkpoint.h"
#include "d9d/ckpt/dir/manifest.h"
#include "support/unit.h"

/* A source of n tensors t0..t<n-1> of `width` floats each: 1000 i + k. */
struct ramps {
    d9d_safetensors_tensor *t;
    char (*names)[16];
    uint64_t key;
    int reads;
    size_t broken; /* reading this tensor (counted from 1) fails; 0: none */
};

static const d9d_safetensors_tensor *ramp_at(void *self, size_t i)
{
    return &((struct ramps *)self)->t[i];
}

static const char *ramp_place(void *self, size_t i)
{
    (void)self, (void)i;
    return "ramps";
}

static d9d_status ramp_read(void *self, size_t i, uint64_t at, void *dst, uint64_t n)
{
    struct ramps *r = self;
    float *v = dst;

    assert_true(at % 4 == 0 && n % 4 == 0);
    if (i + 1 == r->broken)
        return D9D_FAIL(D9D_EIO, "t%zu: cannot be read", i);
    r->reads++;
    for (uint64_t k = 0; k < n / 4; k++)
        v[k] = (float)(i * 1000 + at / 4 + k);
    return D9D_OK;
}

static void ramp_identify(void *self, d9d_hasher *h)
{
    d9d_hasher_add(h, &((struct ramps *)self)->key, sizeof(uint64_t));
}

static d9d_tensor_source ramps_open(struct ramps *r, int n, int64_t width)
{
    *r = (struct ramps){.t = calloc((size_t)n, sizeof(*r->t)),
                        .names = calloc((size_t)n, sizeof(*r->names))};
    assert_non_null(r->t);
    assert_non_null(r->names);
    for (int i = 0; i < n; i++) {
        (void)snprintf(r->names[i], sizeof(r->names[i]), "t%d", i);
        r->t[i] = (d9d_safetensors_tensor){.name = r->names[i],
                                           .dtype = D9D_F32,
                                           .ndim = 1,
                                           .shape = {width},
                                           .bytes = (uint64_t)width * 4};
    }
    return (d9d_tensor_source){.self = r,
                               .n = (size_t)n,
                               .at = ramp_at,
                               .path = ramp_place,
                               .read = ramp_read,
                               .fingerprint = ramp_identify};
}

static void ramps_close(struct ramps *r)
{
    free(r->t);
    free(r->names);
}

/* The mapping that copies a source unchanged. */
struct plan {
    d9d_mapper *m;
    d9d_map_plan *p;
};

static struct plan plan_open(const d9d_tensor_source *src)
{
    struct plan x;

    assert_ok(d9d_mapper_create(&x.m));
    for (size_t i = 0; i < src->n; i++)
        assert_ok(d9d_mapper_identity(x.m, src->at(src->self, i)->name));
    assert_ok(d9d_map_plan_create(x.m, src, NULL, &x.p));
    return x;
}

static void plan_close(struct plan *x)
{
    d9d_map_plan_free(x->p);
    d9d_mapper_free(x->m);
}

/* Writes the tensors into `dir` with this shard size. */
static void make(const char *dir, int n, int64_t width, uint64_t shard_bytes)
{
    struct ramps r;
    d9d_tensor_source src = ramps_open(&r, n, width);
    struct plan x = plan_open(&src);
    d9d_shard_sink *s;
    d9d_tensor_sink sink;

    assert_ok(d9d_fs_mkdirs(dir));
    assert_ok(d9d_shard_sink_create(dir, shard_bytes, &s));
    sink = d9d_shard_sink_tensor_sink(s);
    assert_ok(d9d_map_plan_run(x.p, &sink, 1, NULL));
    assert_ok(d9d_shard_sink_end(s));
    d9d_shard_sink_free(s);
    plan_close(&x);
    ramps_close(&r);
}

static void put_byte(const char *path, long at, int value)
{
    int fd = open(path, O_WRONLY | O_CLOEXEC);
    unsigned char c = (unsigned char)value;

    assert_true(fd >= 0);
    assert_int_equal(pwrite(fd, &c, 1, at), 1);
    assert_int_equal(close(fd), 0);
}

static void shards_are_filled_in_order(void **state)
{
    d9d_checkpoint *c;
    float v[4];

    (void)state;
    make("many", 5, 4, 40); /* 16 bytes each: two per shard */
    assert_true(d9d_fs_exists("many/model-00003-of-00003.safetensors"));
    assert_false(d9d_fs_exists("many/model.safetensors"));
    assert_ok(d9d_checkpoint_open("many//", &c));
    assert_string_equal(d9d_checkpoint_dir(c), "many");
    assert_int_equal(d9d_checkpoint_count(c), 5);
    assert_string_equal(d9d_checkpoint_file_path(c, 4), "many/model-00003-of-00003.safetensors");
    assert_non_null(d9d_checkpoint_find(c, "t3"));
    assert_null(d9d_checkpoint_find(c, "t5"));
    assert_ok(d9d_checkpoint_read(c, 3, 4, v, 8));
    assert_true(v[0] == 3001 && v[1] == 3002);
    d9d_checkpoint_close(c);

    make("large", 2, 100, 1); /* each is larger than the shard size */
    assert_true(d9d_fs_exists("large/model-00002-of-00002.safetensors"));
    make("one", 2, 4, 1 << 20);
    assert_true(d9d_fs_exists("one/model.safetensors"));
    assert_false(d9d_fs_exists("one/" D9D_CHECKPOINT_INDEX_NAME));
    assert_fails_like(d9d_checkpoint_open("nothing", &c), D9D_ENOTFOUND, "nothing: neither");
}

static void an_unfinished_sink_does_not_end(void **state)
{
    struct ramps r;
    d9d_tensor_source src = ramps_open(&r, 3, 4);
    struct plan x = plan_open(&src);
    d9d_shard_sink *s;
    d9d_tensor_sink sink;

    (void)state;
    r.broken = 2;
    assert_ok(d9d_shard_sink_create(".", 16, &s));
    sink = d9d_shard_sink_tensor_sink(s);
    assert_fails(d9d_map_plan_run(x.p, &sink, 1, NULL), D9D_EIO, "t1: cannot be read");
    assert_fails(d9d_shard_sink_end(s), D9D_EINVAL, ".: chunk 1 of 4 was not written");
    d9d_shard_sink_free(s);
    plan_close(&x);
    ramps_close(&r);
}

static void shards_are_numbered_with_five_digits(void **state)
{
    struct ramps r;
    d9d_tensor_source src = ramps_open(&r, D9D_MAX_SHARDS + 1, 0);
    d9d_shard_sink *s;
    d9d_tensor_sink sink;
    size_t n_items;
    uint64_t bytes;

    (void)state;
    for (size_t i = 0; i < src.n; i++)
        r.t[i].bytes = 4;
    assert_ok(d9d_shard_sink_create("nowhere", 1, &s));
    sink = d9d_shard_sink_tensor_sink(s);
    assert_fails(sink.begin(sink.self, r.t, src.n, &n_items, &bytes), D9D_ECONFIG,
                 "nowhere: shards of 1 bytes would be 100000, at most 99999 can be numbered; "
                 "allow larger ones");
    d9d_shard_sink_free(s);
    ramps_close(&r);
}

/* --- resuming --------------------------------------------------------------------------------- */

enum { WIDE = 5 << 20 }; /* floats: 20 MiB, two chunks per tensor */

/* Runs with the journal; returns the result and the log messages. */
static d9d_status run_on(struct ramps *r, const d9d_tensor_source *src, d9d_shard_sink **out)
{
    struct plan x = plan_open(src);
    d9d_shard_sink *s;
    d9d_hash key;
    d9d_tensor_sink sink;
    d9d_status st;

    r->reads = 0;
    assert_ok(d9d_map_plan_fingerprint(x.p, &key));
    assert_ok(d9d_shard_sink_create("d", 1, &s));
    assert_ok(d9d_shard_sink_text(s, "note", "hello", 5));
    d9d_shard_sink_resume(s, key, NULL);
    sink = d9d_shard_sink_tensor_sink(s);
    st = d9d_map_plan_run(x.p, &sink, 1, NULL);
    plan_close(&x);
    *out = s;
    return st;
}

static void finish(d9d_shard_sink *s)
{
    d9d_manifest *m;
    d9d_arena a = {0};
    d9d_fs_names names;

    assert_ok(d9d_shard_sink_end(s));
    assert_ok(d9d_shard_sink_manifest(s, NULL));
    d9d_shard_sink_free(s);
    assert_ok(d9d_manifest_open("d", &m));
    assert_ok(d9d_manifest_check(m, 1, NULL, NULL, NULL));
    assert_int_equal(d9d_manifest_count(m), 5);
    d9d_manifest_close(m);
    /* Three shards, index, note, manifest, and no other files. */
    assert_ok(d9d_fs_list("d", &a, &names));
    assert_int_equal(names.n, 6);
    d9d_arena_release(&a);
}

static void an_interrupted_run_goes_on(void **state)
{
    struct ramps r;
    d9d_tensor_source src = ramps_open(&r, 3, WIDE);
    d9d_shard_sink *s;

    (void)state;
    assert_ok(d9d_fs_mkdirs("d"));
    r.broken = 2;
    assert_fails(run_on(&r, &src, &s), D9D_EIO, "t1: cannot be read");
    d9d_shard_sink_free(s);
    assert_int_equal(r.reads, 2);
    /* Foreign lines, a truncated line, and invalid lines. */
    assert_ok(d9d_fs_write_atomic("d/stray", "x", 1));
    assert_ok(d9d_fs_write_atomic("d/model-00007-of-00009.safetensors", "x", 1));
    assert_int_equal(system("printf 'x y\\n99 0\\n5 00112233445566778899aabb' >>d/.d9d-chunks.0"),
                     0);
    r.broken = 0;
    assert_ok(run_on(&r, &src, &s));
    assert_int_equal(r.reads, 4); /* the other two tensors */
    finish(s);
    ramps_close(&r);
}

/* After a power failure a file may end in zeros. */
static void a_hole_in_a_journal_hides_nothing(void **state)
{
    struct ramps r;
    d9d_tensor_source src = ramps_open(&r, 3, WIDE);
    d9d_shard_sink *s;
    uint64_t size;

    (void)state;
    assert_ok(d9d_fs_mkdirs("d"));
    r.broken = 2;
    assert_fails(run_on(&r, &src, &s), D9D_EIO, "t1: cannot be read");
    d9d_shard_sink_free(s);
    assert_ok(d9d_fs_size("d/.d9d-chunks.0", &size));
    assert_int_equal(truncate("d/.d9d-chunks.0", (off_t)size + 100), 0);
    r.broken = 3;
    assert_fails(run_on(&r, &src, &s), D9D_EIO, "t2: cannot be read");
    d9d_shard_sink_free(s);
    r.broken = 0;
    assert_ok(run_on(&r, &src, &s));
    assert_int_equal(r.reads, 2); /* the last tensor */
    finish(s);
    ramps_close(&r);
}

static void damaged_chunks_are_made_again(void **state)
{
    struct ramps r;
    d9d_tensor_source src = ramps_open(&r, 3, WIDE);
    d9d_shard_sink *s;

    (void)state;
    assert_ok(d9d_fs_mkdirs("d"));
    r.broken = 3;
    assert_fails(run_on(&r, &src, &s), D9D_EIO, "t2: cannot be read");
    d9d_shard_sink_free(s);
    put_byte("d/model-00001-of-00003.safetensors", 12345, 1); /* chunk 1 of 2 */
    assert_int_equal(truncate("d/model-00002-of-00003.safetensors", 20 << 20), 0); /* chunk 2 */
    r.broken = 0;
    assert_ok(run_on(&r, &src, &s));
    assert_int_equal(r.reads, 4);
    finish(s);
    ramps_close(&r);
}

static void another_key_starts_afresh(void **state)
{
    struct ramps r;
    d9d_tensor_source src = ramps_open(&r, 3, WIDE);
    d9d_shard_sink *s;

    (void)state;
    assert_ok(d9d_fs_mkdirs("d"));
    r.broken = 3;
    assert_fails(run_on(&r, &src, &s), D9D_EIO, "t2: cannot be read");
    d9d_shard_sink_free(s);
    r.broken = 0;
    r.key = 1;
    assert_ok(run_on(&r, &src, &s));
    assert_int_equal(r.reads, 6);
    finish(s);
    ramps_close(&r);
}

/* --- manifest --------------------------------------------------------------------------------- */

static void collect(void *arg, const char *sentence)
{
    assert_ok(d9d_buf_printf(arg, "%s\n", sentence));
}

static void manifests_hold_what_was_given(void **state)
{
    json_t *extra = json_pack("{s:i, s:[s]}", "step", 7, "hosts", "a");
    json_t *bad = json_pack("{s:i}", "files", 7);
    d9d_manifest *m;

    (void)state;
    make("d", 3, 4, 1 << 20);
    assert_ok(d9d_fs_write_atomic("d/notes", "", 0));
    assert_ok(d9d_fs_mkdirs("d/sub/.hidden"));
    assert_ok(d9d_fs_write_atomic("d/sub/inner", "x", 1));
    assert_ok(d9d_fs_write_atomic("d/sub/.hidden/x", "x", 1));
    assert_int_equal(symlink("sub", "d/link"), 0);
    assert_fails(d9d_manifest_write("d", bad, 1, NULL), D9D_EINVAL,
                 "manifest: member \"files\" is its own");
    assert_ok(d9d_manifest_write("d", extra, 2, NULL));
    assert_ok(d9d_manifest_write("d", extra, 1, NULL)); /* it does not list itself */
    assert_ok(d9d_manifest_open("d", &m));
    assert_int_equal(d9d_manifest_count(m), 3);
    assert_string_equal(d9d_manifest_at(m, 2)->name, "sub/inner");
    assert_string_equal(d9d_manifest_at(m, 1)->name, "notes");
    assert_int_equal(d9d_manifest_at(m, 1)->n_chunks, 0);
    assert_int_equal(json_integer_value(json_object_get(d9d_manifest_root(m), "step")), 7);
    assert_null(d9d_manifest_find(m, "sub"));
    assert_ok(d9d_manifest_check_sizes(m));
    assert_ok(d9d_manifest_check(m, 3, NULL, NULL, NULL));
    d9d_manifest_close(m);
    json_decref(extra);
    json_decref(bad);
}

/* The manifest of thousands of arrays over hundreds of ranks. */
static void a_manifest_of_many_ranks_is_read(void **state)
{
    enum { BYTES = 60 << 20 };
    char *text = malloc(BYTES);
    d9d_manifest *m;
    json_t *extra;

    (void)state;
    assert_non_null(text);
    memset(text, 'x', BYTES);
    extra = json_pack("{s:s%}", "tensors", text, (size_t)BYTES);
    free(text);
    make("d", 3, 4, 1 << 20);
    assert_ok(d9d_manifest_write("d", extra, 1, NULL));
    json_decref(extra);
    assert_ok(d9d_manifest_open("d", &m));
    assert_int_equal(json_string_length(json_object_get(d9d_manifest_root(m), "tensors")), BYTES);
    d9d_manifest_close(m);
}

static void manifests_find_what_changed(void **state)
{
    enum { SIZE = (int)D9D_MANIFEST_CHUNK + 100 };
    char *big = calloc(1, SIZE);
    d9d_buf said = {0};
    d9d_manifest *m;

    (void)state;
    assert_non_null(big);
    assert_ok(d9d_fs_mkdirs("d"));
    assert_ok(d9d_fs_write_atomic("d/big", big, SIZE));
    assert_ok(d9d_fs_write_atomic("d/gone", "x", 1));
    assert_ok(d9d_fs_write_atomic("d/short", "xyz", 3));
    free(big);
    assert_ok(d9d_manifest_write("d", NULL, 1, NULL));
    assert_ok(d9d_manifest_open("d", &m));
    put_byte("d/big", (long)D9D_MANIFEST_CHUNK + 5, 1);
    assert_ok(d9d_manifest_check_sizes(m));
    assert_int_equal(unlink("d/gone"), 0);
    assert_int_equal(truncate("d/short", 2), 0);
    assert_fails(d9d_manifest_check_sizes(m), D9D_EVERIFY, "d/gone is missing");
    assert_fails(d9d_manifest_check(m, 2, NULL, collect, &said), D9D_EVERIFY,
                 "d: 3 files or chunks are not as manifest.json says");
    assert_string_equal(said.data,
                        "d/big: bytes 16777216 to 16777316 are not those that were written\n"
                        "d/gone is missing\n"
                        "d/short has 2 bytes, manifest.json says 3\n");
    d9d_buf_release(&said);
    d9d_manifest_close(m);
}

static void a_changed_manifest_is_refused(void **state)
{
    d9d_manifest *m = NULL;
    uint64_t size;

    (void)state;
    assert_ok(d9d_fs_mkdirs("d"));
    assert_ok(d9d_fs_write_atomic("d/a", "x", 1));
    assert_fails_like(d9d_manifest_open("d", &m), D9D_ENOTFOUND, "d/manifest.json");
    assert_ok(d9d_manifest_write("d", NULL, 1, NULL));
    assert_ok(d9d_fs_size("d/manifest.json", &size));
    for (uint64_t at = 0; at < size; at++) {
        d9d_buf text = {0};

        assert_ok(d9d_fs_read("d/manifest.json", 1 << 20, &text));
        text.data[at] ^= 1;
        assert_int_equal(d9d_manifest_parse("d", text.data, text.len, &m), D9D_EFORMAT);
        text.data[at] ^= 1;
        assert_int_equal(d9d_manifest_parse("d", text.data, at, &m), D9D_EFORMAT);
        assert_null(m);
        d9d_buf_release(&text);
    }
}

/* --- verify and diff -------------------------------------------------------------------------- */

static const char findings[] =
    "d/model-00001-of-00002.safetensors: header: byte 0: expected '{'\n"
    "d/stray.safetensors: 1 bytes are too few for a safetensors file\n"
    "d/model-00002-of-00002.safetensors: tensor t2: element 0 is not finite\n"
    "d/notes is not listed in manifest.json\n"
    "d/stray.safetensors is not listed in manifest.json\n"
    "d/model-00001-of-00002.safetensors: bytes 0 to 184 are not those that were written\n"
    "d/model-00002-of-00002.safetensors: bytes 0 to 184 are not those that were written\n"
    "d/model.safetensors.index.json is missing\n";

static void verify_lists_its_findings_in_order(void **state)
{
    d9d_buf said = {0};
    d9d_checkpoint_verify_opts opt = {.jobs = 2, .no_manifest = true};
    d9d_checkpoint_verify_report r;
    d9d_checkpoint *c;
    long at;

    (void)state;
    make("d", 4, 4, 32);
    assert_ok(d9d_checkpoint_verify("d", &opt, &r));
    assert_int_equal(r.files, 2);
    assert_int_equal(r.tensors, 4);
    assert_int_equal(r.bytes, 2 * 184);
    assert_false(r.hashed);
    opt.no_manifest = false;
    assert_fails(d9d_checkpoint_verify("d", &opt, &r), D9D_EVERIFY, "d: 1 findings");
    assert_ok(d9d_manifest_write("d", NULL, 1, NULL));
    assert_ok(d9d_checkpoint_verify("d", &opt, NULL));
    /* Makes t2, the third tensor, contain an infinity: its last byte and the one before. */
    assert_ok(d9d_checkpoint_open("d", &c));
    at = (long)d9d_checkpoint_find(c, "t2")->offset;
    d9d_checkpoint_close(c);
    put_byte("d/model-00002-of-00002.safetensors", at + 3, 0x7f);
    put_byte("d/model-00002-of-00002.safetensors", at + 2, 0x80);
    put_byte("d/model-00001-of-00002.safetensors", 8, 'x');
    assert_int_equal(unlink("d/" D9D_CHECKPOINT_INDEX_NAME), 0);
    assert_ok(d9d_fs_write_atomic("d/stray.safetensors", "x", 1));
    assert_ok(d9d_fs_write_atomic("d/notes", "x", 1));
    assert_ok(d9d_fs_write_atomic("d/.hidden", "x", 1));
    assert_ok(d9d_fs_mkdirs("d/sub"));
    opt.on_finding = collect;
    opt.arg = &said;
    for (opt.jobs = 1; opt.jobs < 4; opt.jobs += 2) {
        said.len = 0;
        assert_fails(d9d_checkpoint_verify("d", &opt, &r), D9D_EVERIFY, "d: 8 findings");
        assert_string_equal(said.data, findings);
    }
    d9d_buf_release(&said);
}

static void check_finding(const char *dir, const char *end)
{
    d9d_buf said = {0};
    const d9d_checkpoint_verify_opts opt = {
        .no_manifest = true, .on_finding = collect, .arg = &said};

    assert_int_equal(d9d_checkpoint_verify(dir, &opt, NULL), D9D_EVERIFY);
    assert_non_null(said.data);
    assert_true(said.len > strlen(end));
    assert_string_equal(said.data + said.len - strlen(end), end);
    d9d_buf_release(&said);
}

/* Tensors of every floating type one after another from an odd offset, over several read blocks. */
static void numbers_are_seen_wherever_chunks_end(void **state)
{
    enum { LEAD = 3, EACH = 600011 };
    static const struct {
        d9d_dtype t;
        const char *bits; /* little endian, of a NaN or an infinity */
    } rows[] = {
        {D9D_BF16, "\x80\x7f"}, {D9D_F32, "\x00\x00\x80\xff"}, {D9D_F64, "\0\0\0\0\0\0\xf0\x7f"},
        {D9D_F8_E4M3, "\xff"},  {D9D_F16, "\x01\x7c"},         {D9D_F8_E5M2, "\x7c"}};
    enum { N = sizeof(rows) / sizeof(rows[0]) };
    const d9d_checkpoint_verify_opts opt = {.jobs = 2, .no_manifest = true};
    d9d_buf head = {0};
    uint64_t end = LEAD, len, start[N];
    int fd;

    (void)state;
    assert_ok(d9d_buf_printf(&head, "12345678{\"lead\":{\"dtype\":\"U8\",\"shape\":[3],"
                                    "\"data_offsets\":[0,3]}"));
    for (size_t i = 0; i < N; i++) {
        start[i] = end;
        end += EACH * d9d_dtype_size(rows[i].t);
        assert_ok(d9d_buf_printf(&head,
                                 ",\"%zu\":{\"dtype\":\"%s\",\"shape\":[%d],"
                                 "\"data_offsets\":[%llu,%llu]}",
                                 i, d9d_dtype_safetensors(rows[i].t), EACH,
                                 (unsigned long long)start[i], (unsigned long long)end));
    }
    assert_ok(d9d_buf_printf(&head, "}"));
    len = head.len - 8;
    memcpy(head.data, &len, 8);
    assert_ok(d9d_fs_mkdirs("d"));
    assert_ok(d9d_fs_write_atomic("d/model.safetensors", head.data, head.len));
    assert_int_equal(truncate("d/model.safetensors", (off_t)(head.len + end)), 0);
    assert_ok(d9d_checkpoint_verify("d", &opt, NULL));
    fd = open("d/model.safetensors", O_WRONLY | O_CLOEXEC);
    assert_true(fd >= 0);
    for (size_t i = 0; i < N; i++) {
        const size_t width = d9d_dtype_size(rows[i].t);
        const d9d_rng rng = {i, 5};

        for (uint64_t k = 0; k < 16; k++) {
            /* Around the end of a read block, and anywhere. */
            const uint64_t chunk = 1 << 19, abs = head.len + start[i];
            const uint64_t edge = ((abs / chunk + 1) * chunk - abs) / width;
            const uint64_t at = k < 6 ? edge - 3 + k : d9d_rng_below(rng, k, EACH);
            const off_t off = (off_t)(abs + at * width);
            char text[64];

            assert_int_equal(pwrite(fd, rows[i].bits, width, off), (ssize_t)width);
            (void)snprintf(text, sizeof(text), "tensor %zu: element %llu is not finite\n", i,
                           (unsigned long long)at);
            check_finding("d", text);
            assert_int_equal(pwrite(fd, "\0\0\0\0\0\0\0", width, off), (ssize_t)width);
        }
    }
    assert_int_equal(close(fd), 0);
    d9d_buf_release(&head);
}

struct kinds {
    int n[D9D_CHECKPOINT_DIFF_ONLY_B + 1];
    d9d_checkpoint_tensor_diff last;
};

static void count_kind(void *arg, const d9d_checkpoint_tensor_diff *d)
{
    struct kinds *k = arg;

    k->n[d->kind]++;
    if (d->kind != D9D_CHECKPOINT_DIFF_VALUES)
        return;
    assert_string_equal(d->name, "t1");
    k->last = *d; /* its pointers are invalid after the call */
}

static void diff_counts_elements(void **state)
{
    enum { BIG = 3000000 }; /* several read blocks */
    struct kinds k = {.n = {0}};
    uint64_t n;

    (void)state;
    make("a", 2, BIG, 1ull << 40);
    make("b", 3, BIG, 1ull << 40);
    {
        d9d_checkpoint *c;
        long at;

        assert_ok(d9d_checkpoint_open("b", &c));
        at = (long)d9d_checkpoint_find(c, "t1")->offset;
        d9d_checkpoint_close(c);
        put_byte("b/model.safetensors", at + 3, 0xc4);               /* 1000 to -1000 */
        put_byte("b/model.safetensors", at + 4L * (BIG - 1) + 3, 0); /* nearly 0 */
    }
    assert_ok(d9d_checkpoint_diff("a", "b", 3, NULL, count_kind, &k, &n));
    assert_int_equal(n, 2);
    assert_int_equal(k.n[D9D_CHECKPOINT_DIFF_EQUAL], 1);
    assert_int_equal(k.n[D9D_CHECKPOINT_DIFF_VALUES], 1);
    assert_int_equal(k.n[D9D_CHECKPOINT_DIFF_ONLY_B], 1);
    assert_int_equal(k.last.n_different, 2);
    assert_true(k.last.max_abs > 3000998 && k.last.max_abs < 3001000);
}

static void others_are_copied(void **state)
{
    (void)state;
    assert_ok(d9d_fs_mkdirs("s/sub"));
    assert_ok(d9d_fs_mkdirs("s/1_Pooling"));
    assert_ok(d9d_fs_write_atomic("s/1_Pooling/config.json", "{}", 2));
    assert_ok(d9d_fs_write_atomic("s/.env", "SECRET=1", 8));
    assert_ok(d9d_fs_write_atomic("s/corpus.jsonl", "{}", 2));
    assert_ok(d9d_fs_mkdirs("t"));
    assert_ok(d9d_fs_write_atomic("s/config.json", "{}", 2));
    assert_ok(d9d_fs_write_atomic("s/merges.txt", "a b", 3));
    assert_ok(d9d_fs_write_atomic("s/x.safetensors", "", 0));
    assert_ok(d9d_fs_write_atomic("s/" D9D_CHECKPOINT_INDEX_NAME, "", 0));
    assert_ok(d9d_fs_write_atomic("s/" D9D_MANIFEST_NAME, "", 0));
    assert_ok(d9d_checkpoint_copy_aux_files("s", "t", NULL));
    assert_true(d9d_fs_exists("t/merges.txt"));
    assert_true(d9d_fs_exists("t/1_Pooling/config.json"));
    for (size_t i = 0; i < 7; i++) {
        static const char *const absent[] = {"t/config.json", "t/x.safetensors",
                                             "t/sub",         "t/" D9D_CHECKPOINT_INDEX_NAME,
                                             "t/.env",        "t/" D9D_MANIFEST_NAME,
                                             "t/corpus.jsonl"};

        assert_false(d9d_fs_exists(absent[i]));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        unit_test_in_dir(shards_are_filled_in_order),
        unit_test_in_dir(an_unfinished_sink_does_not_end),
        unit_test_in_dir(shards_are_numbered_with_five_digits),
        unit_test_in_dir(an_interrupted_run_goes_on),
        unit_test_in_dir(a_hole_in_a_journal_hides_nothing),
        unit_test_in_dir(damaged_chunks_are_made_again),
        unit_test_in_dir(another_key_starts_afresh),
        unit_test_in_dir(manifests_hold_what_was_given),
        unit_test_in_dir(a_manifest_of_many_ranks_is_read),
        unit_test_in_dir(manifests_find_what_changed),
        unit_test_in_dir(a_changed_manifest_is_refused),
        unit_test_in_dir(verify_lists_its_findings_in_order),
        unit_test_in_dir(numbers_are_seen_wherever_chunks_end),
        unit_test_in_dir(diff_counts_elements),
        unit_test_in_dir(others_are_copied),
    };

    return cmocka_run_group_tests_name("checkpoint", tests, NULL, NULL);
}
