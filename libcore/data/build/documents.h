/* documents.h - reads input splits as documents, gathered in chunks. */
#ifndef D9DI_DATA_BUILD_DOCUMENTS_H
#define D9DI_DATA_BUILD_DOCUMENTS_H

#include "d9d/data/build/shard.h"
#include "data/build/input_splits.h"
#include "data/chat/chat_private.h"
#include "data/io/skipped.h"

enum { D9DI_CHUNK_BYTES = 1 << 20, D9DI_MAX_PARTS = 4 };
#define D9DI_MAX_DOCUMENT ((size_t)256 << 20)

/* Position of the next document. */
typedef struct d9di_document_pos {
    int64_t source, byte, line; /* bytes after decompression; lines of the input split, from 1 */
} d9di_document_pos;

typedef struct d9di_document_record {
    size_t offset, len; /* range in the chunk's text */
    char separator;     /* of fields, if it is a row of a table; else 0 */
    size_t header;      /* length of the table's header, which ends at `offset` */
    d9di_document_pos pos;
    size_t n_ids; /* set by the tokeniser, or by the reader if ids are given */
    bool has_labels;
    size_t fields;                   /* bytes of its fields' values */
    uint32_t part[D9DI_MAX_PARTS];   /* tokens of each document of a record of answers */
    uint32_t n_parts;                /* 0: the record is one document */
    bool untrained;                  /* a chat without a message that is trained */
    d9di_chat_truncation truncation; /* set for a chat that was too long */
    size_t cut;                      /* tokens of a text that the tokeniser truncated */
    bool twice;                      /* begins with the special tokens that are added to it */
    bool skipped;                    /* a bad record, without ids */
    d9d_shard_bad_record reason;
} d9di_document_record;

struct d9di_document_source_end {
    int64_t source, bytes; /* bytes after decompression */
};

/* Number of lines of the last source that begin in the input split. */
struct d9di_document_source_lines {
    int64_t source, lines;
};

/* Consecutive documents with D9DI_CHUNK_BYTES of text or more, or fewer at the end of their unit.
 * An input split is one unit, or several if it holds compressed data of more than `unit_bytes`. */
typedef struct d9di_document_chunk {
    d9d_buf text;
    D9D_VEC(d9di_document_record) docs;
    d9d_token_ids ids;
    d9di_token_labels labels;
    d9d_buf fields;            /* values of the documents' fields (d9d/data/dataset/field.h) */
    int64_t input_split, unit; /* unit in the input split, from 0 */
    bool ends, last;           /* last chunk of its unit; of its input split */
    d9di_document_pos next;    /* position after the chunk */
    D9D_VEC(struct d9di_document_source_end) source_ends; /* sources that end in this chunk */
    struct d9di_document_source_lines lines_read;
    d9di_skipped_list skipped; /* set by the tokeniser */
} d9di_document_chunk;
void d9di_document_chunk_release(d9di_document_chunk *c);

d9d_shard_format d9di_documents_format(const d9d_shard_opts *opts, size_t source);
/* True if a document of the input may be found from any byte of it: each line is one.  Looks into
 * the input if its name does not tell. */
bool d9di_documents_are_lines(const d9d_shard_opts *opts, size_t source);

typedef struct d9di_documents_reader d9di_documents_reader;
d9d_status d9di_documents_open(const d9d_shard_opts *opts, const d9di_input_splits *splits,
                               int64_t unit_bytes, d9di_documents_reader **out);
/* Starts reading an input split, or its unit `unit`, which begins at `from`. */
void d9di_documents_seek(d9di_documents_reader *r, size_t input_split, int64_t unit,
                         const d9di_document_pos *from);
/* Reads the next chunk of the input split; do not call it after the last one. */
d9d_status d9di_documents_read(d9di_documents_reader *r, d9di_document_chunk *out);
/* Bytes of all inputs read so far (compressed), for progress. */
uint64_t d9di_documents_consumed(const d9di_documents_reader *r);
void d9di_documents_close(d9di_documents_reader *r);

/* The line in its source at which a document of the input split begins, for messages.  If the split
 * begins inside a file, the lines before it are counted. */
int64_t d9di_documents_line(const d9d_shard_opts *opts, const d9di_input_split *input_split,
                            const d9di_document_pos *place);

#endif
