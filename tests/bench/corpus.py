#!/usr/bin/env python3
"""Mixed text for the tokenizer's benchmark, from what a Debian machine has.

    python3 corpus.py MEGABYTES >corpus.jsonl      one {"kind": ..., "text": ...} a line

Documents of four kinds are mixed so that each has its share of the bytes as long as it lasts:

  prose      40 %  English manual pages and /usr/share/doc
  code       30 %  Python, Perl and C headers
  languages  25 %  manual pages in other languages, and message catalogues (*.mo) of all of them
  soup        5 %  random characters of all of Unicode, words, digits, spaces, marks and emoji

Files are taken in the order of the CRC-32 of their names, decoded with errors replaced and cut at
the first end of a line behind 8000 characters.  On the same machine the same bytes come out.
"""
import gettext
import gzip
import json
import random
import sys
import zlib
from pathlib import Path

SHARES = {"prose": 40, "code": 30, "languages": 25, "soup": 5}
CUT = 8000


def files(*patterns):
    found = (p for root, pattern in patterns for p in Path(root).glob(pattern))
    return sorted((p for p in found if p.is_file() and not p.is_symlink()),
                  key=lambda p: (zlib.crc32(str(p).encode()), p))


def read(path):
    try:
        data = gzip.open(path).read() if path.suffix == ".gz" else path.read_bytes()
    except OSError:
        return ""
    return "" if b"\0" in data else data.decode("utf-8", "replace")


def messages(path):
    try:
        with open(path, "rb") as f:
            catalog = gettext.GNUTranslations(f)._catalog
    except (OSError, UnicodeDecodeError, ValueError):
        return ""
    return "\n".join(v for k, v in catalog.items() if k and isinstance(v, str))


def pieces(text):
    while text.strip():
        end = text.find("\n", CUT) + 1 or len(text)
        yield text[:end]
        text = text[end:]


def texts_of(paths):
    for path in paths:
        yield from pieces(messages(path) if path.suffix == ".mo" else read(path))


def soup():
    r = random.Random(5)
    planes = (0x80, 0x250, 0x800, 0x3000, 0xA000, 0x10000, 0x20000, 0x110000)

    def character():
        while True:
            c = r.randrange(1, r.choice(planes))
            if not 0xD800 <= c < 0xE000:
                return chr(c)

    draws = (lambda: "".join(character() for _ in range(r.randint(1, 20))),
             lambda: "".join(r.choice("etaoinshrdlu") for _ in range(r.randint(1, 12))),
             lambda: str(r.randrange(10 ** r.randint(1, 18))),
             lambda: r.choice(" \n\t\r=-#*.") * r.randint(1, 40),
             lambda: r.choice("aeoun") + chr(r.randint(0x300, 0x36F)),
             lambda: "".join(chr(r.randint(0x1F300, 0x1FAFF)) + "\u200d" for _ in range(3)),
             lambda: "".join(chr(r.randint(0x4E00, 0x9FA5)) for _ in range(r.randint(2, 30))))
    while True:
        yield " ".join(r.choice(draws)() for _ in range(200))


def main():
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    want = int(sys.argv[1]) * 1_000_000
    sources = {
        "prose": texts_of(files(("/usr/share/man", "man*/*"), ("/usr/share/doc", "*/*"))),
        "code": texts_of(files(("/usr/lib/python3", "**/*.py"), ("/usr/lib/python3.11", "**/*.py"),
                               ("/usr/include", "**/*.h"), ("/usr/share/perl", "**/*.p[lm]"))),
        "languages": texts_of(files(("/usr/share/man", "[a-z][a-z]/man*/*"),
                                    ("/usr/share/man", "[a-z][a-z]_*/man*/*"),
                                    ("/usr/share/locale", "*/LC_MESSAGES/*.mo"))),
        "soup": soup()}
    written = dict.fromkeys(sources, 0)
    while sum(written.values()) < want:
        kind = min(sources, key=lambda k: written[k] / SHARES[k])
        text = next(sources[kind], None)
        if text is None:
            del sources[kind]
            continue
        print(json.dumps({"kind": kind, "text": text}, ensure_ascii=False))
        written[kind] += len(text.encode())
    print(", ".join(f"{k} {v / 1e6:.1f} MB" for k, v in written.items()), file=sys.stderr)


main()
