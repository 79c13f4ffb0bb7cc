#!/usr/bin/env python3
"""Golden vectors of d9d-shard filter: Gopher's rules as datatrove has them, bands as datasketch.

    python make_filter.py                               # writes filter/ beside this file

Words are those between white space: datatrove's own tokenizer of a language is left out.
README.md describes the files.
"""
import gzip
import json
import random
from pathlib import Path

from datasketch.lsh import _optimal_param
from datatrove.data import Document
from datatrove.pipeline.filters import gopher_quality_filter, gopher_repetition_filter

OUT = Path(__file__).parent / "filter"
STOP = ["the", "be", "to", "of", "and", "that", "have", "with"]
WORDS = ["model", "training", "a", "is", "on", "cluster", "I", "gradient", "naïve", "数据", "été", "12",
         "3.5", "loss", "...", "—", "#", "step,", "end."] + STOP
SPACES = [" "] * 30 + ["  ", "\t", "\u00a0", "\u3000", "\x1c"]
ENDS = ["\n"] * 8 + ["\n\n", "\n\n", "\r\n", "\x0b", "\u2028", "\x85", "\r", "\n\n\n"]


class Soup:
    def __init__(self, seed):
        self.r = random.Random(seed)

    def words(self, n, of):
        return "".join(self.r.choice(of) + self.r.choice(SPACES) for _ in range(n))

    def line(self, of):
        r = self.r
        text = self.words(r.randint(0, 14), of)
        if r.random() < self.bullets:
            text = r.choice(["- ", "\u2022 ", "  - ", "\t\u2022"]) + text
        if r.random() < self.ellipses:
            text += r.choice(["...", "\u2026", "... ", "\u2026\t"])
        return text

    def text(self):
        """Each text has habits of its own, so that each rule is broken by some."""
        r = self.r
        self.bullets, self.ellipses = r.choice([0, 0, 0, 0.3, 0.95]), r.choice([0, 0, 0, 0, 0.05, 0.5])
        of = r.sample(WORDS, r.randint(3, len(WORDS))) if r.random() < 0.4 else list(WORDS)
        of += r.choice([[], [], STOP * 3, ["x" * r.randint(1, 30)] * 20, ["123", "4-5"] * 30, ["#"] * 6,
                        ["parallel", "tensor", "tokens", "batches", "numbers"] * 6,
                        [f"word{i}" for i in range(300)], [f"word{i}" for i in range(300)],
                        [f"w{i}" for i in range(300)]])
        lines = [self.line(of) for _ in range(r.randint(1, 40))]
        again = r.choice([0, 0, 0, 0.05, 0.15, 0.4])
        for i in range(1, len(lines)):
            if r.random() < again:
                lines[i] = r.choice(lines[:i])
        ends = r.choice([ENDS, ENDS, ENDS, ["\n\n", "\n\n\n"]])
        if ends is not ENDS and r.random() < 0.5:
            lines = [self.words(r.choice([1, 1, 40]), of) for _ in lines]
            lines += r.choices([x for x in lines if len(x) < 100] or lines, k=len(lines))
        text = "".join(x + r.choice(ends) for x in lines)
        if r.random() < 0.2:
            some = self.words(r.randint(2, 12), of)
            text += some * r.randint(2, 12)
        return text if r.random() < 0.5 else text.strip()


def verdict(f, text):
    got = f.filter(Document(text=text, id="0"))
    return "" if got is True else got[1]


def rows(n):
    quality = gopher_quality_filter.GopherQualityFilter()
    repetition = gopher_repetition_filter.GopherRepetitionFilter()
    loose = gopher_quality_filter.GopherQualityFilter(min_doc_words=5, max_doc_words=200)
    soup = Soup(41)
    found = {}
    while len(found) < n:
        text = soup.text()
        if not text.split():
            continue
        row = [verdict(f, text) for f in (quality, loose, repetition)]
        if sum(1 for other in found.values() if other == row) < n // 20:
            found[text] = row
    return found


def main():
    for module in (gopher_quality_filter, gopher_repetition_filter):
        module.split_into_words = lambda text, language: text.split()
    OUT.mkdir(exist_ok=True)
    found = rows(450)
    lines = [json.dumps({"text": t, "quality": q, "loose": loose, "repetition": r}, ensure_ascii=False)
             for t, (q, loose, r) in found.items()]
    (OUT / "rules.jsonl.gz").write_bytes(gzip.compress(("\n".join(lines) + "\n").encode(), 9, mtime=0))
    bands = [[s / 100, n, *_optimal_param(s / 100, n, 0.5, 0.5)]
             for n in (16, 64, 112, 128, 256) for s in (10, 30, 50, 60, 70, 75, 80, 85, 90, 95)]
    (OUT / "bands.json").write_text("[" + ",\n ".join(json.dumps([s, n, int(b), int(r)])
                                                      for s, n, b, r in bands) + "]\n")
    seen = sorted({x for row in found.values() for x in row})
    print(len(found), "texts;", " ".join(seen))


if __name__ == "__main__":
    main()
