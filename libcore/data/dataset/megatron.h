/* megatron.h - the indexed token files of Megatron-LM: tokens in NAME.bin, the locations of
 * sequences in NAME.idx.  All little endian:
 *
 *     NAME.idx   "MMIDIDX\0\0", u64 version 1, u8 type, u64 sequences S, u64 bounds D,
 *                i32 lengths[S] in tokens, i64 pointers[S] in bytes of NAME.bin,
 *                i64 documents[D]: document d is sequences [documents[d], documents[d + 1])
 *     type       1 u8, 2 i8, 3 i16, 4 i32, 5 i64, 8 u16 (6 and 7 are no integers)
 */
#ifndef D9DI_DATA_DATASET_MEGATRON_H
#define D9DI_DATA_DATASET_MEGATRON_H

#include "d9d/base/mem.h"
#include "d9d/data/tokenizer/tokenizer.h"
#include "data/io/input_stream.h"

typedef struct d9di_megatron d9di_megatron;

/* Examines both files.  `path` is NAME.bin or NAME.idx, here and below; ECONFIG for another
 * name. */
d9d_status d9di_megatron_stat(const char *path, d9di_input_stat seen[2]);
d9d_status d9di_megatron_check(const char *path, const d9di_input_stat seen[2]);
/* Opens both files.  EFORMAT: they are inconsistent.  EIO: they differ from `seen`, unless that is
 * NULL. */
d9d_status d9di_megatron_open(const char *path, const d9di_input_stat *seen, d9di_megatron **out);
void d9di_megatron_close(d9di_megatron *m);
int64_t d9di_megatron_documents(const d9di_megatron *m);
/* Appends one byte with the token type, then at most `max_bytes` bytes of document d. */
d9d_status d9di_megatron_read(d9di_megatron *m, int64_t d, size_t max_bytes, d9d_buf *out);

/* Converts what d9di_megatron_read() appended to ids, each less than `vocab`.  EFORMAT: *bad is the
 * first that is not. */
d9d_status d9di_megatron_ids(const char *raw, size_t n, uint32_t vocab, d9d_token_ids *ids,
                             int64_t *bad);

#endif
