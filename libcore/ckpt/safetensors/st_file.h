/* st_file.h - parsing safetensors headers without open files. */
#ifndef D9DI_CKPT_SAFETENSORS_ST_FILE_H
#define D9DI_CKPT_SAFETENSORS_ST_FILE_H

#include "d9d/ckpt/safetensors/safetensors.h"

/* Parses like d9d_safetensors_open() a file of `size` bytes that begins with these n bytes.  EINVAL
 * if the header extends beyond them.  Its tensors cannot be read. */
d9d_status d9di_safetensors_parse(const char *path, const void *head, size_t n, uint64_t size,
                                  d9d_safetensors_file **out);
/* Keeps the header and closes the descriptor: a directory may have more files than can be open. */
void d9di_safetensors_close_fd(d9d_safetensors_file *f);

#endif /* D9DI_CKPT_SAFETENSORS_ST_FILE_H */
