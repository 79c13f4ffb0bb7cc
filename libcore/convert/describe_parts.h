/* describe_parts.h - shared by the parts of describe.c. */
#ifndef D9DI_CONVERT_DESCRIBE_PARTS_H
#define D9DI_CONVERT_DESCRIBE_PARTS_H

#include "d9d/convert/describe.h"

/* Set "tokenizer" and "chat_template" by the files of `dir`; NULL: none. */
d9d_status d9di_describe_text_files(const char *dir, json_t *out);
/* Append a d9d.model.v1 document as text. */
d9d_status d9di_describe_text(const json_t *doc, d9d_buf *out);

#endif /* D9DI_CONVERT_DESCRIBE_PARTS_H */
