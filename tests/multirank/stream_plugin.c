/* stream_plugin.c - a stream as a plugin, for stream.bats: row k counts up from k, until as many
 * rows as `rows` have passed by.  Without `rewinds` it cannot be read again. */
#include <string.h>

#include <d9d/tasks/plugin.h>

typedef struct section {
    int64_t rows;
} section;
static const d9d_key keys[] = {
    D9D_KEY_INT(section, rows, D9D_REQUIRED, 1, 1 << 20, "until the stream ends"),
    D9D_KEY_END,
};
static const d9d_table once_table = D9D_TABLE(section, "once", keys, "a stream that goes by");
static const d9d_table again_table =
    D9D_TABLE(section, "again", keys, "one that can be read again");
static const d9d_table half_table = D9D_TABLE(section, "half", keys, "one that lacks a function");

enum { LENGTH = 16, VOCAB = 100 };

static d9d_status info(void *self, d9d_dataset_info *out)
{
    (void)self;
    *out = (d9d_dataset_info){.samples = D9D_DATASET_STREAM, .longest = LENGTH, .vocab = VOCAB};
    return D9D_OK;
}

static d9d_status sample(void *self, int64_t k, int64_t length, int32_t *ids, int32_t *labels)
{
    (void)self;
    for (int64_t i = 0; i < length; i++) {
        ids[i] = (int32_t)((k * 7 + i) % VOCAB);
        labels[i] = (int32_t)((k * 7 + i + 1) % VOCAB);
    }
    return D9D_OK;
}

static d9d_status poll(void *self, int64_t k, d9d_dataset_presence *out)
{
    *out = k < ((const section *)self)->rows ? D9D_DATASET_PRESENT : D9D_DATASET_ENDED;
    return D9D_OK;
}

static d9d_status tell(void *self, int64_t k, d9d_buf *state)
{
    (void)self;
    return d9d_buf_append(state, &k, sizeof(k));
}

static d9d_status seek(void *self, int64_t k, const void *state, size_t n)
{
    (void)self;
    return n == sizeof(k) && memcmp(state, &k, n) == 0
               ? D9D_OK
               : D9D_FAIL(D9D_EINVAL, "again: another place than sample %lld", (long long)k);
}

#define STREAM(word, ...)                                                                          \
    static const d9d_dataset_kind word = {sizeof(word),     &word##_table, .info = info,           \
                                          .sample = sample, .poll = poll,  __VA_ARGS__}
STREAM(once, .forget = NULL);
STREAM(again, .tell = tell, .seek = seek);
STREAM(half, .tell = tell);
static const d9d_dataset_kind *const datasets[] = {&once, &again, &half, NULL};
D9D_PLUGIN(.datasets = datasets);
