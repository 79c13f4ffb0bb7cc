#!/usr/bin/env python3
"""Golden vectors of tokenizers of the other kinds: WordPiece, WordLevel, Unigram, and BPE with the
components that Llama 2, Gemma, CLIP, BERT, T5 and DeepSeek have, trained on this repository's text.

    python make_tokenizer_models.py                     # writes tokenizer/ beside this file

Like make_tokenizers.py, whose texts it has.  README.md describes the files.
"""
import json
import struct
from collections import Counter

from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers
from tokenizers import processors, trainers

from make_tokenizers import OUT, Soup, as_older, corpus, ids_of, line, texts, train, write

UNK = "<unk>"


# ---- a charsmap, as SentencePiece makes them -----------------------------------------------------

class Charsmap:
    """A double array in the layout of Darts-clone: the children of the node at a place `at` are at
    (at ^ offset) ^ label, its value is at at ^ offset."""

    def __init__(self, pairs):
        self.units, self.texts, self.taken = [0], b"", {0}
        tree = {}
        for key, to in sorted(pairs.items()):
            node = tree
            for c in key.encode():
                node = node.setdefault(c, {})
            node[None] = len(self.texts)
            self.texts += to.encode() + b"\0"
        self.place(tree, 0)

    def place(self, node, at):
        labels = [0 if c is None else c for c in node]
        base = next(b for b in range(1, 1 << 20)
                    if b ^ at < 1 << 21 and not any(b ^ c in self.taken for c in labels))
        self.taken |= {base ^ c for c in labels}
        self.units += [0] * ((base | 255) + 1 - len(self.units))  # readers look at any label
        self.units[at] |= (base ^ at) << 10 | (256 if None in node else 0)
        for c, child in node.items():
            self.units[base ^ (c or 0)] = 1 << 31 | child if c is None else c
        for c, child in node.items():
            if c is not None:
                self.place(child, base ^ c)

    def bytes(self):
        trie = b"".join(struct.pack("<I", u) for u in self.units)
        return struct.pack("<I", len(trie)) + trie + self.texts


def charsmap():
    """Full-width forms, ligatures, composed letters, ends of lines, deletions, and clusters."""
    pairs = {chr(0xFF01 + i): chr(0x21 + i) for i in range(94)}
    pairs |= {"\ufb01": "fi", "\ufb02": "fl", "\u00bd": "1\u20442", "\u2126": "\u03a9", "\u3000": " ",
              "\t": " ", "\n": " ", "\r\n": " ", "\r": " ", "\x01": "", "\u200b": " ", "\ufeff": "",
              "e\u0301": "\u00e9", "a\u0302": "\u00e2", "o\u0308": "\u00f6", "\u1100\u1161": "\uac00",
              "\u00a0": " ", "\u2026": "...", "\u0958": "\u0915\u093c", "\U0001F600": ":-)", "q": "Q",
              "u": "v\u0301", "\u0e33": "\u0e4d\u0e32", "x\u0300": ""}
    return Charsmap(pairs).bytes()


# ---- Unigram ---------------------------------------------------------------------------------

def common_text(n=150):
    """The corpus in its n most frequent characters: all of them become tokens."""
    lines = list(corpus())
    common = {c for c, _ in Counter("".join(lines)).most_common(n)}
    return ["".join(c for c in line if c in common) for line in lines]


def unigram(pre, normalizer=None):
    tok = Tokenizer(models.Unigram())
    tok.normalizer = normalizer
    tok.pre_tokenizer = pre
    tok.train_from_iterator(common_text(), trainers.UnigramTrainer(
        vocab_size=500, show_progress=False, unk_token=UNK, special_tokens=[UNK, "<s>", "</s>"]))
    return tok


def t5():
    pre = pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(),
                                   pre_tokenizers.Metaspace(prepend_scheme="always")])
    tok = unigram(pre, normalizers.Sequence([normalizers.Precompiled(charsmap()),
                                             normalizers.Replace(Regex(" {2,}"), " ")]))
    tok.decoder = decoders.Metaspace(prepend_scheme="always")
    tok.post_processor = processors.TemplateProcessing(single="$A </s>", special_tokens=[("</s>", 2)])
    return tok


def unigram_bytes():
    tok = unigram(pre_tokenizers.Metaspace(prepend_scheme="first", split=False))
    tok.decoder = decoders.Sequence([decoders.Replace("\u2581", " "), decoders.ByteFallback(),
                                     decoders.Fuse(), decoders.Strip(" ", 1, 0)])
    return tok


def scored_bytes(value):
    """Tokens for the bytes, which only the fallback uses; two of equal text, and one with NULs' score."""
    model = value["model"]
    model["byte_fallback"] = True
    model["vocab"] += [[f"<0x{b:02X}>", 0.0] for b in range(256) if b != 0xE0]
    model["vocab"] += [["e", -3.25], ["ee", -6.5], ["eee", -9.75]]


def unigram_spelled():
    tok = unigram(pre_tokenizers.ByteLevel(add_prefix_space=True))
    tok.decoder = decoders.ByteLevel()
    return tok


def all_bytes(value):
    vocab = value["model"]["vocab"]
    there = {t for t, _ in vocab}
    vocab += [[c, -14.5] for c in sorted(pre_tokenizers.ByteLevel.alphabet()) if c not in there]


# ---- WordPiece, WordLevel ----------------------------------------------------------------------

def wordpiece(normalizer, pre, **trainer):
    tok = Tokenizer(models.WordPiece(unk_token="[UNK]", max_input_chars_per_word=20))
    tok.normalizer = normalizer
    tok.pre_tokenizer = pre
    tok.train_from_iterator(corpus(), trainers.WordPieceTrainer(
        vocab_size=700, show_progress=False, limit_alphabet=150,
        special_tokens=["[UNK]", "[CLS]", "[SEP]", "[MASK]"], **trainer))
    return tok


def bert():
    tok = wordpiece(normalizers.BertNormalizer(lowercase=True), pre_tokenizers.BertPreTokenizer())
    tok.post_processor = processors.BertProcessing(("[SEP]", 2), ("[CLS]", 1))
    tok.decoder = decoders.WordPiece(cleanup=True)
    return tok


def bert_cased():
    tok = wordpiece(normalizers.BertNormalizer(lowercase=False, handle_chinese_chars=False,
                                               strip_accents=True),
                    pre_tokenizers.BertPreTokenizer())
    tok.decoder = decoders.WordPiece(prefix="##", cleanup=False)
    return tok


def untyped(value):
    """As BERT's first files: the kind of model is not named."""
    del value["model"]["type"]


def wordlevel():
    tok = Tokenizer(models.WordLevel(unk_token=UNK))
    tok.normalizer = normalizers.Sequence([normalizers.Nmt(), normalizers.NFD(),
                                           normalizers.StripAccents()])
    tok.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.CharDelimiterSplit(" "),
                                                 pre_tokenizers.CharDelimiterSplit("\u00e9"),
                                                 pre_tokenizers.Punctuation("merged_with_next"),
                                                 pre_tokenizers.FixedLength(4)])
    tok.train_from_iterator(corpus(), trainers.WordLevelTrainer(
        vocab_size=600, show_progress=False, special_tokens=[UNK, "<s>"]))
    return tok


# ---- BPE ---------------------------------------------------------------------------------------

def bpe_affixed(prefix=None, suffix=None, pre=None, **model):
    affixes = {"continuing_subword_prefix": prefix, "end_of_word_suffix": suffix}
    tok = Tokenizer(models.BPE(unk_token=UNK, **{k: v for k, v in affixes.items() if v}, **model))
    tok.pre_tokenizer = pre or pre_tokenizers.WhitespaceSplit()
    tok.train_from_iterator(corpus(), trainers.BpeTrainer(
        vocab_size=600, show_progress=False, limit_alphabet=120, special_tokens=[UNK, "<s>"],
        **{k: v for k, v in affixes.items() if v}))
    return tok


def clip():
    pattern = r"""'s|'t|'re|'ve|'m|'ll|'d|[\p{L}]+|[\p{N}]|[^\s\p{L}\p{N}]+"""
    tok = bpe_affixed(suffix="</w>", pre=pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex(pattern), "removed", invert=True),
        pre_tokenizers.ByteLevel(add_prefix_space=False)]))
    tok.normalizer = normalizers.Sequence([normalizers.NFC(), normalizers.Replace(Regex(r"\s+"), " "),
                                           normalizers.Lowercase()])
    tok.decoder = decoders.Sequence([decoders.ByteLevel(), decoders.Replace("</w>", " ")])
    tok.post_processor = processors.RobertaProcessing(("<s>", 1), ("<s>", 1))
    return tok


def all_ends(value):
    """Tokens for each byte inside a word and at its end."""
    vocab = value["model"]["vocab"]
    for c in sorted(pre_tokenizers.ByteLevel.alphabet()):
        for text in (c, c + "</w>"):
            vocab.setdefault(text, len(vocab))


def bpe_suffix():
    tok = bpe_affixed(suffix="</w>", fuse_unk=True)
    tok.decoder = decoders.BPEDecoder("</w>")
    return tok


def bpe_prefix():
    tok = bpe_affixed(prefix="##")
    tok.decoder = decoders.WordPiece("##", False)
    return tok


def gemma():
    """Some bytes have no tokens: unknown characters and characters by bytes, side by side."""
    tok = Tokenizer(models.BPE(unk_token=UNK, fuse_unk=False, byte_fallback=True))
    tok.normalizer = normalizers.Replace(" ", "\u2581")
    tok.pre_tokenizer = pre_tokenizers.Split("\u2581", "merged_with_next")
    tok.train_from_iterator(corpus(), trainers.BpeTrainer(
        vocab_size=500, show_progress=False, limit_alphabet=100, special_tokens=[UNK, "<s>"]))
    tok.pre_tokenizer = pre_tokenizers.Split(" ", "merged_with_previous")
    tok.decoder = decoders.Sequence([decoders.Replace("\u2581", " "), decoders.ByteFallback(),
                                     decoders.Fuse()])
    return tok


def some_bytes(value):
    vocab = value["model"]["vocab"]
    for b in range(256):
        if b % 16 != 9:
            vocab[f"<0x{b:02X}>"] = len(vocab)


def fused(value):
    some_bytes(value)
    value["model"]["fuse_unk"] = True


def spelled():
    """Bytes are spelled by the normaliser, not by the pre-tokeniser."""
    tok = Tokenizer(models.BPE())
    tok.normalizer = normalizers.Sequence([normalizers.NFC(), normalizers.ByteLevel()])
    tok.pre_tokenizer = pre_tokenizers.Split(Regex("\u0120?[^\u0120]+"), "isolated")
    tok.train_from_iterator(corpus(), trainers.BpeTrainer(
        vocab_size=600, show_progress=False, special_tokens=["<s>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet()))
    tok.decoder = decoders.ByteLevel()
    return tok


def split_by(*patterns):
    splits = [pre_tokenizers.Split(Regex(p), "isolated") for p in patterns]
    return train(pre_tokenizers.Sequence(
        splits + [pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]))


def deepseek():
    return split_by(
        r"\p{N}{1,3}", "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+",
        r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"
        r"| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")


def o200k():
    upper, lower = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
    end = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
    return split_by(
        rf"[^\r\n\p{{L}}\p{{N}}]?{upper}*{lower}+{end}|[^\r\n\p{{L}}\p{{N}}]?{upper}+{lower}*{end}"
        r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+")


def main(n=250):
    nothing = lambda value: None
    special, marked = ["<s>", "</s>"], ["a<s>b", "<s>a", " <s> a", "\u2581a \u2581", "<0x41>", UNK + "a"]
    bert_words = ["[MASK]", "[CLS]"], ["unaffable ##able", "don't do not . ? ! , ' x 're",
                                       "abcdefghijklmnopqrstu", "a\u0300\u4e2d\u6587b"]
    rows = [("t5", t5(), nothing, special, marked + ["q\u0301 x\u0300y u\u0301 e\u0301\u0302 \r\n"]),
            ("unigram-bytes", unigram_bytes(), scored_bytes, special, marked + ["eeeeeeeeeeeee"]),
            ("unigram-spelled", unigram_spelled(), all_bytes, special, marked),
            ("bert", bert(), untyped, *bert_words), ("bert-cased", bert_cased(), nothing, *bert_words),
            ("wordlevel", wordlevel(), nothing, ["<s>"], []),
            ("clip", clip(), all_ends, ["<s>"], ["it's  I'LL"]),
            ("bpe-suffix", bpe_suffix(), nothing, ["<s>"], ["a </w> b</w>"]),
            ("bpe-prefix", bpe_prefix(), nothing, ["<s>"], ["a ##b"]),
            ("gemma", gemma(), some_bytes, special, marked), ("gemma-fused", gemma(), fused, special, marked),
            ("spelled", spelled(), nothing, ["<s>"], ["\u0120"]),
            ("deepseek", deepseek(), nothing, ["<s>"], ["1234567 \u4e2d\u6587\u3042abc $x+y"]),
            ("o200k", o200k(), nothing, ["<s>"], ["HelloWORLDfoo's I'LLx \u01c5a //\n"])]
    for i, (name, tok, edit, added, cases) in enumerate(rows):
        path = OUT / f"{name}.tokenizer.json"
        tok.save(str(path))
        as_older(path, edit)
        tok = Tokenizer.from_file(str(path))
        soup = Soup(90 + i, added)
        drawn = texts(cases)[i % 3::3] + [(f"{name}'s", c) for c in cases]
        drawn += [soup.draw() for _ in range(n)]
        write(f"{name}.jsonl.gz", [
            line(kind=k, text=t, ids=ids_of(tok, t),
                 decoded=tok.decode(ids_of(tok, t), skip_special_tokens=False)) for k, t in drawn])


if __name__ == "__main__":
    main()
