#!/usr/bin/env python3
"""Trains the demo's tokenizer: byte-level BPE of 2048 ids on C headers.

    python make_tokenizer.py [tokenizer.json]

Built like Qwen3's: NFC, the same splitting expression, byte-level BPE, added tokens after the
vocabulary. The text is every header of the Debian packages libc6-dev and linux-libc-dev that lies
under /usr/include, in the order of the paths; the same packages give the same file.
Needs the package tokenizers (0.23.3 made the file beside this one).
"""
import subprocess
import sys
from pathlib import Path

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers
from tokenizers import pre_tokenizers, processors, trainers

PACKAGES = ("libc6-dev", "linux-libc-dev")
SIZE = 2048
SPLIT = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}"
         r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")
SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
PLAIN = ("<think>", "</think>")


def headers():
    listed = subprocess.run(["dpkg", "-L", *PACKAGES], check=True, capture_output=True, text=True)
    paths = {p for p in listed.stdout.split("\n")
             if p.startswith("/usr/include/") and p.endswith(".h")}
    return [Path(p).read_text("utf-8", "replace") for p in sorted(paths)]


def main():
    tok = Tokenizer(models.BPE())
    tok.normalizer = normalizers.NFC()
    tok.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex(SPLIT), "isolated"),
        pre_tokenizers.ByteLevel(add_prefix_space=False, trim_offsets=False, use_regex=False)])
    tok.decoder = decoders.ByteLevel(add_prefix_space=False, trim_offsets=False, use_regex=False)
    tok.post_processor = processors.ByteLevel(add_prefix_space=False, trim_offsets=False,
                                              use_regex=False)
    trainer = trainers.BpeTrainer(vocab_size=SIZE - len(SPECIAL) - len(PLAIN), show_progress=False,
                                  initial_alphabet=pre_tokenizers.ByteLevel.alphabet())
    tok.train_from_iterator(headers(), trainer)
    tok.add_special_tokens([AddedToken(t, normalized=False, special=True) for t in SPECIAL])
    tok.add_tokens([AddedToken(t, normalized=False, special=False) for t in PLAIN])
    assert tok.get_vocab_size() == SIZE
    out = sys.argv[1] if len(sys.argv) > 1 else Path(__file__).with_name("tokenizer.json")
    tok.save(str(out))


if __name__ == "__main__":
    main()
