/* documents.h - inputs cut into documents, and those gathered in chunks. */
#ifndef D9DI_DATA_DOCUMENTS_H
#define D9DI_DATA_DOCUMENTS_H

#include "d9d/data/shard.h"
#include "data/jsonl.h"

enum { D9DI_CHUNK_BYTES = 1 << 20 };
#define D9DI_MAX_DOCUMENT ((size_t)256 << 20)

/* Where the next document begins. */
typedef struct d9di_place {
    int64_t source, byte, line; /* bytes after decompression; lines from 1 */
} d9di_place;

typedef struct d9di_document {
    size_t at, len; /* of the chunk's text */
    d9di_place place;
    size_t n_ids; /* filled by the tokeniser */
    bool has_labels;
} d9di_document;

/* Documents in order until their text is D9DI_CHUNK_BYTES or more. */
typedef struct d9di_chunk {
    d9d_buf text;
    D9D_VEC(d9di_document) docs;
    d9d_ids ids;
    d9di_labels labels;
} d9di_chunk;
void d9di_chunk_release(d9di_chunk *c);

/* Whether documents of this input are JSON lines. */
d9d_shard_format d9di_format_of(const d9d_shard_how *how, size_t source);

typedef struct d9di_documents_reader d9di_documents_reader;
d9d_status d9di_documents_open(const d9d_shard_how *how, const d9di_place *from,
                               d9di_documents_reader **out);
/* An empty chunk is the end. */
d9d_status d9di_documents_read(d9di_documents_reader *r, d9di_chunk *out);
/* Behind the last chunk. */
d9di_place d9di_documents_at(const d9di_documents_reader *r);
/* Bytes of all inputs that were read, compressed as they are; for progress. */
uint64_t d9di_documents_consumed(const d9di_documents_reader *r);
/* Bytes that input `source` turned out to have; known when it is behind. */
int64_t d9di_documents_bytes(const d9di_documents_reader *r, size_t source);
void d9di_documents_set_bytes(d9di_documents_reader *r, size_t source, int64_t bytes);
void d9di_documents_close(d9di_documents_reader *r);

#endif
