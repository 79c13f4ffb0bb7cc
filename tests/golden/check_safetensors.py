#!/usr/bin/env python3
"""check_safetensors.py LIBD9D [N [SEED]] - which of N (5000) spoilt files each reader opens.

Ours is d9d_safetensors_open() of the shared library, the other one the safetensors package.  What it
refuses and we open is a failure (exit 1).  What we refuse and it opens is listed by our sentence.
"""
import collections
import ctypes
import json
import random
import re
import struct
import sys
import tempfile

from safetensors import safe_open

lib = ctypes.CDLL(sys.argv[1])
lib.d9d_err_message.restype = ctypes.c_char_p
count = int(sys.argv[2]) if len(sys.argv) > 2 else 5000
rng = random.Random(int(sys.argv[3]) if len(sys.argv) > 3 else 1)

DTYPES = "BOOL U8 I8 F8_E4M3 F8_E5M2 I16 U16 F16 BF16 I32 U32 F32 F64 I64 U64 C64 F4 F8_E8M0 f32".split()
SIZE = dict(BOOL=1, U8=1, I8=1, F8_E4M3=1, F8_E5M2=1, I16=2, U16=2, F16=2, BF16=2, I32=4, U32=4, F32=4, F64=8, I64=8, U64=8)
NUMBERS = ["0", "1", "2", "3", "4", "8", "-1", "-0", "1.0", "1e0", "01", "+1", "4294967296", "9223372036854775807",
           "18446744073709551615", "18446744073709551616", "true", "null", '"1"', "[]", "1e400", "0x1"]
TOKENS = ["{", "}", "[", "]", ",", ":", '"', " ", "\n", "\t", "\x00", "\\u0000", "\\ud800", "\\n", "\x7f", "\ufeff",
          "//", "null", '"a"', "0", "é", '"__metadata__":{}', '"x":{"dtype":"U8","shape":[0],"data_offsets":[0,0]}', "[" * 70 + "]" * 70]


def sound():
    """A right header as text, and the bytes of its tensors."""
    out, at = {}, 0
    if rng.random() < 0.4:
        out["__metadata__"] = {"format": "pt"}
    for i in range(rng.randrange(4)):
        t = rng.choice(list(SIZE))
        shape = [rng.choice([0, 1, 2, 3]) for _ in range(rng.randrange(4))]
        n = SIZE[t]
        for d in shape:
            n *= d
        out["t%d" % i] = {"dtype": t, "shape": shape, "data_offsets": [at, at + n]}
        at += n
    return json.dumps(out, separators=rng.choice([(",", ":"), (", ", ": ")])), at


def spoil(text):
    kind = rng.randrange(9)
    if kind == 0 and re.search(r"\d", text):
        places = [m.span() for m in re.finditer(r"-?\d+", text)]
        a, b = rng.choice(places)
        return text[:a] + rng.choice(NUMBERS) + text[b:]
    if kind == 1:
        a = rng.randrange(len(text) + 1)
        return text[:a] + rng.choice(TOKENS) + text[a:]
    if kind == 2 and text:
        a = rng.randrange(len(text))
        return text[:a] + text[a + rng.randrange(1, 4):]
    if kind == 3:
        return text + rng.choice([" ", "  \n", "\t", "\x00", "x", "{}", ",", "\r\n"])
    if kind == 4:
        return rng.choice([" ", "\ufeff", "\n", "[", "x"]) + text
    if kind == 5:
        words = re.findall(r'"[^"]*"', text) or ['"a"']
        return text.replace(rng.choice(words), rng.choice(words + ['"%s"' % rng.choice(DTYPES), '""', '"a/b"', '"shape"']), 1)
    if kind == 6 and '"t0"' in text:
        doc = json.loads(text) if text.startswith("{") else {}
        t = doc.get("t0")
        if isinstance(t, dict):
            what = rng.randrange(5)
            if what == 0:
                t.pop(rng.choice(list(t)), None)
            elif what == 1:
                t["more"] = rng.choice([1, None, [], {"a": {}}])
            elif what == 2:
                t["dtype"] = rng.choice(DTYPES)
            elif what == 3:
                t["shape"] = [1] * rng.randrange(9)
            else:
                t["data_offsets"] = [rng.randrange(9) for _ in range(rng.randrange(4))]
            return json.dumps(doc)
    if kind == 7:
        return text.replace("}", "},", 1) if rng.random() < 0.5 else text.replace("{", '{"a":', 1)
    return text


def ours(path):
    f = ctypes.c_void_p()
    if lib.d9d_safetensors_open(path.encode(), ctypes.byref(f)) != 0:
        return lib.d9d_err_message().decode(errors="replace")
    lib.d9d_safetensors_close(f)
    return None


def theirs(path):
    try:
        with safe_open(path, "np") as f:
            list(f.keys())
    except Exception as e:
        return str(e)
    return None


def gist(sentence):
    sentence = re.sub(r"^.*?/x\.safetensors: ", "", sentence)
    sentence = re.sub(r'"[^"]*"', '"."', re.sub(r"tensor .*?(:| is| has| ends| starts)", r"tensor NAME\1", sentence))
    return re.sub(r"\d+", "N", sentence)[:90]


stricter, laxer, both, neither = collections.Counter(), [], 0, 0
example = {}
with tempfile.TemporaryDirectory() as work:
    path = work + "/x.safetensors"
    for i in range(count):
        text, data = sound()
        try:
            for _ in range(rng.randrange(3)):
                text = spoil(text)
        except (ValueError, AttributeError):
            pass
        raw = text.encode("utf-8", "surrogatepass")
        if rng.random() < 0.1 and raw:
            at = rng.randrange(len(raw))
            raw = raw[:at] + bytes([rng.randrange(256)]) + raw[at + 1:]
        n = len(raw) + (rng.choice([-1, 1, 1 << 40, 100000001]) if rng.random() < 0.05 else 0)
        more = data + (rng.choice([-1, 1, 8]) if rng.random() < 0.1 else 0)
        with open(path, "wb") as f:
            f.write(struct.pack("<Q", max(n, 0)) + raw + b"\0" * max(more, 0))
        a, b = ours(path), theirs(path)
        if a is None and b is None:
            both += 1
        elif a is not None and b is not None:
            neither += 1
        elif a is None:
            laxer.append((raw, b))
        else:
            stricter[gist(a)] += 1
            example.setdefault(gist(a), raw)
print("%d files: both open %d, both refuse %d, only ours refuses %d, only the other refuses %d"
      % (count, both, neither, sum(stricter.values()), len(laxer)))
for g, k in stricter.most_common():
    print("  stricter %5d  %s\n%18s%s" % (k, g, "", example[g][:150]))
for raw, why in laxer[:20]:
    print("  LAXER %s\n        %s" % (raw[:200], why))
sys.exit(1 if laxer else 0)
