/* text_stream.h - "stream": JSON lines of a file or folder that may grow, as packed rows of tokens.
 *
 *     {"dataset": "web", "source": {"name": "stream", "path": "incoming/", "follow": true,
 *      "tokenizer": "ckpt", "length": 4096, "append_eos": "<|endoftext|>"}}
 *
 * Texts are tokenised in their order and put one behind the other into rows of `length` positions.
 * A text of n tokens has n - 1 positions, each with the next token as target.  A row's end cuts it,
 * and it goes on in the next row:
 *
 *     texts   | a a a a a | b b | c c c c c c ...
 *     rows    | a a a a b | c c c c c | ...          each letter of a row attends to its like
 *
 * Row k depends on what stands before it in the stream and on nothing else.  Its state is the place
 * of the last text of the row before, how many of its positions are used, and a hash of its line,
 * by which a stream that was changed is found out.  What is left at the end and fills no row is not
 * used.
 *
 * Ranks that share the stream (d9d_dataset_share()) tell each other lengths of texts, and no
 * tokens.
 */
#ifndef D9DI_DATA_DATASET_TEXT_STREAM_H
#define D9DI_DATA_DATASET_TEXT_STREAM_H

#include "d9d/config/config.h"

extern const d9d_table d9di_text_stream_table;

#endif
