"""The peer of shard.sh: peer_shard.py INPUT TOKENIZER OUTPUT BEST prints the smaller of BEST and the
seconds from JSON lines to a file of tokens, u16 or u32, without the start of Python."""
import json
import sys
import time

import numpy
from tokenizers import Tokenizer

source, path, out, best = sys.argv[1:]
start = time.perf_counter()
tok = Tokenizer.from_file(path)
dtype = numpy.uint16 if tok.get_vocab_size() <= 65536 else numpy.uint32
with open(source, encoding="utf-8") as lines, open(out, "wb") as tokens:
    batch = []
    for line in lines:
        batch.append(json.loads(line)["text"])
        if len(batch) == 1024:
            for e in tok.encode_batch_fast(batch, add_special_tokens=False):
                numpy.array(e.ids, dtype).tofile(tokens)
            batch = []
    for e in tok.encode_batch_fast(batch, add_special_tokens=False):
        numpy.array(e.ids, dtype).tofile(tokens)
print(min(float(best), time.perf_counter() - start))
