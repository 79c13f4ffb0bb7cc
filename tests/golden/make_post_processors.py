#!/usr/bin/env python3
"""Golden vectors of post-processors: the special tokens around a text and around a pair.

    python make_post_processors.py                      # writes tokenizer/ beside this file

The shapes that published tokenizers have, then random ones, nested ones and those with which HF
fails while it encodes (null in the vectors) among them.  README.md describes the file.
"""
import json
import os
import random

from tokenizers import Tokenizer

from make_tokenizers import line, write

WORDS = ["a", "b", "c", "[CLS]", "[SEP]", "<s>", "</s>", "<|x|>"]
SPECIAL = WORDS[3:]
VOCAB = {w: i for i, w in enumerate(WORDS)}
BASE = {"version": "1.0", "truncation": None, "padding": None, "added_tokens": [], "normalizer": None,
        "pre_tokenizer": {"type": "WhitespaceSplit"}, "post_processor": None, "decoder": None,
        "model": {"type": "WordLevel", "vocab": VOCAB, "unk_token": "a"}}


def piece(word, type_id):
    return ({"Sequence": {"id": word[1:], "type_id": type_id}} if word[0] == "$" else
            {"SpecialToken": {"id": word, "type_id": type_id}})


def template(single, pair, tokens=None, second=1):
    split = pair.split()
    at = split.index("$B") if "$B" in split else len(split)
    tokens = tokens or {t: [VOCAB[t]] for t in SPECIAL}
    return {"type": "TemplateProcessing", "single": [piece(w, 0) for w in single.split()],
            "pair": [piece(w, second if i >= at else 0) for i, w in enumerate(split)],
            "special_tokens": {t: {"id": t, "ids": ids, "tokens": [WORDS[i % len(WORDS)] for i in ids]}
                               for t, ids in tokens.items()}}


def bert(cls="[CLS]", sep="[SEP]"):
    return {"type": "BertProcessing", "sep": [sep, VOCAB[sep]], "cls": [cls, VOCAB[cls]]}


def roberta(cls="<s>", sep="</s>", **flags):
    return {"type": "RobertaProcessing", "sep": [sep, VOCAB[sep]], "cls": [cls, VOCAB[cls]], **flags}


def bytelevel():
    return {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": False, "use_regex": True}


def sequence(*processors):
    return {"type": "Sequence", "processors": list(processors)}


PUBLISHED = [
    ("none", None),
    ("gpt2, qwen, phi4, granite, olmo2", bytelevel()),
    ("llama2, mistral, gemma", template("<s> $A", "<s> $A <s> $B")),
    ("llama3", sequence(bytelevel(), template("<s> $A", "<s> $A <s> $B"))),
    ("phi3, deepseek-coder", template("$A", "$A $B")),
    ("llama with add_eos_token", template("<s> $A </s>", "<s> $A </s> <s> $B </s>")),
    ("olmo, t5", template("$A </s>", "$A </s> $B </s>", second=0)),
    ("glm4", template("<|x|> <s> $A", "<|x|> <s> $A $B")),
    ("bert, modernbert", template("[CLS] $A [SEP]", "[CLS] $A [SEP] $B [SEP]")),
    ("bert, as converted", bert()),
    ("roberta, clip", roberta(trim_offsets=True, add_prefix_space=False)),
    ("xlm-roberta", template("<s> $A </s>", "<s> $A </s> </s> $B </s>", second=0)),
    ("a token of two ids", template("<|x|> $A", "<|x|> $A $B", {"<|x|>": [7, 5]})),
    ("a token of no id", template("<|x|> $A", "<|x|> $A $B", {"<|x|>": []})),
    ("no such token", template("<|y|> $A", "$A $B")),
    ("an id outside the vocabulary", template("$A", "$A <|x|> $B", {"<|x|>": [8]})),
    ("no text", template("<s>", "$B <s>")),
    ("a second text of one", template("$A $B", "$A $B")),
    ("a template of three", sequence(template("<s> $A", "<s> $A $B"), template("$A $B", "$A $B"))),
]


class Random:
    def __init__(self, seed):
        self.r = random.Random(seed)

    def words(self, texts):
        r = self.r
        n = r.choice([1, 2, 2, 3, 3, 4, 5, 6])
        return " ".join(r.choice(texts) if r.random() < 0.45 else
                        r.choice(SPECIAL + ["<|y|>"] * (r.random() < 0.05)) for _ in range(n))

    def processor(self, depth=0):
        r = self.r
        kind = r.randrange(10)
        if kind == 0:
            return bytelevel()
        if kind == 1:
            return bert(r.choice(SPECIAL), r.choice(SPECIAL))
        if kind == 2:
            flags = {} if r.random() < 0.2 else dict(trim_offsets=True, add_prefix_space=True)
            return roberta(r.choice(SPECIAL), r.choice(SPECIAL), **flags)
        if kind < 5 and depth < 3:
            return sequence(*[self.processor(depth + 1) for _ in range(r.randrange(4))])
        tokens = {t: [r.randrange(len(WORDS)) for _ in range(r.choice([1, 1, 1, 1, 2, 0, 3]))]
                  for t in SPECIAL if r.random() < 0.97}
        return template(self.words(["$A"] * 9 + ["$B"]), self.words(["$A", "$B"]), tokens)


def ids(tok, *texts):
    """null where HF panics, and where it adds ids that are no tokens."""
    try:
        got = tok.encode(*texts).ids
    except BaseException as e:
        if type(e).__name__ != "PanicException":
            raise
        return None
    return got if max(got, default=0) < len(WORDS) else None


def counts(tok, value, single, pair):
    """What HF says that it adds; of a Sequence this is the sum, though one may drop another's."""
    if value and value["type"] == "Sequence":
        return None
    return [tok.num_special_tokens_to_add(p) if got is not None else None
            for p, got in ((False, single), (True, pair))]


def main():
    r = Random(77)
    lines = []
    for name, value in PUBLISHED + [(f"random {i}", r.processor()) for i in range(300)]:
        tok = Tokenizer.from_str(json.dumps(BASE | {"post_processor": value}))
        single, pair = ids(tok, "a b"), ids(tok, "a b", "c")
        lines.append(line(name=name, post_processor=value, single=single, pair=pair,
                          special=counts(tok, value, single, pair)))
    write("post_processors.jsonl.gz", lines)


if __name__ == "__main__":
    os.environ["RUST_BACKTRACE"] = "0"
    main()
