#!/usr/bin/env python3
"""Golden vectors of Megatron-LM's indexed token files, written by their description: a header,
lengths, pointers and document bounds in NAME.idx, tokens in NAME.bin.

    python make_megatron.py      # writes megatron/ beside this file

`documents.jsonl` has the documents of all three; in `parts` each is several sequences, which lie
in the .bin in another order.
"""
import json
import random
import struct
from pathlib import Path

OUT = Path(__file__).resolve().parent / "megatron"
TYPES = {"u16": (8, "H"), "i32": (4, "i"), "i64": (5, "q")}


def write(name, kind, documents, rng=None):
    code, letter = TYPES[kind]
    size = struct.calcsize(letter)
    sequences, bounds = [], [0]
    for ids in documents:
        cuts = sorted(rng.sample(range(1, len(ids)), 2)) if rng else []
        sequences += [ids[a:b] for a, b in zip([0] + cuts, cuts + [len(ids)])]
        bounds.append(len(sequences))
    order = list(range(len(sequences)))
    if rng:
        rng.shuffle(order)
    pointers, data = [0] * len(sequences), b""
    for i in order:
        pointers[i] = len(data)
        data += struct.pack(f"<{len(sequences[i])}{letter}", *sequences[i])
    assert len(data) == size * sum(map(len, documents))
    (OUT / f"{name}.bin").write_bytes(data)
    (OUT / f"{name}.idx").write_bytes(
        b"MMIDIDX\x00\x00" + struct.pack("<QBQQ", 1, code, len(sequences), len(bounds))
        + struct.pack(f"<{len(sequences)}i", *map(len, sequences))
        + struct.pack(f"<{len(sequences)}q", *pointers)
        + struct.pack(f"<{len(bounds)}q", *bounds))


def main():
    rng = random.Random(5)
    OUT.mkdir(exist_ok=True)
    documents = [[rng.randrange(2000) for _ in range(rng.randint(3, 60))] for _ in range(40)]
    with open(OUT / "documents.jsonl", "w", encoding="utf-8") as f:
        for ids in documents:
            f.write(json.dumps({"input_ids": ids}) + "\n")
    write("plain", "u16", documents)
    write("wide", "i32", documents)
    write("parts", "i64", documents, rng)


if __name__ == "__main__":
    main()
