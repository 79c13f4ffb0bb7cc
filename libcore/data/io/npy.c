/* npy.c - see data/io/npy.h. */
#include "data/io/npy.h"

#include <errno.h>
#include <string.h>
#include <sys/mman.h>

#include "d9d/base/fs.h"

enum { MAGIC = 6, MAX_HEADER = 1 << 16 };

/* --- the dictionary --------------------------------------------------------------------------- */

struct scan {
    const char *s, *end;
    const char *where;
};

static d9d_status fail_header(const struct scan *p, const char *what)
{
    return D9D_FAIL(D9D_EFORMAT, "%s: %s in the header of the array", p->where, what);
}

static void skip_blanks(struct scan *p)
{
    while (p->s < p->end && (*p->s == ' ' || *p->s == '\n'))
        p->s++;
}

static bool accept(struct scan *p, char c)
{
    skip_blanks(p);
    if (p->s == p->end || *p->s != c)
        return false;
    p->s++;
    return true;
}

/* Gets the text between quotes. */
static d9d_status get_string(struct scan *p, const char **text, size_t *n)
{
    const char *end;

    if (!accept(p, '\''))
        return fail_header(p, "a string is missing");
    end = memchr(p->s, '\'', (size_t)(p->end - p->s));
    if (end == NULL)
        return fail_header(p, "a string has no end");
    *text = p->s;
    *n = (size_t)(end - p->s);
    p->s = end + 1;
    return D9D_OK;
}

static bool is(const char *text, size_t n, const char *word)
{
    return n == strlen(word) && memcmp(text, word, n) == 0;
}

static d9d_status parse_descr(struct scan *p, d9di_npy *a)
{
    static const struct {
        const char *word;
        d9d_dtype dtype;
    } types[] = {{"<f4", D9D_F32}, {"<i8", D9D_I64}, {"<i4", D9D_I32}, {"|u1", D9D_U8}};
    const char *text;
    size_t n;

    D9D_TRY(get_string(p, &text, &n));
    for (size_t i = 0; i < sizeof(types) / sizeof(types[0]); i++)
        if (is(text, n, types[i].word)) {
            a->dtype = types[i].dtype;
            return D9D_OK;
        }
    return D9D_FAIL(D9D_EFORMAT, "%s: an array of \"%.*s\"; '<f4', '<i8', '<i4' and '|u1' are read",
                    p->where, (int)(n < 20 ? n : 20), text);
}

static d9d_status parse_order(struct scan *p)
{
    static const char word[] = "False";

    skip_blanks(p);
    if ((size_t)(p->end - p->s) < sizeof(word) - 1 || memcmp(p->s, word, sizeof(word) - 1) != 0)
        return D9D_FAIL(D9D_EFORMAT,
                        "%s: an array in Fortran's order; numpy.ascontiguousarray() "
                        "makes one in C's",
                        p->where);
    p->s += sizeof(word) - 1;
    return D9D_OK;
}

static d9d_status parse_dimension(struct scan *p, int64_t *out)
{
    const char *from;

    skip_blanks(p);
    from = p->s;
    for (*out = 0; p->s < p->end && *p->s >= '0' && *p->s <= '9'; p->s++)
        if (__builtin_mul_overflow(*out, 10, out) || __builtin_add_overflow(*out, *p->s - '0', out))
            return fail_header(p, "a dimension is too large");
    return p->s > from ? D9D_OK : fail_header(p, "a dimension is missing");
}

static d9d_status parse_shape(struct scan *p, d9di_npy *a)
{
    if (!accept(p, '('))
        return fail_header(p, "'(' is missing");
    for (a->rank = 0; !accept(p, ')'); a->rank++) {
        if (a->rank == D9DI_NPY_DIMS)
            return fail_header(p, "more than 8 dimensions are");
        D9D_TRY(parse_dimension(p, &a->shape[a->rank]));
        if (!accept(p, ',')) {
            a->rank++;
            return accept(p, ')') ? D9D_OK : fail_header(p, "')' is missing");
        }
    }
    return D9D_OK;
}

static d9d_status parse_header(struct scan *p, d9di_npy *a)
{
    unsigned has = 0;

    if (!accept(p, '{'))
        return fail_header(p, "'{' is missing");
    while (!accept(p, '}')) {
        const char *key;
        size_t n;

        D9D_TRY(get_string(p, &key, &n));
        if (!accept(p, ':'))
            return fail_header(p, "':' is missing");
        if (is(key, n, "descr")) {
            D9D_TRY(parse_descr(p, a));
            has |= 1;
        } else if (is(key, n, "fortran_order")) {
            D9D_TRY(parse_order(p));
            has |= 2;
        } else if (is(key, n, "shape")) {
            D9D_TRY(parse_shape(p, a));
            has |= 4;
        } else {
            return fail_header(p, "an unknown key is");
        }
        if (!accept(p, ',') && (p->s == p->end || *p->s != '}'))
            return fail_header(p, "',' is missing");
    }
    return has == 7 && a->rank >= 1 ? D9D_OK
                                    : fail_header(p, "the type, order or shape is missing");
}

/* --- files ------------------------------------------------------------------------------------ */

d9d_status d9di_npy_parse(const char *where, const void *bytes, size_t n, d9di_npy *out)
{
    const unsigned char *p = bytes;
    const size_t wide = n > MAGIC && p[MAGIC] > 1 ? 4 : 2, start = MAGIC + 2 + wide;
    d9di_npy a = {.bytes = n};
    uint64_t size, header = 0;
    struct scan scan = {.where = where};

    if (n < start || memcmp(p, "\x93NUMPY", MAGIC) != 0 || p[MAGIC] < 1 || p[MAGIC] > 3)
        return D9D_FAIL(D9D_EFORMAT, "%s: is no NumPy array file", where);
    for (size_t i = 0; i < wide; i++)
        header |= (uint64_t)p[MAGIC + 2 + i] << (8 * i);
    if (header > MAX_HEADER || header > n - start)
        return D9D_FAIL(D9D_EFORMAT, "%s: a header of %llu bytes, in a file of %zu", where,
                        (unsigned long long)header, n);
    scan.s = (const char *)p + start;
    scan.end = scan.s + header;
    D9D_TRY(parse_header(&scan, &a));
    size = d9d_dtype_size(a.dtype);
    for (int i = 0; i < a.rank; i++)
        if (!d9d_checked_mul_u64(size, (uint64_t)a.shape[i], &size))
            return D9D_FAIL(D9D_EFORMAT, "%s: its shape is of more than 2^64 bytes", where);
    if (size != n - start - header)
        return D9D_FAIL(D9D_EFORMAT, "%s: has %llu bytes of values, its shape needs %llu", where,
                        (unsigned long long)(n - start - header), (unsigned long long)size);
    a.data = p + start + header;
    *out = a;
    return D9D_OK;
}

d9d_status d9di_npy_open(const char *path, d9di_npy *out)
{
    d9d_file file = {.fd = -1};
    uint64_t bytes;
    void *map;
    d9d_status st;

    D9D_TRY(d9d_fs_size(path, &bytes));
    if (bytes == 0)
        return D9D_FAIL(D9D_EFORMAT, "%s: is no NumPy array file", path);
    D9D_TRY(d9d_file_open(path, &file));
    map = mmap(NULL, bytes, PROT_READ, MAP_SHARED, file.fd, 0);
    d9d_file_release(&file);
    if (map == MAP_FAILED)
        return D9D_FAIL(D9D_EIO, "%s: cannot map %llu bytes: %s", path, (unsigned long long)bytes,
                        strerror(errno));
    st = d9di_npy_parse(path, map, bytes, out);
    if (st == D9D_OK)
        out->map = map;
    else
        munmap(map, bytes);
    return st;
}

void d9di_npy_release(d9di_npy *a)
{
    if (a->map != NULL)
        munmap(a->map, a->bytes);
    *a = (d9di_npy){0};
}
