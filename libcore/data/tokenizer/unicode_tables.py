#!/usr/bin/env python3
"""Make unicode_tables.c: where the Unicode data behind HF tokenizers and that of PCRE2 and utf8proc differ.

    python3 unicode_tables.py > unicode_tables.c        needs: tokenizers (PyPI), perl

HF tokenizers answers with the tables of its own libraries: Oniguruma's categories in patterns, a
normaliser as of Unicode 9, Rust's char::is_numeric and regex's \\w.  This script asks it about every
code point and writes down

  d9di_unicode_alias   code points whose category the older Unicode 14 (PCRE2 10.42, Debian 12) does not
                   know, or for which \\s differs, each with an old code point of the same category
                   and number of UTF-8 bytes, Han or not, to be shown to PCRE2 in its place;
  d9di_unicode_extend  code points that Unicode 14 does not know and that are part of the grapheme
                   cluster before them;
  d9di_unicode_letter, d9di_unicode_number, d9di_unicode_mark
                   what \\p{L}, \\p{N} and \\p{M} match, for patterns that are scanned without PCRE2;
  d9di_unicode_word    what counts as part of a word beside an added token with "single_word";
  d9di_unicode_numeric what the pre-tokeniser Digits takes for a digit;
  d9di_unicode_punct   what the pre-tokenisers Punctuation and BertPreTokenizer take for punctuation;
  d9di_unicode_control what BertNormalizer drops when it cleans;
  d9di_unicode_nonspacing what BertNormalizer drops when it strips accents, behind NFD;
  d9di_unicode_accent  what StripAccents drops;
  d9di_unicode_lower   every step-th code point from first to last and what the first one is in lower
                   case, the others being as far from theirs; but for U+0130, which becomes two;
  d9di_unicode_inert   code points above U+02FF that Unicode 9 had not assigned, and U+11A7: the
                   normaliser leaves them alone and nothing is reordered or composed across them.
"""
import json
import struct
import subprocess
import sys
import unicodedata

import tokenizers
from tokenizers import Regex, Tokenizer, normalizers, pre_tokenizers

CODE_POINTS = [c for c in range(1, 0x110000) if not 0xD800 <= c < 0xE000]
CATEGORIES = ("Lu Ll Lt Lm Lo Mn Mc Me Nd Nl No Pc Pd Ps Pe Pi Pf Po Sm Sc Sk So Zs Zl Zp "
              "Cc Cf Co Cn").split()


def chunks(size=4096):
    for i in range(0, len(CODE_POINTS), size):
        yield "".join(map(chr, CODE_POINTS[i:i + size]))


def removed(splitter):
    """The code points that `splitter` drops from a text made of all of them."""
    out = set()
    for text in chunks():
        out |= set(text) - set("".join(p for p, _ in splitter.pre_tokenize_str(text)))
    return set(map(ord, out))


def pattern_members(pattern):
    return removed(pre_tokenizers.Split(Regex(pattern), "removed"))


def numeric_members():
    out = set()
    for c in CODE_POINTS:
        if len(pre_tokenizers.Digits(True).pre_tokenize_str("a" + chr(c))) == 2:
            out.add(c)
    return out


def word_members():
    """c is part of a word when "T" after it is not a word of its own."""
    spec = {"version": "1.0", "truncation": None, "padding": None, "normalizer": None,
            "added_tokens": [{"id": 1, "content": "T", "single_word": True, "lstrip": False,
                              "rstrip": False, "normalized": False, "special": False}],
            "pre_tokenizer": None, "post_processor": None, "decoder": None,
            "model": {"type": "BPE", "vocab": {"\u0100": 0}, "merges": []}}
    tok = Tokenizer.from_str(json.dumps(spec))
    enc = tok.encode_batch([chr(c) + "T" for c in CODE_POINTS], add_special_tokens=False)
    return {c for c, e in zip(CODE_POINTS, enc) if e.ids != [1]}


def dropped(normalizer):
    return {c for c in CODE_POINTS if normalizer.normalize_str(chr(c)) == ""}


def decomposed(members):
    """Those that stay themselves in NFD."""
    return {c for c in members if normalizers.NFD().normalize_str(chr(c)) == chr(c)}


def bert(**what):
    nothing = dict(clean_text=False, handle_chinese_chars=False, strip_accents=False, lowercase=False)
    return normalizers.BertNormalizer(**{**nothing, **what})


def lower_ranges():
    out = []
    for c in CODE_POINTS:
        low = normalizers.Lowercase().normalize_str(chr(c))
        if low == chr(c) or c == 0x130:
            continue
        first, last, step, to = out[-1] if out else (0, 0, 0, 0)
        if ord(low) - c == to - first and c - last in (1, 2) and step in (0, c - last):
            out[-1] = [first, c, c - last, to]
        else:
            out.append([c, c, 0, ord(low)])
    return [[first, last, step or 1, to] for first, last, step, to in out]


def inert_members():
    """Not present in Unicode 9.0, from perl's \\p{Present_In}."""
    script = (r'for my $c (0x300 .. 0x10ffff) { next if $c >= 0xd800 && $c < 0xe000;'
              r' print "$c\n" if chr($c) !~ /\p{Present_In=9.0}/ }')
    text = subprocess.run(["perl", "-e", script], check=True, capture_output=True, text=True).stdout
    return set(map(int, text.split())) | {0x11A7}  # utf8proc 2.8 swallows it after a Hangul LV


def extend_members():
    """A charsmap of "a" to "Z" takes the rest of the cluster along."""
    units = [256 << 10] + [0] * 511
    units[256 ^ 0x61], units[256 ^ 0x60] = 1 << 10 | 256 | 0x61, 1 << 31
    blob = struct.pack("<I512I", 2048, *units) + b"Z\0"
    normalize = normalizers.Precompiled(blob).normalize_str
    return {c for c in CODE_POINTS
            if unicodedata.category(chr(c)) == "Cn" and normalize("a" + chr(c)) == "Z"}


def width(c):
    return len(chr(c).encode())


def aliases():
    category = {}
    for name in CATEGORIES:
        for c in pattern_members(r"\p{%s}" % name):
            category[c] = name
    han = pattern_members(r"\p{Han}")

    def kind(c):
        return category[c], width(c), c in han

    old = {}  # kind -> an old code point, without case partners where there is one
    for c in CODE_POINTS:
        ch = chr(c)
        if unicodedata.category(ch) == category[c] and not ch.isspace():
            key = kind(c)
            plain = ch.lower() == ch == ch.upper()
            if key not in old or (plain and not old[key][1]):
                old[key] = (c, plain)
    out = {c: old[kind(c)][0] for c in CODE_POINTS
           if unicodedata.category(chr(c)) != category[c]}
    out[0x180E] = old[("Cf", 3, False)][0]  # PCRE2's \s has it, White_Space has not
    assert old[("Cf", 3, False)][0] != 0x180E
    return out


def ranges(members):
    out = []
    for c in sorted(members):
        if out and out[-1][1] == c - 1:
            out[-1][1] = c
        else:
            out.append([c, c])
    return out


def alias_ranges(table):
    out = []
    for c in sorted(table):
        if out and out[-1][1] == c - 1 and out[-1][2] == table[c]:
            out[-1][1] = c
        else:
            out.append([c, c, table[c]])
    return out


def emit(name, kind, rows):
    print(f"\nconst struct {kind} {name}[] = {{")
    for i in range(0, len(rows), 3):
        cells = ["{" + ", ".join("0x%05x" % v for v in r) + "}," for r in rows[i:i + 3]]
        print("    " + " ".join(cells))
    print("};")
    print(f"const size_t {name}_n = sizeof({name}) / sizeof({name}[0]);")


def main():
    assert unicodedata.unidata_version == "14.0.0", "aliases are relative to Unicode 14 (Python 3.11)"
    print(f"/* unicode_tables.c - made by unicode_tables.py with tokenizers {tokenizers.__version__}; do not edit. */")
    print('#include "data/tokenizer/unicode_tables.h"\n\n/* clang-format off */')
    emit("d9di_unicode_alias", "d9di_unicode_alias", alias_ranges(aliases()))
    emit("d9di_unicode_extend", "d9di_unicode_range", ranges(extend_members()))
    for name, pattern in (("letter", r"\p{L}"), ("number", r"\p{N}"), ("mark", r"\p{M}")):
        emit(f"d9di_unicode_{name}", "d9di_unicode_range", ranges(pattern_members(pattern)))
    emit("d9di_unicode_word", "d9di_unicode_range", ranges(word_members()))
    emit("d9di_unicode_numeric", "d9di_unicode_range", ranges(numeric_members()))
    emit("d9di_unicode_punct", "d9di_unicode_range",
         ranges(removed(pre_tokenizers.Punctuation("removed"))))
    emit("d9di_unicode_control", "d9di_unicode_range", ranges(dropped(bert(clean_text=True))))
    emit("d9di_unicode_nonspacing", "d9di_unicode_range",
         ranges(decomposed(dropped(bert(strip_accents=True)))))
    emit("d9di_unicode_accent", "d9di_unicode_range", ranges(dropped(normalizers.StripAccents())))
    emit("d9di_unicode_lower", "d9di_unicode_lower", lower_ranges())
    emit("d9di_unicode_inert", "d9di_unicode_range", ranges(inert_members()))
    return 0


sys.exit(main())
