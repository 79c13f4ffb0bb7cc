#!/usr/bin/env python3
"""Conversations drawn at random, rendered by chat templates, against transformers.

    random_chats.py [--count N] [--seed S] [--out DIR] [--build DIR] TEMPLATE.jinja|FOLDER...
    random_chats.py --store          # writes rendered/*.jsonl, of the suite's own templates there

Each template renders N conversations (chat_draws.py) by transformers and by what `make` built
(test_golden_rendered): the texts must be equal byte by byte, and what raises an error must be refused.
Both see messages as d9d prepares them: thoughts under both names, parts joined (d9d/data/chat/chat.h).

Masks: with {% generation %} they must be transformers'.  What d9d finds in a template without marks
is held to three things: the marks of the same template, where it had any; the script of each
character, which tells who wrote it; and the texts of the chat's beginnings, where they begin the whole.
Such a mask is equal, or refused by a sentence, or wrong.  Exits with 1 if anything is wrong.
"""
import datetime
import functools
import json
import os
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import transformers.utils.chat_template_utils as U

from chat_draws import OWN, SCRIPTS, Draw, chat
from random_options import options

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
TOKENS = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>", "pad_token": "<pad>"}
MARK = re.compile(r"\{%([-+]?)\s*(end)?generation\s*([-+]?)%\}")
SPACE = " \n\t\r"


class Date(datetime.datetime):
    @classmethod
    def now(cls, tz=None):
        return cls(2024, 7, 26)


U.datetime = Date


# ---- what transformers makes of it ----------------------------------------------------------


@functools.lru_cache(maxsize=None)
def mentions_text(template):
    """Whether parts of a content reach the template as they are; see d9d/data/chat/chat.h."""
    env = U._compile_jinja_template(template).environment
    return any((kind == "name" and value == "text") or (kind == "string" and value[1:-1] == "text")
               for _, kind, value in env.lex(template))


def prepared(template, message):
    """A message as d9d gives it to templates."""
    thoughts = next((message[k] for k in ("reasoning_content", "thinking", "reasoning")
                     if message.get(k) is not None), None)
    out = {} if thoughts is None else {"thinking": thoughts}
    for key, value in message.items():
        if key == "content" and isinstance(value, list) and not mentions_text(template) and all(
                p.get("type") == "text" for p in value):
            value = "".join(p["text"] for p in value)
        if key == "content" or value is not None:
            out[key] = value
    if thoughts is not None:
        out["reasoning_content"] = out["thinking"] = thoughts
    return out


def render(template, given, n=None, prompt=False, marks=False):
    """Text and spans, in characters, of the first n messages."""
    more = {k: v for k, v in given.items() if k not in ("messages", "tools", "documents", *TOKENS)}
    messages = [prepared(template, m) for m in given["messages"][:n]]
    texts, spans = U.render_jinja_template(
        [messages], tools=given.get("tools"), documents=given.get("documents"), chat_template=template,
        return_assistant_tokens_mask=marks, add_generation_prompt=prompt, **TOKENS, **more)
    return texts[0], spans[0] if marks else []


def try_render(*args, **kwargs):
    try:
        return render(*args, **kwargs)[0]
    except Exception:  # whatever jinja2 and Python raise
        return None


def joined(spans):
    out = []
    for begin, end in sorted(spans):
        if out and begin <= out[-1][1]:
            out[-1][1] = max(out[-1][1], end)
        elif begin < end:
            out.append([begin, end])
    return out


def to_bytes(text, spans):
    at = [0]
    for c in text:
        at.append(at[-1] + len(c.encode()))
    return [[at[b], at[e]] for b, e in spans]


def to_chars(text, spans):
    at, k = {}, 0
    for i, c in enumerate(text):
        at[k] = i
        k += len(c.encode())
    at[k] = len(text)
    return [[at[b], at[e]] for b, e in spans]


def line_of(template, given, prompt):
    line = {"chat": given, "prompt": prompt}
    marked = MARK.search(template) is not None
    try:
        line["text"], spans = render(template, given, prompt=prompt, marks=marked and not prompt)
        if marked and not prompt:
            line["spans"] = to_bytes(line["text"], joined(spans))
    except Exception as e:
        line["error"] = f"{type(e).__name__}: {e}"
    return line


def draw(name, template, count, seed, errors=0.25):
    """Lines of which few are errors, where the template takes such conversations at all."""
    try:
        names = U._get_template_variables(template)
    except Exception:
        names = frozenset()
    for k in range(count):
        r = Draw(f"{seed} {name} {k}")
        for simple in range(9):
            line = line_of(template, *chat(r, names, simple))
            if "text" in line or (simple == 0 and r.maybe(errors)):
                break
        yield line


# ---- masks of templates without marks ---------------------------------------------------------


def origin(c):
    return next((k for k, (low, high) in SCRIPTS.items() if low <= ord(c) < high), None)


def bare(text, spans):
    """Without white space at their ends."""
    return [[b, b + len(text[b:e].rstrip(SPACE))] for b, e in spans if text[b:e].strip(SPACE)]


def check_origins(text, spans):
    """All that the assistant wrote is within the spans, and nothing that others wrote."""
    inside = [False] * len(text)
    for b, e in spans:
        inside[b:e] = [True] * (e - b)
    for i, c in enumerate(text):
        who = origin(c)
        if who is not None and inside[i] != (who in OWN):
            yield f"{who} {'in' if inside[i] else 'out of'} a span at {i}"
            return


def differences(text, got, want):
    """Runs of text that only one of them has, without blanks at their ends: begin, end, is it wanted."""
    has = [[False] * len(text), [False] * len(text)]
    for mine, spans in zip(has, (got, want)):
        for b, e in spans:
            mine[b:e] = [True] * (e - b)
    at = 0
    while at < len(text):
        end = at + 1
        while end < len(text) and (has[0][end], has[1][end]) == (has[0][at], has[1][at]):
            end += 1
        if has[0][at] != has[1][at] and text[at:end].strip(SPACE):
            run = text[at:end]
            yield at + len(run) - len(run.lstrip(SPACE)), at + len(run.rstrip(SPACE)), has[1][at]
        at = end


def is_ending(text, begin, end):
    """Text of the template's behind the last message."""
    return end == len(text.rstrip(SPACE)) and not any(origin(c) for c in text[begin:end])


def is_header(text, begin, end, prompts):
    """Is it part of a prompt, or of as much of one as the turn has?"""
    return any(text[:end].endswith(p[:n]) for p in prompts for n in range(end - begin, len(p) + 1))


def prompts_of(template, given):
    """What a prompt adds, behind each of the chat's beginnings; if nothing, how both end."""
    endings = []
    for i in range(1, len(given["messages"]) + 1):
        with_prompt, without = try_render(template, given, i, True), try_render(template, given, i)
        if with_prompt is not None and without is not None and with_prompt.startswith(without):
            yield with_prompt[len(without):]
            endings += [without] if with_prompt == without else []
    if len(endings) > 1:
        yield os.path.commonprefix([e[::-1] for e in endings])[::-1]


def check_marks(text, got, want, prompts, begins):
    """The marks may have the prompt too, or what ends the text, and not what ends the chat up to there."""
    for b, e, wanted in differences(text, got, bare(text, want)):
        if not (e in begins or (wanted and (is_header(text, b, e, prompts) or is_ending(text, b, e)))):
            yield f"{text[b:e]!r} is {'only in' if wanted else 'not in'} the marks"


def check_turns(template, given, text, spans, prompts):
    """Each answer, where the beginning of the chat is also the whole's."""
    for i, m in enumerate(given["messages"]):
        if m["role"] != "assistant" or i == 0:
            continue
        before, after = try_render(template, given, i, True), try_render(template, given, i + 1)
        if not before or not after or not text.startswith(after) or not after.startswith(before):
            continue
        b, e = len(before), len(after)
        got = [[max(s[0], b), min(s[1], e)] for s in spans if s[0] < e and s[1] > b]
        for b, e, _ in differences(text, got, bare(text, [[b, e]])):
            header = any(s[0] >= e and text[e:s[0]].strip(SPACE) in ("", *prompts) for s in spans)  # of the next answer
            if not header and not is_ending(text, b, e) and not is_header(text, b, e, prompts):
                yield f"answer {i}: {text[b:e]!r} is not in a span"


def begins_like(text, at, prompt):
    """Does what stands before `at` end with the prompt, or with as much of it as the turn has?"""
    for n in range(len(prompt), 0, -1):
        if text[:at].endswith(prompt[:n]):
            return n == len(prompt) or not text[at:].startswith(prompt[n:n + 1]) or prompt[n - 1] in "\n>]"
    return prompt == ""


def check_begins(text, spans, prompts, begins):
    """Each span begins behind what a prompt is there."""
    if prompts and "" not in prompts:
        for b, e in spans:
            if b not in begins and not any(begins_like(text, b, p) or begins_like(text, b, p.strip(SPACE)) for p in prompts):
                yield f"before {text[b:e]!r} stands {text[max(0, b - 30):b]!r}, which ends no prompt"


def check_mask(template, line, spans, marked):
    """What is wrong with the spans of a text without marks."""
    text, given = line["text"], line["chat"]
    prompts = set(prompts_of(template, given))
    begins = {len(p) for i in range(len(given["messages"])) for prompt in (True, False)
              if (p := try_render(template, given, i, prompt)) and text.startswith(p)}
    if marked is not None:
        yield from check_marks(text, bare(text, spans), to_chars(text, marked), prompts, begins)
    yield from check_origins(text, spans)
    yield from check_turns(template, given, text, bare(text, spans), prompts)
    yield from check_begins(text, spans, prompts, begins)


# ---- comparison -------------------------------------------------------------------------------


def without_marks(template):
    return MARK.sub(lambda m: f"{{%{m[1]} {m[2] or ''}with {m[3]}%}}", template)


def compare(name, template, lines, got, marks, tally):
    """Counts, and says what differs.  marks: of the same texts, or None."""
    for k, (line, g) in enumerate(zip(lines, got, strict=True)):
        def say(kind, what):
            tally[kind] += 1
            print(f"{name}\t{k}\t{kind}\t{what}")

        if "error" in line:
            if "refused" in g:
                tally["both refuse"] += 1
                print(f"{name}\t{k}\trefusal\t{line['error']!r}\t{g['refused']!r}", file=sys.stderr)
            else:
                say("TAKEN", f"{line['error']!r}")
        elif "refused" in g:
            say("REFUSED", g["refused"])
        elif g["text"] != line["text"]:
            at = next(i for i, (a, b) in enumerate(zip(g["text"] + "\0", line["text"] + "\1")) if a != b)
            say("DIFFERS", f"{g['text'][at - 20:at + 40]!r} is not {line['text'][at - 20:at + 40]!r}")
        else:
            tally["equal"] += 1
        if "text" not in line or line["text"] != g.get("text") or line["prompt"]:
            continue
        if "spans" in line:
            if g.get("spans") == line["spans"]:
                tally["masks equal"] += 1
            else:
                say("MASK", f"{g.get('spans', g.get('unknown'))} is not {line['spans']}")
            continue
        if "unknown" in g:
            tally["masks refused"] += 1
            print(f"{name}\t{k}\tunknown\t{g['unknown']!r}", file=sys.stderr)
            continue
        wrong = list(check_mask(template, line, to_chars(line["text"], g["spans"]), marks[k] if marks else None))
        if wrong:
            say("MASK", "; ".join(wrong))
        else:
            tally["masks equal"] += 1


def write(folder, name, template, lines):
    (folder / f"{name}.jinja").write_text(template, "utf-8", newline="")
    with open(folder / f"{name}.jsonl", "w", encoding="utf-8") as out:
        for line in lines:
            out.write(json.dumps(line, ensure_ascii=False) + "\n")


def read(path):
    with open(path, encoding="utf-8", newline="") as f:
        return f.read()


def templates_of(paths):
    for path in paths:
        yield from sorted(path.glob("*.jinja")) if path.is_dir() else [path]


def unmarked_lines(template, lines):
    """The same chats without marks, where the text is the same."""
    bare_template = without_marks(template)
    out = [dict(line_of(bare_template, l["chat"], l["prompt"])) for l in lines]
    marks = [l.get("spans") if l.get("text") == o.get("text") else None for l, o in zip(lines, out)]
    return bare_template, out, marks


def run_all(paths, count, seed, out, build):
    out.mkdir(parents=True, exist_ok=True)
    (out / "tokenizer_config.json").write_text(json.dumps(TOKENS))
    done = {}
    for path in templates_of(paths):
        template = read(path)
        lines = list(draw(path.stem, template, count, seed))
        done[path.stem] = template, lines, None
        if MARK.search(template) and any("text" in l for l in lines):
            done[path.stem + ".unmarked"] = unmarked_lines(template, lines)
    for name, (template, lines, _) in done.items():
        write(out, name, template, lines)
    p = subprocess.run([build / "tests/golden/test_golden_rendered", out], capture_output=True, text=True,
                       encoding="utf-8", check=True)
    got = {}
    for row in p.stdout.split("\n")[:-1]:
        name, _, value = row.split("\t", 2)
        got.setdefault(name, []).append(json.loads(value))
    return done, got


def store(count):
    folder = HERE / "rendered"
    (folder / "tokenizer_config.json").write_text(json.dumps(TOKENS) + "\n")
    for path in templates_of([folder]):
        lines = list(draw(path.stem, read(path), count, 0, errors=1))
        for line in lines:
            if "error" in line:
                line["error"] = line["error"].split(":")[0]
        write(folder, path.stem, read(path), lines)
        print(path.stem, len(lines), "chats,", sum("error" in l for l in lines), "errors")


def main():
    p = options(50, "random-chats")
    p.add_argument("--build", type=Path, default=ROOT / "build")
    p.add_argument("--store", action="store_true")
    p.add_argument("templates", nargs="*", type=Path, metavar="TEMPLATE.jinja|FOLDER")
    a = p.parse_args()
    if a.store:
        store(16)
        return
    done, got = run_all(a.templates, a.count, a.seed, a.out.resolve(), a.build.resolve())
    wrong = 0
    for name, (template, lines, marks) in done.items():
        tally = Counter()
        compare(name, template, lines, got[name], marks, tally)
        print(f"{name}: " + ", ".join(f"{v} {k}" for k, v in sorted(tally.items(), reverse=True)), flush=True)
        wrong += any(k.isupper() for k in tally)
    print(f"{len(done)} templates, {wrong} of them with something wrong")
    sys.exit(wrong > 0)


if __name__ == "__main__":
    main()
