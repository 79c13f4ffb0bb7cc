#!/usr/bin/env python3
"""The peers of tests/bench/tokenizer.sh: HF tokenizers, quicktok and gigatoken on one thread.

    python peer_tokenizer.py hf|quicktok|gigatoken TOKENIZER.json CORPUS.jsonl [IDS]

Prints the rate of the first pass and the best one, in MB (10^6 bytes) of text a second of CPU time, over the
ways that the library offers:
HF encode and encode_batch in calls of 256 documents (without special tokens around a text);
quicktok encode_batch on one thread for all documents, and encode_with_special one by one; gigatoken
encode_batch, twice, and one by one.  IDS, when
given, gets what bench_tokenizer writes: per document its count and its ids, 32 bits each.

Needs tokenizers and numpy; quicktok is PyPI's quicktok-v1 with its own Qwen3 vocabulary.
"""
import json
import os
import sys
import time

os.environ["TOKENIZERS_PARALLELISM"] = "false"
import numpy as np  # noqa: E402

BATCH = 256


def hf(path):
    from tokenizers import Tokenizer
    tok = Tokenizer.from_file(path)

    def one_by_one(docs):
        return [tok.encode(d, add_special_tokens=False).ids for d in docs]

    def batches(docs):
        out = []
        for i in range(0, len(docs), BATCH):
            out += [e.ids for e in tok.encode_batch(docs[i:i + BATCH], add_special_tokens=False)]
        return out
    return one_by_one, batches


def quicktok(_path):
    import quicktok
    tok = quicktok.get_encoding("qwen3")

    def one_by_one(docs):
        return [tok.encode_with_special(d) for d in docs]

    def batches(docs):
        flat, ends = tok.encode_batch(docs, 1, True)
        return [flat[a:b] for a, b in zip(ends[:-1], ends[1:])]
    return one_by_one, batches


def gigatoken(path):
    import gigatoken
    tok = gigatoken.Tokenizer(path)

    def one_by_one(docs):
        return [tok.encode(d) for d in docs]

    def batch(docs):
        return tok.encode_batch(docs, parallel=False)
    return batch, batch, one_by_one


def main():
    if len(sys.argv) < 4:
        sys.exit(__doc__)
    name, tokenizer, corpus = sys.argv[1:4]
    ways = {"hf": hf, "quicktok": quicktok, "gigatoken": gigatoken}[name](tokenizer)
    with open(corpus, encoding="utf-8") as f:
        docs = [json.loads(line)["text"] for line in f]
    size = sum(len(d.encode()) for d in docs)
    rates, ids = [], None
    for way in ways:
        start = time.process_time()
        ids = way(docs)
        rates.append(size / (time.process_time() - start) / 1e6)
    print(f"encode {rates[0]:.1f} warm {max(rates):.1f} MB/s, {len(docs)} documents, {size / 1e6:.1f} MB")
    if len(sys.argv) > 4:
        with open(sys.argv[4], "wb") as f:
            for doc in ids:
                f.write(np.uint32(len(doc)).tobytes() + np.asarray(doc, np.uint32).tobytes())


main()
