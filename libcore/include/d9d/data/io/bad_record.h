/* bad_record.h - reasons why a record of an input cannot be tokenised. */
#ifndef D9D_DATA_IO_BAD_RECORD_H
#define D9D_DATA_IO_BAD_RECORD_H

#include "d9d/base/status.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef enum d9d_shard_bad_record {
    D9D_SHARD_BAD_UTF8,   /* its text is not valid UTF-8 */
    D9D_SHARD_BAD_JSON,   /* its line is not one JSON object, or its row not one of the table */
    D9D_SHARD_BAD_MEMBER, /* a required member is missing */
    D9D_SHARD_BAD_VALUE,  /* a member has an unusable value, such as an id above the vocabulary */
    D9D_SHARD_BAD_CHAT,   /* the chat template cannot render it */
    D9D_SHARD_BAD_TEXT,   /* the tokenizer refuses its text */
    D9D_SHARD_BAD_REASONS
} d9d_shard_bad_record;
/* "not_utf8", "not_json", "no_member", "bad_value", "chat_not_rendered", "not_tokenized". */
D9D_API const char *d9d_shard_bad_record_name(d9d_shard_bad_record reason);

#ifdef __cplusplus
}
#endif
#endif /* D9D_DATA_IO_BAD_RECORD_H */
