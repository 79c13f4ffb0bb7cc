/* st_file.h - a safetensors file that is not one: its beginning in memory. */
#ifndef D9DI_CKPT_ST_FILE_H
#define D9DI_CKPT_ST_FILE_H

#include "d9d/ckpt/safetensors.h"

/* What d9d_st_open() says of a file of `size` bytes that begins with these n; EINVAL when its
 * header goes on beyond them.  Its tensors cannot be read. */
d9d_status d9di_st_parse(const char *path, const void *head, size_t n, uint64_t size,
                         d9d_st_file **out);

#endif /* D9DI_CKPT_ST_FILE_H */
