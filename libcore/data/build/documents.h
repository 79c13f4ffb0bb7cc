/* documents.h - pieces of the inputs cut into documents, and those gathered in chunks. */
#ifndef D9DI_DATA_BUILD_DOCUMENTS_H
#define D9DI_DATA_BUILD_DOCUMENTS_H

#include "d9d/data/build/shard.h"
#include "data/build/input_splits.h"
#include "data/build/skipped.h"
#include "data/chat/chat_private.h"

enum { D9DI_CHUNK_BYTES = 1 << 20 };
#define D9DI_MAX_DOCUMENT ((size_t)256 << 20)

/* Where the next document begins. */
typedef struct d9di_document_pos {
    int64_t source, byte, line; /* bytes after decompression; lines of the piece from 1 */
} d9di_document_pos;

typedef struct d9di_document_record {
    size_t offset, len; /* of the chunk's text */
    d9di_document_pos pos;
    size_t n_ids; /* filled by the tokeniser, or by the reader where ids are given */
    bool has_labels;
    d9di_chat_truncation truncation; /* of a chat that was too long */
    bool skipped;                    /* a bad record, without ids */
    d9d_shard_bad_record reason;
} d9di_document_record;

struct d9di_document_source_end {
    int64_t source, bytes; /* as read, after decompression */
};

/* Lines of the source that was read last that began in the piece. */
struct d9di_document_source_lines {
    int64_t source, lines;
};

/* Documents in order until their text is D9DI_CHUNK_BYTES or more, or their unit ends: a
 * piece is a unit, or several where it holds compressed data of more than a part. */
typedef struct d9di_document_chunk {
    d9d_buf text;
    D9D_VEC(d9di_document_record) docs;
    d9d_token_ids ids;
    d9di_token_labels labels;
    int64_t input_split, unit; /* unit of the piece, from 0 */
    bool ends, last;           /* the last of its unit, and of its piece */
    d9di_document_pos next;    /* behind it */
    D9D_VEC(struct d9di_document_source_end) source_ends; /* sources that end in the chunk */
    struct d9di_document_source_lines lines_read;
    d9di_skipped_list skipped; /* filled by the tokeniser */
} d9di_document_chunk;
void d9di_document_chunk_release(d9di_document_chunk *c);

d9d_shard_format d9di_documents_format(const d9d_shard_opts *how, size_t source);
/* Whether documents of this input are its lines. */
bool d9di_documents_are_lines(const d9d_shard_opts *how, size_t source);

typedef struct d9di_documents_reader d9di_documents_reader;
d9d_status d9di_documents_open(const d9d_shard_opts *how, const d9di_input_splits *splits,
                               int64_t unit_bytes, d9di_documents_reader **out);
/* Begin a piece, or its unit `unit`, which begins at `from`. */
void d9di_documents_seek(d9di_documents_reader *r, size_t input_split, int64_t unit,
                         const d9di_document_pos *from);
/* The next chunk of the piece; not to be called behind its last one. */
d9d_status d9di_documents_read(d9di_documents_reader *r, d9di_document_chunk *out);
/* Bytes of all inputs that were read, compressed as they are; for progress. */
uint64_t d9di_documents_consumed(const d9di_documents_reader *r);
void d9di_documents_close(d9di_documents_reader *r);

/* The line of its source that a document of the piece begins at, for sentences; counted
 * where the piece begins in the middle of a file. */
int64_t d9di_documents_line(const d9d_shard_opts *how, const d9di_input_split *input_split,
                            const d9di_document_pos *place);

#endif
