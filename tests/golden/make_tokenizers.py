#!/usr/bin/env python3
"""Golden vectors of the tokenizer: texts and the ids that HuggingFace tokenizers gives them.

    python make_tokenizers.py QWEN3_TOKENIZER.json      # writes tokenizer/ beside this file

README.md describes the files.
"""
import gzip
import hashlib
import json
import random
import sys
import unicodedata
from pathlib import Path

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers
from tokenizers import pre_tokenizers, processors, trainers

OUT = Path(__file__).resolve().parent / "tokenizer"
DEMO = OUT.parents[2] / "examples" / "tokenizer" / "tokenizer.json"
RUN = 10_000
RANDOM = 10_000

CODE = [
    "#include <stdio.h>\n\nint main(int argc, char **argv)\n{\n\tfor (int i = 0; i < argc; i++)\n"
    "\t\tprintf(\"%s\\n\", argv[i]);\n\treturn 0;\n}\n",
    "def f(x: int) -> float:\n    \"\"\"Twice.\"\"\"\n    return 2.0 * x if x else -1e-3\n\n\n\n"
    "class A:\n        pass\n",
    "SELECT a.id, COUNT(*) FROM `t` AS a WHERE a.x >= 1_000 AND a.y <> 'it''s';\r\n-- done\r\n",
    "<div class=\"a b\">\n  <p>&nbsp;1 &lt; 2</p>\n</div>\n<!-- x -->",
    "{\"k\": [1, 2.50, -3e+08, null, true], \"s\": \"\\u00e9\\n\"}\n",
    "fn main() { let v: Vec<&'static str> = vec![\"a\"; 0x1F]; }",
    "x=$(cat <<'EOF'\n$HOME\tis   here  \nEOF\n)\n\n  # end",
    "\\frac{\\partial L}{\\partial w_{ij}} = \\sum_{k=1}^{n} x_k^{2}",
    "diff --git a/x b/x\n@@ -1,3 +1,4 @@\n-old\n+new\n",
    "aaaa____bbbb----====>>>>!!!!????....,,,,;;;;::::",
]
EMOJI = [
    "\U0001F468\u200D\U0001F469\u200D\U0001F467\u200D\U0001F466 family",
    "\U0001F3F3\uFE0F\u200D\U0001F308 \U0001F3F4\U000E0067\U000E0062\U000E0073\U000E0063\U000E0074"
    "\U000E007F",
    "\U0001F44D\U0001F3FD\U0001F44D\U0001F3FF \u2764\uFE0F\u200D\U0001F525",
    "1\uFE0F\u20E3 #\uFE0F\u20E3 \U0001F1EB\U0001F1F7\U0001F1EF\U0001F1F5\U0001F1FA",
    "\U0001F600\U0001F601\U0001F602 \u263A \u263A\uFE0E \U0001FAE8 "
    "\U0001F9D1\u200D\U0001F680\u2728",
]
NFC = [
    "e\u0301 \u00e9 E\u0301\u0300 a\u0323\u0302 a\u0302\u0323 \u1ead",
    "A\u030a \u212b \u00c5 \u2126 \u03a9 \u212a K", "\ufb01 \u1e9b\u0323 \u017f\u0323\u0307",
    "\u1112\u1161\u11ab\u1100\u1173\u11af \ud55c\uae00 \uac00\u11a8 \u1100\u1161\u11a7",
    "q\u0307\u0323 q\u0323\u0307 \u0344 \u0340\u0341\u0343", "\u0958 \u0915\u093c \u09dc \u0a33",
    "\uf900 \ufa0e \U0002f800 \u2329\u232a", "a\u0345\u0301\u0316\u0334b", "\u0301 leading",
    "\u0f71\u0f72\u0f74 \u0f73 \u0f76 \u0fb2\u0f80", "\U0001d15e \U0001d1bb \u2adc \ufb1d",
    "\u0cc6\u0cc2\u0cd5 \u0dd9\u0dcf\u0dca \u1b05\u1b35", "e\u0301\u200d\u0301 \u034f\u0301",
    "don\u2019t I'M it'\u017f we'LL THEY'VE o'clock 'Re", "\u1e0b\u0323 d\u0323\u0307 \u1e0d\u0307",
    # Letters, digits and marks younger than many Unicode tables, and unassigned code points.
    "a\u1c89b \ua7cb\ua7da \U000105c0\U00010d40 \U000116d0\U0001e5d0 9\U0001ccf0",
    "\u0345\U00010f82 b\u0345\u08d3 b\u0345\u07fd \U00011935\U00011930 \U00011382\U000113c9",
    "\U00016d63\U00016d67 \U0001611e\U0001611f \U000105d2\u0307 \u0897\u0334",
    "\u0378\u0530\U000e0fff",
]
SPACES = [
    "", " ", "  ", "   x", "x   ", "\n", "\r\n\r\n", " \n \n", "a \n b", "a\n\n\n  b\t\tc ",
    "\t\n\v\f\r",
    "\u00a0\u00a0x", "x\u2003\u2003 y", "\u3000\u3000", "a\u0085b\u2028c\u2029d",
    "\u1680\u180e\u200b\ufeff x",
    "  \u00a0 \n\u00a0\n", "1 22 333 4444 55555", "a1b22c333 ", " 'x' ' s 's",
    "...\n\n...\r\n ...", "\x1c\x1d\x1e\x1f\x7f\x01",
    "nul \x00 inside", "\x00",
]
QWEN_ADDED = [
    "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n",
    "a<|endoftext|>b", " <|endoftext|> ", "  <|im_start|>  <|im_end|>  ",
    "<|im_start|><|im_start|>",
    "<|im_start", "<|im_start|", "<<|im_start|>>", "<|im_<|im_end|>start|>", "<|IM_START|>",
    "<think></think><think", "<tool_call>{\"a\": 1}</tool_call>",
    "\u00e9<|im_end|>\u0301e\u0301<think>\u0301",
    "e<|endoftext|>\u0301", "<|fim_prefix|>x<|fim_suffix|>y<|fim_middle|>z<|fim_pad|>",
    "<|vision_start|><|image_pad|><|vision_end|>", "<\u200b|im_start|>",
    "word<think>word</think>word",
    "<|endoftext|><|endoftext|> <|endoftext|>\n<|endoftext|>",
]


def scripts():
    lines = (OUT / "scripts.txt").read_text("utf-8").splitlines()
    return [line.split("\t", 1) for line in lines]


def texts(added):
    """(kind, text) of the chosen cases."""
    out = []
    for name, text in scripts():
        decomposed = unicodedata.normalize("NFD", text)
        out += [(f"script: {name}", text), (f"script, NFD: {name}", decomposed)]
    out.append(("script: all", "\n".join(t for _, t in scripts())))
    groups = {"code": CODE, "emoji": EMOJI, "nfc": NFC, "space": SPACES, "added": added}
    out += [(kind, t) for kind, group in groups.items() for t in group]
    return out


def long_texts(special):
    """(kind, unit): runs of RUN characters or so."""
    units = ("a", "A", " ", "\n", "\r\n", "\t", "=", "-", "0", "'", "<", "\u00e9", "\u4f60",
             "\u0e01", "\U0001F600", "\u00a0", " \n", "ab", " a", "a ", "'s", "\u1112\u1161\u11ab",
             "\U0001F468\u200D", special)
    runs = [("run", u, u * (RUN // len(u))) for u in units]
    runs += [("run of marks", "\u0301", "a" + "\u0301" * RUN),
             ("run of marks, to be sorted", "\u0301\u0316", "a" + "\u0301\u0316" * (RUN // 2)),
             ("run of jamo", "\u1161", "\u1112" + "\u1161" * RUN),
             ("run, then a word", " ", " " * RUN + "x"), ("run, then a line", " ",
             " " * RUN + "\n"),
             ("run of bytes", "\x01", "\x01" * RUN)]
    r = random.Random(11)
    alphabet = "abcdefghijklmnopqrstuvwxyz"
    runs.append(("letters", "", "".join(r.choice(alphabet) for _ in range(RUN))))
    runs.append(("marks", "", "o" + "".join(chr(r.randrange(0x300, 0x370)) for _ in range(RUN))))
    return runs


class Soup:
    """Random strings of several kinds, the same for a seed."""

    def __init__(self, seed, added):
        self.r, self.added = random.Random(seed), added
        self.kinds = [self.planes, self.assigned, self.script, self.ascii, self.words, self.tokens,
                      self.space, self.marks, self.jamo]
        self.blocks = [c for c in range(0x21, 0x30000)
                       if unicodedata.category(chr(c))[0] not in "CM"]
        self.mark = [c for c in range(0x300, 0x20000) if unicodedata.combining(chr(c))]
        self.letters = "".join(t for _, t in scripts())

    def some(self, draw, low, high):
        return "".join(draw() for _ in range(self.r.randint(low, high)))

    def planes(self):
        def draw():
            while True:
                c = self.r.randrange(1, self.r.choice((0x800, 0x3000, 0x10000, 0x20000, 0x110000)))
                if not 0xD800 <= c < 0xE000:
                    return chr(c)
        return self.some(draw, 1, 12)

    def assigned(self):
        return self.some(lambda: chr(self.r.choice(self.blocks)), 1, 14)

    def script(self):
        i, n = self.r.randrange(len(self.letters)), self.r.randint(1, 20)
        return self.letters[i:i + n]

    def ascii(self):
        return self.some(lambda: chr(self.r.randint(0x20, 0x7E)), 1, 30)

    def words(self):
        def draw():
            w = self.some(lambda: self.r.choice("etaoinshrdlucmwfgypbvk"), 1, 8)
            number = str(self.r.randrange(10 ** self.r.randint(1, 7)))
            w = self.r.choice((w, w, w.upper(), w.title(), number))
            return w + self.r.choice((" ", " ", " ", "  ", "'s ", "'LL ", ", ", ".\n", "_", "-",
                                      "'\u017f", "\r\n", ""))
        return self.some(draw, 1, 6)

    def tokens(self):
        def draw():
            t = self.r.choice(self.added)
            i, j = self.r.randint(0, len(t)), self.r.randint(0, len(t))
            part = t[min(i, j):max(i, j)]
            return self.r.choice((t, t, t[:i], t[i:], part, " ", "\n", "a", "<|", "\u0301"))
        return self.some(draw, 1, 7)

    def space(self):
        pool = "      \n\n\n\r\t\t\u00a0\u3000\u2003\u0085\u2028\v\fa1.'"
        return self.some(lambda: self.r.choice(pool), 1, 20)

    def marks(self):
        def draw():
            base = self.r.choice("aeiouAEOQ\u03b1\u03c9\u0438\u0915\u0b95\u1161 \n1.")
            return base + self.some(lambda: chr(self.r.choice(self.mark if self.r.random() < .4
                                                              else range(0x300, 0x346))), 0, 4)
        return self.some(draw, 1, 6)

    def jamo(self):
        pool = (0x1100, 0x1112), (0x1161, 0x1175), (0x11A7, 0x11C2), (0xAC00, 0xAC40), (0x20, 0x21)
        return self.some(lambda: chr(self.r.randint(*self.r.choice(pool))), 1, 10)

    def draw(self):
        kind = self.r.choice(self.kinds)
        if self.r.random() < 0.25:
            return kind.__name__ + "+", kind() + self.r.choice(self.kinds)()
        return kind.__name__, kind()


# ---- writing --------------------------------------------------------------------------------

def ids_of(tok, text):
    return tok.encode(text, add_special_tokens=False).ids


def line(**members):
    return json.dumps(members, ensure_ascii=False, separators=(",", ":")) + "\n"


def write(name, lines):
    data = "".join(lines).encode("utf-8")
    if name.endswith(".gz"):
        data = gzip.compress(data, 9, mtime=0)
    (OUT / name).write_bytes(data)
    print(f"{name:28} {len(lines):6} lines {len(data):8} bytes")


def plain_lines(tok, added):
    return [line(kind=k, text=t, ids=ids_of(tok, t)) for k, t in texts(added)]


def long_lines(tok, special):
    return [line(kind=k, unit=u, text=t, ids=ids_of(tok, t)) for k, u, t in long_texts(special)]


def random_lines(tok, seed, added, n):
    soup = Soup(seed, added)
    drawn = (soup.draw() for _ in range(n))
    return [line(kind=k, text=t, ids=ids_of(tok, t)) for k, t in drawn]


# ---- Unicode as tokenizers has it -------------------------------------------------------------

def ranges(points):
    out = []
    for c in points:
        if out and out[-1][1] == c - 1:
            out[-1][1] = c
        else:
            out.append([c, c])
    return out


def write_unicode():
    """Which code points its expressions and its NFC know: both have tables of their own."""
    points = [c for c in range(0x110000) if not 0xD800 <= c < 0xE000]
    nfc = normalizers.NFC().normalize_str
    found = {}
    for name, pattern in (("L", r"\p{L}"), ("N", r"\p{N}"), ("s", r"\s")):
        split = pre_tokenizers.Split(Regex(pattern), "removed", invert=True)
        got = set()
        for i in range(0, len(points), 4096):
            text = "".join(map(chr, points[i:i + 4096]))
            got.update(ord(c) for t, _ in split.pre_tokenize_str(text) for c in t)
        found[name] = ranges(sorted(got))
    # A mark is one that changes places with U+0345 (class 240) or U+0334 (class 1).
    moves = [c for c in points if c not in (0x334, 0x345) and
             (nfc(f"b\u0345{chr(c)}")[1] != "\u0345" or nfc(f"b{chr(c)}\u0334")[1] == "\u0334")
             and nfc(chr(c)) == chr(c)]
    found["marks"] = ranges(sorted({*moves, 0x334, 0x345}))
    pairs = [c for c in points if len(unicodedata.normalize("NFD", chr(c))) > 1]
    found["never_composed"] = [
        c for c in pairs if unicodedata.normalize("NFC", chr(c)) == chr(c)
        and nfc(unicodedata.normalize("NFD", chr(c))) != chr(c)]
    text = ",\n".join(f' "{k}": {json.dumps(v, separators=(",", ":"))}' for k, v in found.items())
    (OUT / "unicode.json").write_text("{\n" + text + "\n}\n")
    print("unicode.json", {k: len(v) for k, v in found.items()})


# ---- small tokenizers -------------------------------------------------------------------------

def corpus():
    own = [t for _, t in scripts()] + CODE + EMOJI
    return own * 2 + [(OUT.parents[2] / "LICENSE").read_text("utf-8")]


LLAMA_SPLIT = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
               r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")


def train(pre, size=600, **model):
    tok = Tokenizer(models.BPE(**model))
    tok.pre_tokenizer = pre
    tok.decoder = decoders.ByteLevel()
    tok.train_from_iterator(corpus(), trainers.BpeTrainer(
        vocab_size=size, show_progress=False, initial_alphabet=pre_tokenizers.ByteLevel.alphabet()))
    return tok


def gpt2(prefix):
    tok = train(pre_tokenizers.ByteLevel(add_prefix_space=prefix))
    tok.post_processor = processors.ByteLevel(trim_offsets=False)
    tok.add_special_tokens([AddedToken("<|endoftext|>", special=True, normalized=True)])
    return tok


def llama3():
    tok = train(pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex(LLAMA_SPLIT), "isolated"),
        pre_tokenizers.ByteLevel(add_prefix_space=False, trim_offsets=True, use_regex=False)]),
        ignore_merges=True)
    tok.add_special_tokens([AddedToken(t, special=True, normalized=False) for t in
                            ("<|begin_of_text|>", "<|end_of_text|>", "<|eot_id|>")])
    bos = tok.token_to_id("<|begin_of_text|>")
    tok.post_processor = processors.Sequence([
        processors.ByteLevel(trim_offsets=False),
        processors.TemplateProcessing(single="<|begin_of_text|> $A",
                                      pair="<|begin_of_text|> $A <|begin_of_text|>:1 $B:1",
                                      special_tokens=[("<|begin_of_text|>", bos)])])
    return tok


def flags():
    """Added tokens with every flag, over NFC."""
    tok = train(pre_tokenizers.ByteLevel(add_prefix_space=False))
    tok.normalizer = normalizers.NFC()
    tok.add_tokens([AddedToken("<l>", lstrip=True, normalized=False),
                    AddedToken("<r>", rstrip=True, normalized=False),
                    AddedToken("<lr>", lstrip=True, rstrip=True, normalized=False),
                    AddedToken("word", single_word=True, normalized=False),
                    AddedToken("<n\u00e9>", normalized=True),
                    AddedToken("<raw\u00e9>", normalized=False),
                    AddedToken("<ab>", normalized=False), AddedToken("<ab><cd>", normalized=False)])
    return tok


def as_older(path, edit):
    """Rewrites a tokenizer file as older versions of the library wrote it."""
    value = json.loads(path.read_text("utf-8"))
    edit(value)
    path.write_text(json.dumps(value, ensure_ascii=False, separators=(",", ":")) + "\n", "utf-8")


def old_merges(value):
    value["model"]["merges"] = [" ".join(m) for m in value["model"]["merges"]]
    for key in ("byte_fallback", "ignore_merges"):
        del value["model"][key]


def lose_merges(value):
    """Tokens that no merges lead to: only ignore_merges finds them."""
    value["model"]["merges"] = [m for i, m in enumerate(value["model"]["merges"]) if i % 7 != 3]


FLAGS = ["a <l> b", "a  \n<l>b", "a <r> b", "a<r>  \n b", "a  <lr>  b", "<lr><lr>", " <l> <r> ",
         "word words sword word. _word word_ 1word \u00e9word word\u00e9 -word-", "word", " word ",
         "<n\u00e9> <ne\u0301>", "<raw\u00e9> <rawe\u0301>", "<ab><cd> <ab> <ab><ab><cd>",
         "<ab><cd",
         "<l><r><lr>", "x<l>\u00a0<r>\u3000y", "\u3000<l>"]


def small_tokenizers():
    nothing = lambda value: None
    rows = [("gpt2", gpt2(False), old_merges, ["<|endoftext|>"]),
            ("gpt2-prefix", gpt2(True), nothing, ["<|endoftext|>"]),
            ("llama3", llama3(), lose_merges,
             ["<|begin_of_text|>", "<|eot_id|>", "<|end_of_text|>"]),
            ("flags", flags(), nothing, ["<l>", "<r>", "<lr>", "word", "<n\u00e9>", "<raw\u00e9>",
                                         "<ab>", "<ab><cd>"])]
    for i, (name, tok, edit, added) in enumerate(rows):
        path = OUT / f"{name}.tokenizer.json"
        tok.save(str(path))
        as_older(path, edit)
        tok = Tokenizer.from_file(str(path))
        cases = [f"a{t}b {t} {t}{t}\n{t}" for t in added] + [t[:-1] for t in added]
        cases += FLAGS if name == "flags" else []
        write(f"{name}.jsonl", plain_lines(tok, cases))
        write(f"{name}-random.jsonl.gz", random_lines(tok, 30 + i, added, 500))


# ---- further components -------------------------------------------------------------------------

def with_bytes(value):
    """Tokens for all bytes, which are no added tokens, as Llama 2 has them."""
    vocab = value["model"]["vocab"]
    for b in range(256):
        vocab[f"<0x{b:02X}>"] = len(vocab)


def train_chars(pre, normalizer=None, **model):
    """Spelled in characters; rare ones are not in the vocabulary."""
    tok = Tokenizer(models.BPE(unk_token="<unk>", **model))
    if normalizer:
        tok.normalizer = normalizer
    tok.pre_tokenizer = pre
    tok.train_from_iterator(corpus(), trainers.BpeTrainer(
        vocab_size=600, show_progress=False, limit_alphabet=150,
        special_tokens=["<unk>", "<s>", "</s>"]))
    return tok


def llama2():
    tok = train_chars(pre_tokenizers.Metaspace(prepend_scheme="first"), fuse_unk=True,
                      byte_fallback=True)
    tok.normalizer = normalizers.Sequence([normalizers.Prepend("\u2581"),
                                           normalizers.Replace(" ", "\u2581")])
    tok.pre_tokenizer = None
    tok.decoder = decoders.Sequence([decoders.Replace("\u2581", " "), decoders.ByteFallback(),
                                     decoders.Fuse(), decoders.Strip(" ", 1, 0)])
    return tok


def no_pre_tokenizer(value):
    with_bytes(value)
    value["pre_tokenizer"] = None


def metaspace(scheme, split, **model):
    tok = train_chars(pre_tokenizers.Metaspace(prepend_scheme=scheme, split=True), **model)
    tok.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme=scheme, split=split)
    tok.decoder = decoders.Metaspace(prepend_scheme=scheme)
    return tok


def digits():
    return train(pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True),
                                          pre_tokenizers.ByteLevel(add_prefix_space=False)]))


def splits():
    """Every behaviour, inverted and not."""
    split = pre_tokenizers.Split
    return train(pre_tokenizers.Sequence([
        split(Regex(r"\p{N}{2}"), "contiguous"), split(",", "removed"),
        split(Regex(r"[.;:]"), "merged_with_previous"), split(" ", "merged_with_next"),
        split(Regex(r"[aeiou]+|\p{Lu}"), "isolated"), split(Regex(r"[^x]+"), "removed", invert=True),
        pre_tokenizers.ByteLevel(add_prefix_space=True, use_regex=False)]))


def falcon():
    """Stages behind ByteLevel see its alphabet, in which bytes may be digits."""
    return train(pre_tokenizers.Sequence([
        pre_tokenizers.Punctuation("contiguous"), pre_tokenizers.ByteLevel(add_prefix_space=False),
        pre_tokenizers.Digits(), pre_tokenizers.Split(Regex("[0-9][0-9][0-9]"), "isolated")]))


def bloom():
    return train(pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex(" ?[^(\\s|[.,!?\u2026\u3002\uff0c\u3001\u0964\u06d4\u060c])]+"), "isolated"),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]))


def words():
    """Parts of words, as Oniguruma has them, without a decoder."""
    tok = train(pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex(r"\w+|[^\w\s]+|\W"), "isolated"),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]))
    tok.decoder = None
    return tok


def truncating(value):
    value["truncation"] = {"direction": "Right", "max_length": 1 << 20, "strategy": "LongestFirst", "stride": 0}
    value["padding"] = {"strategy": "BatchLongest", "direction": "Right", "pad_to_multiple_of": None,
                        "pad_id": 0, "pad_type_id": 0, "pad_token": "x"}


def whitespace():
    tok = train_chars(pre_tokenizers.Whitespace(), fuse_unk=True)
    tok.normalizer = normalizers.Sequence([normalizers.Strip(), normalizers.Lowercase(),
                                           normalizers.NFKD()])
    tok.decoder = decoders.Fuse()
    return tok


def punctuation(behaviour):
    tok = train(pre_tokenizers.Sequence([
        pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Punctuation(behaviour),
        pre_tokenizers.Digits(), pre_tokenizers.ByteLevel(add_prefix_space=True, use_regex=False)]))
    tok.normalizer = normalizers.Sequence([normalizers.Strip(left=False), normalizers.Lowercase()])
    return tok


def flags_normal():
    """Added tokens that are looked for in normal text, with every flag."""
    tok = train(pre_tokenizers.ByteLevel(add_prefix_space=False))
    tok.normalizer = normalizers.Sequence([normalizers.NFC(), normalizers.Lowercase(),
                                           normalizers.Strip(right=False)])
    tok.add_tokens([AddedToken("<L>", lstrip=True), AddedToken("<r>", rstrip=True),
                    AddedToken("<l\u00c9>", lstrip=True, rstrip=True),
                    AddedToken("word", single_word=True), AddedToken(" of ", normalized=True),
                    AddedToken("<raw>", lstrip=True, normalized=False)])
    return tok


def normal(*steps):
    tok = train(pre_tokenizers.ByteLevel(add_prefix_space=False))
    tok.normalizer = normalizers.Sequence(list(steps))
    return tok


def further_tokenizers(n=300):
    nothing = lambda value: None
    special = ["<s>", "</s>"]
    marked = ["a<s>b", "<s>a", " <s> a", "\u2581a", "a \u2581 b", "<0x41>"]
    rows = [("llama2", llama2(), no_pre_tokenizer, special, marked),
            ("metaspace", metaspace("first", True, fuse_unk=True), nothing, special, marked),
            ("metaspace-never", metaspace("never", False), nothing, special, marked),
            ("metaspace-always", metaspace("always", True, byte_fallback=True), with_bytes, special,
             marked),
            ("digits", digits(), nothing, ["12"], []), ("splits", splits(), nothing, ["x,"], []),
            ("nfkc", normal(normalizers.NFKC(), normalizers.Replace(Regex(r"\s+"), " "),
                            normalizers.Replace("q", "Q'"), normalizers.Prepend("_")), nothing, ["q"],
             []),
            ("nfkd", normal(normalizers.NFD(), normalizers.NFKD()), nothing, ["\ufb01"], []),
            ("whitespace", whitespace(), nothing, special, ["\u0130I", "\u03a3\u03a3", "a_b-c"]),
            ("punctuation", punctuation("isolated"), nothing, ["!?"], []),
            ("punctuation-contiguous", punctuation("contiguous"), nothing, ["!?"], []),
            ("flags-normal", flags_normal(), nothing,
             ["<L>", "<l>", "<r>", "<l\u00e9>", "<LE\u0301>", "word", "WORD", " of ", " OF ",
              "<raw>", "<RAW>"], FLAGS),
            ("falcon", falcon(), truncating, ["12"], ["1234567", "\u00b2\u00bc1", "a\u00bd b", "x  12 34567!!"]),
            ("bloom", bloom(), nothing, ["(|)"], ["a(b|c).d", " ...", "\u3002\uff0c"]),
            ("words", words(), nothing, ["\u24b6"], ["\u00b2x\u00bd", "\u2160\u24b6\U0001f130", "a_b\u203fc", "\u200dx"])]
    for i, (name, tok, edit, added, cases) in enumerate(rows):
        path = OUT / f"{name}.tokenizer.json"
        tok.save(str(path))
        as_older(path, edit)
        tok = Tokenizer.from_file(str(path))
        soup = Soup(50 + i, added)
        drawn = texts(cases)[i % 3::3] + [soup.draw() for _ in range(n)]
        write(f"{name}.jsonl.gz", [
            line(kind=k, text=t, ids=ids_of(tok, t),
                 decoded=tok.decode(ids_of(tok, t), skip_special_tokens=False)) for k, t in drawn])


def main():
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    data = Path(sys.argv[1]).read_bytes()
    qwen = Tokenizer.from_str(data.decode("utf-8"))
    added = [t.content for t in qwen.get_added_tokens_decoder().values()]
    print("sha256 of the Qwen3 tokenizer:", hashlib.sha256(data).hexdigest())
    write("qwen3.jsonl", plain_lines(qwen, QWEN_ADDED))
    write("qwen3-long.jsonl.gz", long_lines(qwen, "<|im_start|>"))
    write("qwen3-random.jsonl.gz", random_lines(qwen, 20, added, RANDOM))
    demo = Tokenizer.from_file(str(DEMO))
    write("demo.jsonl", plain_lines(demo, QWEN_ADDED))
    write("demo-long.jsonl.gz", long_lines(demo, "<|im_start|>"))
    demo_added = [t.content for t in demo.get_added_tokens_decoder().values()]
    write("demo-random.jsonl.gz", random_lines(demo, 21, demo_added, 2000))
    small_tokenizers()
    further_tokenizers()
    write_unicode()


if __name__ == "__main__":
    main()
