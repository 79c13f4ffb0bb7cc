/* verify_driver.c - damages a checkpoint directory in many ways: verify must find each, and nothing
 * after the damage is repaired.
 *
 *     verify_driver SEED TIMES DIR...
 *
 * DIR is unchanged at the end. */
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "ckpt/dir/list_recursive.h"
#include "d9d/base/rng.h"
#include "d9d/ckpt/dir/checkpoint.h"

struct file {
    char *path;
    d9d_buf bytes; /* original content */
};

struct subject {
    const char *dir;
    d9d_arena arena;
    struct file files[64];
    size_t n, total;
    d9d_rng rng;
    uint64_t counter;
};

static void must(bool holds, const char *what)
{
    if (holds)
        return;
    printf("# %s: %s\n", what, d9d_err_message());
    exit(1);
}

static size_t below(struct subject *s, size_t n)
{
    return (size_t)d9d_rng_below(s->rng, s->counter++, n);
}

static void load(struct subject *s)
{
    d9d_fs_names names = {0};

    must(d9di_list_recursive(s->dir, &s->arena, &names) == D9D_OK, s->dir);
    must(names.n < 64, "too many files");
    for (; s->n < names.n; s->n++) {
        struct file *f = &s->files[s->n];

        f->path = d9d_fs_join(&s->arena, s->dir, names.name[s->n]);
        must(f->path != NULL && d9d_fs_read(f->path, 1 << 26, &f->bytes) == D9D_OK, "load");
        s->total += f->bytes.len;
    }
    must(s->n > 1, "two files at least");
}

static void put(const char *path, const void *p, size_t n)
{
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);

    must(fd >= 0 && write(fd, p, n) == (ssize_t)n && close(fd) == 0, path);
}

static void put_at(const char *path, const void *p, size_t n, size_t at)
{
    int fd = open(path, O_WRONLY | O_CLOEXEC);

    must(fd >= 0 && pwrite(fd, p, n, (off_t)at) == (ssize_t)n && close(fd) == 0, path);
}

static void restore(const struct file *f)
{
    put(f->path, f->bytes.len > 0 ? f->bytes.data : "", f->bytes.len);
}

/* A random file: uniform, or in proportion to its size. */
static struct file *pick(struct subject *s)
{
    size_t at, i = 0;

    if (below(s, 2) == 0)
        return &s->files[below(s, s->n)];
    for (at = below(s, s->total); at >= s->files[i].bytes.len; i++)
        at -= s->files[i].bytes.len;
    return &s->files[i];
}

/* --- damages: each describes itself in `text` and returns whether it changed anything --------- */

static bool change(struct subject *s, char *text, size_t size)
{
    const struct file *f = pick(s);
    /* One time in four near the beginning, where the header is. */
    const size_t n = below(s, 4) == 0 && f->bytes.len > 300 ? 300 : f->bytes.len;
    const size_t at = n > 0 ? below(s, n) : 0;
    const char c = n > 0 ? (char)(f->bytes.data[at] ^ (int)(1 + below(s, 255))) : 0;

    if (n == 0)
        return false;
    (void)snprintf(text, size, "byte %zu of %s", at, f->path);
    put_at(f->path, &c, 1, at);
    return true;
}

static bool cut(struct subject *s, char *text, size_t size)
{
    const struct file *f = pick(s);
    const size_t n = f->bytes.len > 0 ? below(s, f->bytes.len) : 0;

    if (f->bytes.len == 0)
        return false;
    (void)snprintf(text, size, "%s cut to %zu bytes", f->path, n);
    must(truncate(f->path, (off_t)n) == 0, f->path);
    return true;
}

static bool grow(struct subject *s, char *text, size_t size)
{
    const struct file *f = pick(s);
    const size_t more = 1 + below(s, 40);

    (void)snprintf(text, size, "%s longer by %zu bytes", f->path, more);
    must(truncate(f->path, (off_t)(f->bytes.len + more)) == 0, f->path);
    return true;
}

static bool swap(struct subject *s, char *text, size_t size)
{
    const struct file *a = pick(s), *b = pick(s);

    if (a->bytes.len == b->bytes.len && memcmp(a->bytes.data, b->bytes.data, a->bytes.len) == 0)
        return false;
    (void)snprintf(text, size, "%s and %s in each other's place", a->path, b->path);
    put(a->path, b->bytes.data, b->bytes.len);
    put(b->path, a->bytes.data, a->bytes.len);
    return true;
}

static bool lose(struct subject *s, char *text, size_t size)
{
    const struct file *f = pick(s);

    (void)snprintf(text, size, "%s missing", f->path);
    must(unlink(f->path) == 0, f->path);
    return true;
}

static bool add(struct subject *s, char *text, size_t size)
{
    static const char *const names[] = {"stray.safetensors", "vocab.txt", "sub/x"};
    const struct file *like = pick(s);
    const char *name = names[below(s, 3)];

    (void)snprintf(text, size, "a new %s like %s", name, like->path);
    must(d9d_fs_mkdirs(d9d_fs_join(&s->arena, s->dir, "sub")) == D9D_OK, s->dir);
    put(d9d_fs_join(&s->arena, s->dir, name), like->bytes.data, like->bytes.len);
    return true;
}

static bool (*const ways[])(struct subject *, char *,
                            size_t) = {change, change, change, change, cut, grow, swap, lose, add};
enum { N_WAYS = sizeof(ways) / sizeof(ways[0]) };

/* --- trials ----------------------------------------------------------------------------------- */

static d9d_status verify(const char *dir)
{
    const d9d_checkpoint_verify_opts opt = {.jobs = 1};

    return d9d_checkpoint_verify(dir, &opt, NULL);
}

static void heal(struct subject *s)
{
    d9d_arena a = {0};
    d9d_fs_names names = {0};

    must(d9di_list_recursive(s->dir, &a, &names) == D9D_OK, s->dir);
    for (size_t i = 0; i < names.n; i++) {
        char *path = d9d_fs_join(&a, s->dir, names.name[i]);
        bool known = false;

        for (size_t k = 0; k < s->n; k++)
            known = known || strcmp(path, s->files[k].path) == 0;
        if (!known)
            must(unlink(path) == 0, path);
    }
    for (size_t k = 0; k < s->n; k++) {
        d9d_buf now = {0};

        if (d9d_fs_read(s->files[k].path, 1 << 27, &now) != D9D_OK ||
            now.len != s->files[k].bytes.len ||
            (now.len > 0 && memcmp(now.data, s->files[k].bytes.data, now.len) != 0))
            restore(&s->files[k]);
        d9d_buf_release(&now);
    }
    d9d_arena_release(&a);
}

static size_t try_ways(struct subject *s, size_t times)
{
    size_t missed = 0, alarms = 0;

    for (size_t i = 0; i < times;) {
        char text[1024];

        if (!ways[below(s, N_WAYS)](s, text, sizeof(text)))
            continue;
        i++;
        if (verify(s->dir) == D9D_OK) {
            printf("# not found: %s\n", text);
            missed++;
        }
        heal(s);
        if (i % 50 == 0 && verify(s->dir) != D9D_OK) {
            printf("# false alarm: %s\n", d9d_err_message());
            alarms++;
        }
    }
    return missed + alarms;
}

static bool run(const char *dir, uint64_t seed, size_t times)
{
    struct subject s = {.dir = dir, .rng = {seed, 0}};
    size_t wrong;

    load(&s);
    must(verify(dir) == D9D_OK, "as it was made");
    wrong = try_ways(&s, times);
    must(verify(dir) == D9D_OK, "whole again");
    for (size_t i = 0; i < s.n; i++)
        d9d_buf_release(&s.files[i].bytes);
    d9d_arena_release(&s.arena);
    return wrong == 0;
}

int main(int argc, char **argv)
{
    int failed = 0;

    for (int i = 3; i < argc; i++) {
        const uint64_t seed = strtoull(argv[1], NULL, 10) + (uint64_t)i;
        const size_t times = strtoull(argv[2], NULL, 10);
        const char *slash = strrchr(argv[i], '/');
        const bool ok = run(argv[i], seed, times);

        printf("%sok %d - %s: damage of %zu kinds and places is found, seed %" PRIu64 "\n",
               ok ? "" : "not ", i - 2, slash != NULL ? slash + 1 : argv[i], times, seed);
        failed |= !ok;
    }
    printf("1..%d\n", argc - 3);
    return failed;
}
