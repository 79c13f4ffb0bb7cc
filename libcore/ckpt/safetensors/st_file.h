/* st_file.h - headers of safetensors files without the files. */
#ifndef D9DI_CKPT_SAFETENSORS_ST_FILE_H
#define D9DI_CKPT_SAFETENSORS_ST_FILE_H

#include "d9d/ckpt/safetensors/safetensors.h"

/* What d9d_safetensors_open() says of a file of `size` bytes that begins with these n; EINVAL when
 * its header goes on beyond them.  Its tensors cannot be read. */
d9d_status d9di_safetensors_parse(const char *path, const void *head, size_t n, uint64_t size,
                                  d9d_safetensors_file **out);
/* Keep what the header said and close the file: a directory may have more than can be open. */
void d9di_safetensors_close_fd(d9d_safetensors_file *f);

#endif /* D9DI_CKPT_SAFETENSORS_ST_FILE_H */
