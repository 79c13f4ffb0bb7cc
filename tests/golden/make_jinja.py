#!/usr/bin/env python3
"""Golden vectors of Jinja: templates, contexts, and the text that jinja2 makes of them.

    python make_jinja.py                       # writes jinja/*.json
    python make_jinja.py FILE.jinja... >OUT    # the same of other templates, 50 chats each

The environment is the one that HuggingFace transformers gives its chat templates: the immutable
sandbox with trim_blocks, lstrip_blocks, loop controls, {% generation %} and its own tojson.  The
templates of jinja/*.jinja are written for this suite, with the constructs of the families' own.

A case is {"name", "template", "context", "want"}, with "spans" of generated text in bytes, or with
"error", the name of the exception, in place of "want"; "refused" is what d9d alone refuses.  A context of
null is that of context.json, a template of null that of the file.  strftime_now() tells 2024-07-26 13:05:09.
"""
import datetime
import functools
import json
import random
import sys
from pathlib import Path

import jinja2
from jinja2.ext import Extension, loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment

HERE = Path(__file__).resolve().parent
BEGIN, END = "\U000f0000", "\U000f0001"
NOW = datetime.datetime(2024, 7, 26, 13, 5, 9)


class Generation(Extension):
    """{% generation %}, whose text is put between two marks."""

    tags = {"generation"}

    def parse(self, parser):
        line = next(parser.stream).lineno
        body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
        return jinja2.nodes.CallBlock(self.call_method("_mark"), [], [], body).set_lineno(line)

    def _mark(self, caller):
        return BEGIN + caller() + END


class Dict:
    def __call__(self, *args, **kwargs):
        return dict(*args, **kwargs)


class Namespace(jinja2.utils.Namespace):
    def __init__(*args, **kwargs):
        attrs = dict(*args[1:], **kwargs)
        for name in attrs:
            Namespace.check(name)
        jinja2.utils.Namespace.__init__(args[0], attrs)

    def __setitem__(self, name, value):
        Namespace.check(name)
        jinja2.utils.Namespace.__setitem__(self, name, value)

    @staticmethod
    def check(name):
        if isinstance(name, str) and name.startswith("_"):
            raise jinja2.exceptions.SecurityError(name)


def raise_exception(message):
    raise jinja2.exceptions.TemplateError(message)


def tojson(x, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
    return json.dumps(x, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def environment():
    env = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[Generation, loopcontrols])
    env.filters["tojson"] = tojson
    env.globals.update(raise_exception=raise_exception, strftime_now=NOW.strftime, dict=Dict(), namespace=Namespace)
    return env


ENV = environment()


@functools.lru_cache(maxsize=4)
def compiled(template):
    return ENV.from_string(template)


def spans_of(text):
    """Text without marks, and the spans between them, in bytes."""
    out, spans, begin = b"", [], None
    for part in text.replace(BEGIN, "\0" + BEGIN).replace(END, "\0" + END).split("\0"):
        if part.startswith(BEGIN):
            begin = len(out)
        elif part.startswith(END):
            spans.append([begin, len(out)])
        out += part.lstrip(BEGIN + END).encode()
    return out.decode(), spans


def case(name, template, context):
    c = {"name": name, "template": template, "context": context}
    try:
        text = compiled(template).render(**context)
        c["want"], spans = spans_of(text)
        if "generation" in template:
            c["spans"] = spans
    except Exception as e:  # whatever jinja2 and Python raise
        c["error"] = type(e).__name__
    return c


# ---- expressions ----------------------------------------------------------------------------

CONTEXT = {
    "s": "Hello, World", "u": "\u00c9t\u00e9 \u4f60\u597d \U0001f600", "e": "", "sp": "  a  b\tc\n ",
    "n": 7, "z": 0, "neg": -7, "f": 2.5, "t": True, "no": False, "none_value": None,
    "l": [3, 1, 2], "ls": ["b", "A", "c", "a"], "le": [], "ll": [[1, 2], [3, 4]],
    "d": {"b": 1, "a": "x", "C": [1, None, True]}, "de": {},
    "rows": [{"role": "user", "k": {"v": 1}, "x": 2}, {"role": "system", "k": {"v": 2}},
             {"role": "user", "k": {"v": 3}, "x": None}],
    "html": "<a href=\"x\">'&'</a>", "lines": "one\ntwo\n\nthree\r\nfour", "greek": "\u03a3\u0391\u03a3 \u039f\u0394\u03a5\u03a3\u03a3\u0395\u03a5\u03a3",
    "ctl": "a\x01\x7f\x85\u2028\u00ad\"\\'/\t\r\n\b\f", "quote": "it's",
    "tool": {"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {
        "q": {"type": "string", "description": "what \u00e9 < > & '"}, "n": {"type": ["integer", "null"]}},
        "required": ["q"]}}},
    "items_key": {"items": 1, "get": 2, "keys": 3},
}

EXPRESSIONS = """
1 + 2 * 3|7 // 2|-7 // 2|7 % 3|-7 % 3|7 % -3|7 / 2|6 / 3|2 ** 10|2 ** -1|2 ** 3 ** 2|-2 ** 2|1 - 2 - 3|1.5 + 1|7.5 // 2|-7.5 % 2|1e3|1_000|0x1F
0b101|0o17|1e100|1e16|123456789012345680.0|0.1 + 0.2|1e-5|0.0001|-0.0|1.0|100000000000000000000.0|3.14 | round(1)|2.5 | round|3.5 | round|2.675 | round(2)
5 | round(2)|2.4 | round(0, 'ceil')|2.6 | round(0, 'floor')|-3 | abs|-3.5 | abs|true + 1|true == 1|1 == 1.0|'a' == 'a'|'a' < 'b'|[1, 2] < [1, 3]|(1, 2) == (1, 2)|[1] == (1,)
{'a': 1, 'b': 2} == {'b': 2, 'a': 1}|none == false|1 < 2 < 3|1 < 3 < 2|3 > 2 == 2|1 in [1, 2]|'a' in 'abc'|'d' not in 'abc'|'b' in d|1 not in l|not 1 in l
true and 0|'' or 'x'|not ''|1 and 2 or 3|none or []|'yes' if t else 'no'|'yes' if no|('a' if no) is undefined|'a' if no else 'b' if no else 'c'|1 if 1 if 0 else 1 else 2
1 ~ 'a' ~ 2.0 ~ none ~ true|'a' ~ 1 + 2|1 + 2 ~ 3|'a' 'b' "c"|'a' * 3|2 * [1]|[1] + [2]|(1,) + (2,)|'x' + 'y'|-n|+n|- - n|2 - -2|'\\n\\t\\x41\\u00e9\\U0001F600\\101'|'\\q\\\\'|"it's"
[1, 'a', none, true, 2.0, "it's"]|(1,)|()|(1, 2)|{}|{'a': [1, {'b': ()}]}|{1: 2, none: 3, true: 'x'}|['\\n', 'é', '"', '\\'"']|[ctl]|[u]|none|true|false|True|None|[,]|[1,]|1, 2|(1)
s[0]|s[-1]|s[100]|s[1:3]|s[:-1]|s[::-1]|s[::2]|s[5:1:-1]|s[-3:]|s[:100]|u[1]|u[0:2]|u[::-1]|u[-2:]|l[0]|l[-1]|l[5]|l[1:]|l[::-1]|l[none:2]|l[-2:]|(1, 2, 3)[1:]|l['0']|l[true]|l.0|ll.1.0|ll[1][0]
d.a|d['a']|d.nope|d['nope']|d.nope is defined|d.items()|d.keys()|d.values()|d.get('a')|d.get('q')|d.get('q', 5)|d.C[0]|d.C.0|items_key.items()|items_key['items']|items_key.get is callable|nope|nope.x|nope[0]|nope()|nope + 1|nope ~ 'x'
nope == nope|nope == none|nope == ''|nope in l|1 in nope|nope | length|nope | list|nope | default('x')|e | default('x')|e | default('x', true)|none_value | default('x')|none_value | default('x', boolean=true)|nope | d(l)|nope|upper
s | upper|s | lower|s | title|'foo-bar baz(qux)' | title|"it's o'neil" | title|'hELLO wORLD' | capitalize|s | length|u | length|l | length|d | length|s | count|sp | trim|'xxaxx' | trim('x')|s | replace('l', 'L')|s | replace('l', 'L', 1)|'aaa' | replace('', '-')
u | upper|u | lower|u | title|'straße' | upper|greek | lower|greek.lower()|'ŉ' | upper|'İ' | lower|'ǆ' | upper
s.upper()|s.lower()|"it's o'neil".title()|'hELLO'.capitalize()|sp.strip()|sp.lstrip()|sp.rstrip()|'xyaxy'.strip('yx')|'\\n\\na\\n'.strip('\\n')|s.startswith('He')|s.startswith(('x', 'He'))|s.endswith('ld')|s.endswith(())|s.startswith(1)
sp.split()|'a,b,,c'.split(',')|'a,b,c'.split(',', 1)|' a b  c '.split(none, 1)|'a,b,c'.rsplit(',', 1)|' a b  c '.rsplit(none, 1)|''.split()|''.split(',')|'<think>x</think>y'.split('</think>')[-1]|'a'.split('')|'a b'.split(maxsplit=1)|lines.splitlines()|lines.splitlines(true)
s.replace('l', '')|s.replace('l', 'LL', 2)|'ab'.replace('', '-')|s.find('o')|s.find('zz')|u.find('好')|s.rfind('o')|s.index('o')|s.index('zz')|s.count('l')|s.count('')|', '.join(ls)|','.join([1])|','.join('abc')|'a'.isdigit()|'12'.isdigit()|''.isdigit()|'ab'.isalpha()|' \\t'.isspace()
'abc'.removeprefix('a')|'abc'.removesuffix('bc')|s.nope|s.nope()|s.format is defined|s.pop|d.pop('a')|l.append(1)|d.update({})|d.__class__|s.__class__.__name__|l.index(1)|l.index(9)|l.count(1)|(1, 2, 1).count(1)|d.copy()|l.copy()
l | join|l | join(', ')|ls | join(d='-')|rows | join(',', attribute='role')|'abc' | join('.')|d | join(',')|nope | join|l | first|l | last|le | first|le | last|s | first|s | last|d | first|d | last|l | list|s | list|d | list
l | sort|l | sort(reverse=true)|ls | sort|ls | sort(case_sensitive=true)|rows | sort(attribute='k.v', reverse=true) | map(attribute='k.v') | list|ls | unique | list|['a', 'A', 'b'] | unique | list|[1, 1.0, true] | unique | list|l | reverse | list|s | reverse|l | sum|rows | sum('k.v')|l | min|l | max|ls | max|[1, 'a'] | sort
rows | map(attribute='role') | list|rows | map(attribute='k.v') | join('+')|rows | map(attribute='zz') | list|rows | map(attribute='zz', default='-') | list|ls | map('upper') | list|ls | map('replace', 'a', 'z') | list|ls | map('nope') | list|l | map('string') | join(',')|rows | map('length') | list|ll | map('first') | list|ll | map(attribute=1) | list
rows | selectattr('role', 'equalto', 'user') | list | length|rows | selectattr('role', '==', 'system') | map(attribute='k') | list|rows | selectattr('x') | list|rows | selectattr('x', 'defined') | list | length|rows | rejectattr('role', 'equalto', 'user') | list | length|rows | selectattr('k.v', 'gt', 1) | list | length|l | select('odd') | list|l | select | list|l | reject('odd') | list|l | select('in', [1, 2]) | list|ls | select('equalto', 'a') | list | length|rows | selectattr('role', 'nope') | list|rows | selectattr('role', 'in', ['user']) | list | length
d | items | list|d | dictsort|d | dictsort(true)|d | dictsort(reverse=true)|{'a': 2, 'b': 1} | dictsort(by='value')|{'a': 2, 'b': 1} | dictsort(false, 'value')|nope | items | list|s | items | list|l | batch(2) | list|l | batch(2, 'x') | list
tool | tojson|tool | tojson(indent=2)|tool | tojson(indent='\\t')|d | tojson(separators=(',', ':'))|d | tojson(sort_keys=true)|tool | tojson(indent=4, separators=(',', ': '), sort_keys=true)|u | tojson(ensure_ascii=true)|u | tojson|ctl | tojson|ctl | tojson(ensure_ascii=true)|[] | tojson(indent=2)|{} | tojson(indent=2)|[1.0, 1e20, 1.5e-7, true, none] | tojson|{1: 2, none: 3, true: 4, 2.5: 1} | tojson|nope | tojson|(1, (2,)) | tojson|[[], [1, []], {}] | tojson(indent=0)|range(2) | tojson|'x' | tojson | safe
html | e|html | escape|html | safe|(html | safe) + '<b>'|'<b>' + (html | safe)|(html | safe) ~ '<b>'|html | string|5 | string|[1, 'a'] | string|lines | indent|lines | indent(2, true)|lines | indent(2, false, true)|lines | indent(first=true, width='> ')|'' | indent|'' | indent(first=true)|'a\\n' | indent
'42' | int|' 42 ' | int|'4.7' | int|'x' | int|'x' | int(-1)|'ff' | int(base=16)|'0xff' | int(0, 16)|4.9 | int|-4.9 | int|true | int|none | int|[] | int(3)|'1_000' | int|'4.5' | float|'x' | float|'x' | float(1.5)|'inf' | float|'1e3' | float|3 | float|nope | int|'nan' | float
n is odd|n is even|n is divisibleby 7|n is divisibleby(2)|n is number|f is float|n is integer|t is integer|t is number|t is boolean|t is true|no is false|1 is true|none_value is none|s is string|l is sequence|l is iterable|d is mapping|d is sequence|d is iterable|n is iterable|s is sequence|nope is defined|nope is undefined
n is eq 7|n is equalto(7)|n is ne 7|n is lt 8|n is gt 8|n is ge 7|n is le 6|n is in [7]|'a' is in 'abc'|n is not odd|not n is odd|n is odd and t|s is lower|s is upper|'ab' is lower|none_value is sameas none|range is callable|s is callable|d.items() is sequence|d.items() is iterable|range(3) is sequence|(l | map('string')) is iterable|nope is iterable|nope is sequence|nope is string|nope is mapping|'upper' is filter|'nope' is filter|'odd' is test
range(*[1, 3]) | list|range(0, *[4, 2]) | list|s.split(*[', ', 1])|range(3) | list|range(1, 4) | list|range(5, 0, -2) | list|range(0) | list|range(3)|range(0, 6, 2)|range(3)[1]|range(3) | length|range(3) | last|2 in range(3)|range(100001)|range(1, 2, 0)|dict(a=1, b=2)|dict({'a': 1}, b=2)|dict([('a', 1)])|dict()|namespace(a=1).a|namespace(a=1)|namespace({'a': 1}, b=2).b|namespace(_a=1)|raise_exception('no')|strftime_now('%d %b %Y')|strftime_now('%Y-%m-%d %H:%M:%S')|strftime_now('%A %B %j %p %y %%')|strftime_now('%-d %-m %-H:%-M:%-S %-I %-j %-y')
9007199254740993 / 1|9007199254740993 / 9007199254740991|9223372036854775807 / 3|-9223372036854775807 / 10|1 / 9223372036854775807|9223372036854775807 / 9223372036854775806|9007199254740995 / -1|0 / -5|-7 / 7|(-9223372036854775807 - 1) / (-9223372036854775807 - 1)|(-9223372036854775807 - 1) / 3|6004799503160661 / 9007199254740993|true / 3
1 / 0|1 // 0|1 % 0|1 + 'a'|'a' + 1|1 < 'a'|none + 1|-'a'|none.x|none.x.y|n.x|[1] | length + 1|{'a': 1}.a|{'a': 1}['a']|[1, 2][0]|'abc'[1]|'a' | upper | lower|('a' | upper)[0]|-1 | abs|- 1 | abs|1 if t|l is sequence and l | length > 2|'a' in l or n == 7
d | length == 3 and (s | upper) ~ 'x'|rows[0]['role']|rows[0].k.v + rows[-1].k['v']|rows | length - 1|(rows | last).role|rows[1:] | map(attribute='role') | list|tool.function.parameters.properties | length|tool['function']['parameters']['properties'].q.type|u | list|[1, 2, 3] | sum / 2|7 is divisibleby 3 or true|{'a': 1}|length|(1, 2) | first|s.split(', ') | last | upper
x is|1 +|(1|[1|{'a' 1}|'abc|1 2|a b|s | nope|s is nope|s[1:2:3:4]|{{}}|%}|!x|a = 1|not|if|for|s.|s |loop|f(1 2)|f(a=1, 2)|1 is 2|[] is in|..|$x|'\\ud800'|9223372036854775807|-9223372036854775807 - 1
'{}'.format(3)|'{}-{}'.format(s, u)|'{1}{0}{1}'.format('a', 'b')|'{a}{{}}{b}'.format(a=none, b=true)|'{!r}{!s}'.format(quote, l)|'{0:},{0!r:}'.format(f)|'<{}>{{'.format(d)|''.format(1)|'x'.format()|'{}'.format('{}')|'{}'.format(nope)|'{}{}'.format(*l)|'{} {0}'.format(1)|'{0} {}'.format(1)|'{'.format(1)|'}'.format(1)|'a}b'.format(1)|'{}'.format()|'{2}'.format(1, 2)|'{x}'.format(y=1)|'{x'.format(x=1)|'{!x}'.format(1)|'{!}'.format(1)|('{}' ~ u).format(u)|'{01}'.format(1, 2)|'{-1}'.format(1)
'%s and %s' % (n, l)|'%s' % s|'%s' % l|'%s' % d|'%s' % nope|'%s' % ()|'%s' % (d,)|'%(a)s-%(b)03d' % d|'%(zz)s' % d|'%(a)s' % l|'%(a)s' % n|'%(a)s %s' % d|'%(a' % d|'x' % l|'x' % d|'x' % n|'x' % nope|'x' % ()|'%d%%' % 50|'%d' % f|'%d' % 'a'|'%x' % f|'%x' % 255|'%#X' % 255|'%#o' % 8|'%#010x' % 255|'%-8d!' % n|'%+d % d' % (n, n)|'%08.3f' % neg|'%.0f' % 2.5|'%5.1f!' % 3.14159|'%e' % 12345.678|'%g' % 1e-7|'%G' % 1e20|'%#.3g' % 1|'%c%c' % (65, 'z')|'%c' % 'ab'|'%c' % 8364|'%r' % quote|'%a' % u|'%.3s|' % u|'%8s|%-8s|' % (e, 'é')|'%*d' % (5, n)|'%-*d|' % (5, n)|'%*d|' % (-5, n)|'%.*f' % (2, f)|'%*d' % ('a', 1)|'%.5d' % 42|'%08.5d' % -42|'%5%' % n|'%' % n|'%y' % n|'%ld' % n|'%s' % none_value|'%d' % true|'%d' % none|'%s' % (html | safe)|'%i %u' % (n, neg)
'%s-%s' | format('a', n)|'%(x)d' | format(x=n)|'%s' | format|'%s' | format(s, x=1)|'%s %s' | format(*l[:2])|n | format|'%d items' | format(l | length)|('%s' ~ '!') | format(u) | upper|'%.2f' | format(f)|'x' | format(x=1)
none | string|none | upper|none | trim|none | length|n | length|n | list|n | join|none | list|l | items | list|'a' | first | upper|s | trim | length|[l, le] | map('length') | sum
"""

# What jinja2 renders and d9d refuses.
REFUSED = """
9223372036854775807 + 1|9223372036854775808|3 * 4611686018427387904|2 ** 64|-(-9223372036854775807 - 1)|'%d' % 1e300|'%s' % [s | safe]|('%s' | safe) % s|'{:>5}'.format(3)|'{0[a]}'.format(d)|'{.a}'.format(d)|'{:{}}'.format(3, 4)|'{!a}'.format(u)|'{}'.format(html | safe) ~ ('{}' | safe).format(html)|s.center(20)|s | center(20)|s | truncate(5)|s | wordcount|rows | groupby('role') | list|s | urlencode|s | striptags|s | pprint|cycler('a', 'b').next()|[s | safe]|range(5)[1:]|rows | map(attribute='role,x') | list|'\\N{BULLET}'|'\u00df'.title()
"""
REFUSED_BLOCKS = [
    "{% block x %}{% endblock %}", "{% autoescape true %}{% endautoescape %}",
    "{% print n, s %}", "{% set x %}{% for y in l %}{{ loop }}{% endfor %}{% endset %}",
]


def split_line(line):
    """At "|" between expressions, which has no blank beside it there."""
    parts, at = [], 0
    for i, c in enumerate(line):
        if c == "|" and line[i - 1:i] != " " and line[i + 1:i + 2] != " ":
            parts.append(line[at:i])
            at = i + 1
    return parts + [line[at:]]


BLOCKS = [
    "a\n{% if t %}\nb\n{% endif %}\nc\n", "a\n  {% if t %}  \n  b\n  {% endif %}\n  c", "a {%- if t -%} b {%- endif -%} c",
    "a {%+ if t +%} b {%+ endif +%} c", "  {%+ if t %}x{% endif %}", "{% if t +%}\nx{% endif %}", "{{ n }}\n{{ n }}\n", "{{- n -}}  \n x", " {{- n }}\n\n{{ n -}}\n\nx\n\n",
    "{# comment #}\nx{#- y -#}  z", "a {# {{ n }} {% if %} #} b", "  {# c #}\nx", "x\n\n", "x\n\n\n", "x\r\ny\rz\r\n", "{% raw %}{{ n }} {% if %}{% endraw %}", "a\n  {% raw %}\n b {% endraw %}\n c", "{%- raw -%}  x  {%- endraw -%}  y",
    "{# no end", "{% raw %} no end", "{% if t %}", "{% endif %}", "{% nope %}", "{{ n", "{% if t %}{% else %}{% else %}{% endif %}", "{%", "{{", "{", "}} %} #}", "{ { n } }", "{{ '}}' }}", "{{ {'a': {'b': 1}} }}", "{% set x = '%}' %}{{ x }}", "\u3000{{- n -}}\u3000x",
    "{% if no %}a{% elif n %}b{% else %}c{% endif %}", "{% if no %}a{% elif z %}b{% else %}c{% endif %}", "{% if nope %}a{% endif %}b", "{% if nope is defined and nope.x %}a{% endif %}b",
    "{% for x in l %}{{ x }},{% endfor %}", "{% for x in le %}{{ x }}{% else %}none{% endfor %}", "{% for x in l if x > 1 %}{{ x }}{{ loop.index }}{{ loop.last }}{{ loop.length }} {% endfor %}", "{% for x in l if x > 9 %}{{ x }}{% else %}none{% endfor %}",
    "{% for k, v in d.items() %}{{ k }}={{ v }};{% endfor %}", "{% for k, v in d | items %}{{ k }}={{ v }};{% endfor %}", "{% for k, v in d | dictsort %}{{ k }}={{ v }};{% endfor %}", "{% for k in d %}{{ k }};{% endfor %}", "{% for (a, b) in ll %}{{ a + b }};{% endfor %}", "{% for a, (b, c) in [(1, (2, 3))] %}{{ a + b + c }}{% endfor %}", "{% for a, b in l %}{% endfor %}", "{% for c in u %}[{{ c }}]{% endfor %}",
    "{% for x in l %}{{ loop.index }}{{ loop.index0 }}{{ loop.revindex }}{{ loop.revindex0 }}{{ loop.first }}{{ loop.last }}{{ loop.length }}{{ loop.depth }}{{ loop.depth0 }};{% endfor %}",
    "{% for x in l %}{{ loop.previtem }}<{{ x }}<{{ loop.nextitem }};{% endfor %}", "{% for x in l %}{{ loop.previtem is defined }}{{ loop.nextitem is defined }}{{ loop['first'] }};{% endfor %}", "{% for x in l %}{% for y in ls %}{{ loop.index }}{% endfor %}{{ loop.index }};{% endfor %}", "{{ loop }}", "{% for x in l %}{{ loop.nope }}{% endfor %}", "{% for x in n %}{% endfor %}", "{% for x in none_value %}{% endfor %}", "{% for x in nope %}{% else %}none{% endfor %}",
    "{% for x in l %}{% if x == 1 %}{% break %}{% endif %}{{ x }}{% endfor %}", "{% for x in l %}{% if x == 1 %}{% continue %}{% endif %}{{ x }}{% endfor %}", "{% break %}", "{% for x in l %}{% for y in l %}{% if y == 1 %}{% break %}{% endif %}{{ y }}{% endfor %}{{ x }}{% endfor %}", "{% for x in l %}{% break %}{% else %}never{% endfor %}.", "{% for x in l if loop %}{% endfor %}",
    "{% for loop in l %}{% endfor %}", "{% for x in l %}{% set loop = 1 %}{% endfor %}", "{% for a, (b, loop) in ll %}{% endfor %}", "{% for x in l %}{% else %}{% set loop %}a{% endset %}{% endfor %}", "{% set loop = 1 %}{{ loop }}", "{% for x in l %}{% endfor %}{% set loop = 1 %}{{ loop }}", "{% for x in l %}{% set ns = namespace() %}{% set ns.loop = 1 %}{% with loop = 2 %}{{ loop }}{% endwith %}{% endfor %}", "{{ 5 | indent }}", "{{ d | indent }}", "{{ none | indent }}", "{{ nope | indent }}",
    "{% for x in l %}{% set y = x %}{% endfor %}{{ y }}", "{% set y = 0 %}{% for x in l %}{% set y = y + x %}{{ y }};{% endfor %}{{ y }}", "{% set ns = namespace(y=0) %}{% for x in l %}{% set ns.y = ns.y + x %}{% endfor %}{{ ns.y }}", "{% set ns = namespace() %}{% set ns.a = 1 %}{{ ns.a }}{{ ns.b }}{{ ns['a'] }}{{ ns.b is defined }}", "{% set x.y = 1 %}", "{% set d.y = 1 %}", "{% set ns = namespace() %}{% set ns._a = 1 %}", "{% for x in l %}{{ x }}{% set x = 9 %}{{ x }}{% endfor %}", "{% if t %}{% set q = 1 %}{% endif %}{{ q }}",
    "{% set a, b = 1, 2 %}{{ a }}{{ b }}", "{% set a, b = ll[0] %}{{ a }}{{ b }}", "{% set a = 1, 2 %}{{ a }}", "{% set a, b = [1] %}", "{% set x %}a{{ n }}{% endset %}[{{ x }}]", "{% set x | trim | upper %}  a{{ n }} {% endset %}[{{ x }}]", "{% set x %}{% set inner = 1 %}{% endset %}{{ inner is defined }}", "{% set ns = namespace() %}{% set ns.x %}b{% endset %}{{ ns.x }}", "{% set true = 1 %}", "{% set 1 = 1 %}", "{% set x %}{{ x }}",
    "{% macro m(a, b=2) %}{{ a }}{{ b }}{% endmacro %}{{ m(1) }}{{ m(1, 3) }}{{ m(b=5, a=4) }}{{ m() }}", "{% macro m(a) %}{{ a }}{% endmacro %}{{ m(1, 2) }}", "{% macro m(a) %}{{ a }}{% endmacro %}{{ m(b=1) }}", "{% macro m(a) %}{{ a }}{% endmacro %}{{ m(1, a=2) }}", "{% macro m(a) %}{{ a.x }}{% endmacro %}{{ m() }}", "{% macro m(a, b=a) %}{{ b }}{% endmacro %}{{ m(1) }}", "{% macro m() %}{{ varargs }}{{ kwargs }}{% endmacro %}{{ m(1, 2, x=3) }}", "{% macro m(a=1, b) %}{% endmacro %}", "{% macro m() %}  x\n{% endmacro %}[{{ m() | trim }}]{{ m() | length }}", "{{ m() }}{% macro m() %}x{% endmacro %}",
    "{% macro f(n) %}{% if n > 0 %}{{ n }}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(3) }}", "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", "{% set y = 1 %}{% macro f() %}{{ y }}{% endmacro %}{% set y = 2 %}{{ f() }}", "{% macro f() %}{{ n }}{{ zz }}{% endmacro %}{{ f() }}", "{% macro f() %}{% set n = 1 %}{{ n }}{% endmacro %}{{ f() }}{{ n }}", "{% for x in l %}{% macro f() %}{{ x }}{% endmacro %}{{ f() }}{% endfor %}", "{% macro f(x) %}{% for y in x %}{{ y }}{% endfor %}{% endmacro %}{{ f(l) ~ '!' }}", "{% macro f() %}{% break %}{% endmacro %}",
    "{% set x = l | map('string') %}{{ x | join }}{{ x | join }}", "{% set x = rows | selectattr('role', 'equalto', 'user') %}{% for r in x %}{{ r.k.v }}{% endfor %}{% for r in x %}again{% endfor %}", "{% set x = l | map('string') %}{{ x | length }}", "{% set x = l | map('string') %}{{ x[0] }}{{ x | first }}{{ x | list }}", "{{ (l | map('string')) and 1 }}", "{% set x = l | reverse %}{{ x | list }}{{ x | list }}", "{{ l | map('string') | last }}",
    "{% macro f() %}<{{ caller() }}>{% endmacro %}{% call f() %}x{{ n }}{% endcall %}", "{% macro f(a) %}{{ caller(a, 2) }}{% endmacro %}{% call(x, y=3, z=4) f(1) %}{{ x }}{{ y }}{{ z }}{% endcall %}", "{% macro f() %}{{ caller() }}{% endmacro %}{{ f() }}", "{% macro f() %}{{ caller is defined }}{% endmacro %}{{ f() }}", "{% macro f() %}x{% endmacro %}{% call f() %}y{% endcall %}", "{% macro f(n) %}{{ caller() }}{% if n %}{% call f(n - 1) %}{{ n }};{% endcall %}{% endif %}{% endmacro %}{% call f(2) %}a{% endcall %}", "{% macro f(caller=none) %}{{ caller() if caller else 0 }}{% endmacro %}{{ f() }}{% call f() %}a{% endcall %}", "{% macro f(caller) %}{{ caller() }}{% endmacro %}{% call f() %}a{% endcall %}", "{% call n %}{% endcall %}", "{% for x in l %}{% macro f() %}{{ caller() }}{% endmacro %}{% call f() %}{{ x }}{{ loop.index }}{% endcall %}{% endfor %}", "{% macro g() %}[{{ caller() }}]{% endmacro %}{% macro f() %}{% call g() %}{{ caller() }}{% endcall %}{% endmacro %}{% call f() %}a{% endcall %}", "{% macro f() %}{{ kwargs | length }}{% endmacro %}{% call f() %}a{% endcall %}", "{{ caller }}",
    "{% with a = 1, b = 2 %}{{ a + b }}{% endwith %}{{ a is defined }}", "{% filter upper %}a{{ s }}{% endfilter %}", "{% filter replace('a', 'b') | upper %}a{% endfilter %}", "{% print n %}", "{{ n, s }}", "{{ n, }}",
    "{% for m in rows %}{% generation %}{{ m.role }}\u00e9{% endgeneration %}\n{% endfor %}", "{% generation %}{% set y = 1 %}{% endgeneration %}{{ y is defined }}", "a{% generation %}\n  b\n{% endgeneration %}\nc", "{% generation %}{% endgeneration %}{% for m in rows %}{%- generation -%} {{ loop.index }} {%- endgeneration -%} {% endfor %}", "{% for x in l %}{% generation %}{% break %}{% endgeneration %}{% endfor %}",
    "{% if no %}{{ s | nope }}{{ s is nope }}{% endif %}ok", "{% if t %}{{ s | nope }}{% endif %}", "{% macro m(a, b=3) %}{{ a }}{{ b }}{% endmacro %}{{ m(*[1, 2]) }}{{ m(1, *[], b=2) }}",
    "{% include 'x' %}", "{% import 'x' as y %}", "{% extends 'x' %}", "{% for x in l recursive %}{{ loop(l) }}{% endfor %}", "{% set x = 5 %}{% set x = x + 1 %}{{ x }}", "{% set tools = tools or [] %}{{ tools }}", "{% if not nope %}{% set nope = 'd' %}{% endif %}{{ nope }}", "{% set x = d %}{{ x.a }}{{ x['C'][-1] }}", "{{ raise_exception('bad: ' + s) }}", "{% if no %}{{ raise_exception('bad') }}{% endif %}ok", "{% set f = strftime_now %}{{ f('%Y') }}", "{{ strftime_now is defined }}{{ nope_now is defined }}", "{%- set ns = namespace(found=false) -%}\n{%- for r in rows -%}\n  {%- if r.role == 'system' -%}\n    {%- set ns.found = true -%}\n  {%- endif -%}\n{%- endfor -%}\n{{ ns.found }}",
    "{% for x in ll %}{% for y in x %}{{ x[0] }}{{ y }}{{ loop.parent is defined }}{% endfor %}{% endfor %}", "{% for r in rows | selectattr('x', 'defined') | list %}{{ loop.length }}{{ r.x }}{% endfor %}", "{% for x in l | sort %}{{ x }}{% if not loop.last %}, {% endif %}{% endfor %}", "{% for i in range(rows | length - 1, -1, -1) %}{{ rows[i].role }}{{ i }};{% endfor %}", "{% for x in rows[::-1] %}{{ x.k.v }}{% endfor %}", "{{ rows[0].role if rows else 'none' }}", "{{ (rows | selectattr('role', 'equalto', 'system') | first).k.v }}", "{{ (rows | selectattr('role', 'equalto', 'zz') | first) is defined }}",
]

TREE = "{% set tree = [{'n': 'a', 'c': [{'n': 'b', 'c': []}, {'n': 'c', 'c': [{'n': 'd'}]}]}, {'n': 'e', 'c': none}, {'n': 'f', 'c': []}] %}"
RECURSION = [
    "{% for x in tree recursive %}{{ x.n }}{% if x.c %}({{ loop(x.c) }}){% endif %}{% endfor %}",
    "{% for x in tree recursive %}{{ loop.depth }}{{ loop.depth0 }}{{ loop.index }}{{ loop.last }}{{ x.n }}{{ loop(x.c or []) }}{{ loop.index }};{% endfor %}",
    "{% for x in tree if x.n != 'b' recursive %}{{ x.n }}{{ loop.length }}{% if x.c %}[{{ loop(x.c) }}]{% endif %}{% else %}none{% endfor %}",
    "{% for x in tree recursive %}{{ x.n }}<{{ loop(x.c | default([], true)) | upper }}>{% else %}-{% endfor %}",
    "{% for x in tree recursive %}{% set r = loop(x.c or []) %}{{ r | length }}{{ r }}{{ x.n }}{% endfor %}",
    "{% for x in tree recursive %}{% if x.n == 'c' %}{% continue %}{% endif %}{{ x.n }}{% if x.c %}{{ loop(x.c) }}{% endif %}{% endfor %}",
    "{% for x in tree recursive %}{% if x.n == 'e' %}{% break %}{% endif %}{{ x.n }}{% if x.c %}{{ loop(iterable=x.c) }}{% endif %}{% endfor %}.",
    "{% for x in tree recursive %}{{ x.n }}{{ loop.previtem.n }}{{ loop.nextitem.n if not loop.last }}{{ loop(x.c) if x.c else '' }};{% endfor %}",
    "{% set y = 1 %}{% for x in tree recursive %}{% set y = y + 1 %}{{ y }}{{ loop(x.c) if x.c }}{{ y }}{% endfor %}{{ y }}",
    "{% set ns = namespace(k=0) %}{% for x in tree recursive %}{% set ns.k = ns.k + 1 %}{{ ns.k }}{{ loop(x.c) if x.c }}{% endfor %}{{ ns.k }}",
    "{% for x in tree recursive %}{% for y in l %}{{ y }}{{ loop.depth }}{% endfor %}{{ loop(x.c) if x.c }}{% endfor %}",
    "{% for x in tree recursive %}{% for y in l %}{{ loop(l) }}{% endfor %}{% endfor %}",
    "{% for x in tree recursive %}{% set outer = loop %}{% for y in [1, 2] %}{{ y }}{{ outer(x.c or []) }}{% endfor %}{{ x.n }}{% endfor %}",
    "{% for q in [1, 2] %}{% for x in tree recursive %}{{ q }}{{ x.n }}{{ loop(x.c) if x.c }}{% endfor %}{% endfor %}",
    "{% for x in tree recursive %}{% macro m() %}{{ x.n }}{% endmacro %}{{ m() }}{{ loop(x.c) if x.c }}{{ m() }}{% endfor %}",
    "{% macro m(t) %}{% for x in t recursive %}{{ x.n }}{{ loop(x.c) if x.c }}{% endfor %}{% endmacro %}[{{ m(tree) }}]",
    "{% set ns = namespace(f=none) %}{% for x in tree recursive %}{% set ns.f = loop %}{{ x.n }}{% endfor %}{{ ns.f(tree) }}",
    "{% for x in tree recursive %}{{ loop(x.nope) }}{{ x.n }}{% endfor %}", "{% for x in tree recursive %}{{ loop(x.c) }}{% endfor %}",
    "{% for x in tree recursive %}{{ loop() }}{% endfor %}", "{% for x in tree recursive %}{{ loop(l, l) }}{% endfor %}", "{% for x in tree recursive %}{{ loop(items=l) }}{% endfor %}",
    "{% for x in l %}{{ loop(l) }}{% endfor %}", "{% for x, in [l], recursive %}{{ x }}{% endfor %}", "{% for recursive in l %}{{ recursive }}{% endfor %}", "{% for x in recursive %}{% endfor %}", "{% for x in l, recursive %}{{ x }};{% endfor %}", "{% for x in l, recursive recursive %}{{ x }};{% endfor %}", "{% for x in (recursive, 1) %}{{ x }};{% endfor %}",
    "{% for a, b in [[1, []], [2, [[3, []]]]] recursive %}{{ a }}{{ loop(b) }}{% endfor %}", "{% for k, v in {'a': {'b': {'c': {}}}}.items() recursive %}{{ k }}{{ loop(v.items()) }}{% endfor %}",
    "{% for c in 'ab' recursive %}{{ c }}{{ loop(c[1:]) }}{% endfor %}", "{% for x in 3 recursive %}{% endfor %}", "{{ recursive }}{{ recursive, 1 }}", "{% if recursive %}a{% endif %}b",
    "{% for x in tree recursive %}{% filter upper %}{{ x.n }}{{ loop(x.c) if x.c }}{% endfilter %}{% endfor %}", "{% for x in tree recursive %}{% set z %}<{{ loop(x.c) if x.c }}>{% endset %}{{ z }}{{ x.n }}{% endfor %}",
    "{% for m in rows recursive %}{% generation %}{{ m.role }}{% endgeneration %};{% endfor %}", "{% for x in range(3) recursive %}{{ x }}{{ loop(range(x)) }}{% endfor %}", "{% for x in range(2, 4) | map('string') recursive %}{{ x }}{{ loop('') }}{% endfor %}",
    "{% for x in tree recursive %}{{ loop.cycle('a', 'b') }}{{ loop.changed(x.n) }}{{ loop(x.c) if x.c }}{{ loop.cycle('c', 'd', 'e') }}{% endfor %}",
]
LOOPS = [
    "{% for x in l %}{{ loop.cycle('a', 'b') }}{% endfor %}", "{% for x in ls %}{{ loop.cycle(1, 2.5, none) }}{{ loop.cycle(*l) }}{% endfor %}", "{% for x in l %}{{ loop.cycle() }}{% endfor %}", "{% for x in l %}{{ loop.cycle(*[]) }}{% endfor %}", "{% for x in l %}{{ loop.cycle(a=1) }}{% endfor %}", "{% for x in l %}{{ loop.cycle('a', b=1) }}{% endfor %}",
    "{% for x in l %}{{ loop['cycle']('a', 'b') }}{% set c = loop.cycle %}{{ c(1, 2) }}{{ loop.cycle is callable }}{{ loop.cycle is defined }}{% endfor %}", "{% for x in l if x > 1 %}{{ x }}{{ loop.cycle('odd', 'even') }}{% endfor %}", "{% for x in l %}{% for y in ls %}{{ loop.cycle('a', 'b', 'c') }}{% endfor %}{{ loop.cycle('d', 'e') }};{% endfor %}", "{% for x in le %}{{ loop.cycle('a') }}{% else %}none{% endfor %}",
    "{% for x in [1, 1, 2, 2, 1, true, 1.0] %}{{ loop.changed(x) }}{% endfor %}", "{% for r in rows %}{% if loop.changed(r.role) %}{{ r.role }}{% endif %};{% endfor %}", "{% for x in ll %}{{ loop.changed(x, 1) }}{{ loop.changed(x, 1) }}{{ loop.changed(x) }}{{ loop.changed() }}{% endfor %}", "{% for x in l %}{{ loop.changed() }}{% endfor %}", "{% for x in l %}{{ loop.changed(a=x) }}{% endfor %}", "{% for x in l %}{{ loop.changed([1, {'a': 2}]) }}{% endfor %}",
]
MAPPINGS = [
    "{{ dict(**d) }}", "{{ dict(z=1, **d) }}", "{{ dict([['q', 2]], z=1, **d) }}", "{{ dict(b=1, **d) }}", "{{ dict(**{}) }}", "{{ dict(**d, ) }}", "{{ dict(*[], **d) }}", "{{ dict(**dict(**d)) }}", "{{ dict(**d, **d) }}", "{{ dict(**d, z=1) }}", "{{ dict(**d, *l) }}", "{{ dict(** d or {}) }}", "{{ dict(**({'x': 1} if t else {})) }}",
    "{{ dict(**l) }}", "{{ dict(**n) }}", "{{ dict(**none) }}", "{{ dict(**nope) }}", "{{ dict(**s) }}", "{{ dict(**{1: 2}) }}", "{{ dict(**{'\u00e9 x': 2}) }}", "{{ dict(**{'': 2}) }}", "{{ dict(**ll) }}", "{{ dict(**) }}", "{{ dict(d, **) }}", "{{ range(**d) }}", "{{ range(3, **{}) | list }}",
    "{% macro m(a, b=2) %}{{ a }}{{ b }}{{ kwargs }}{{ varargs }}{% endmacro %}{{ m(**{'a': 1}) }}{{ m(1, **{'b': 3}) }}{{ m(**{'a': 1, 'c': 4}) }}{{ m(*[7, 8, 9], **{'x': 1}) }}{{ m(a=5, **{'z': {'y': 1}}) }}",
    "{% macro m(a, b=2) %}{{ a }}{{ b }}{% endmacro %}{{ m(**{'c': 1}) }}", "{% macro m(a) %}{{ a }}{% endmacro %}{{ m(1, **{'a': 2}) }}", "{% macro m(a) %}{{ a }}{% endmacro %}{{ m(a=1, **{'a': 2}) }}", "{% macro m() %}{{ caller() }}{% endmacro %}{% call m(**{}) %}x{% endcall %}", "{% macro m(a) %}{{ a }}{{ caller() }}{% endmacro %}{% call m(**{'a': 1}) %}x{% endcall %}", "{% macro m() %}{{ kwargs }}{% endmacro %}{{ m(**d) }}{{ m(x=1, **d) }}{% macro w() %}{{ m(**kwargs) }}{% endmacro %}{{ w(q=1, r=2) }}",
    "{{ d | tojson(**{'indent': 2}) }}", "{{ l | join(**{'d': '-'}) }}", "{{ l | join('-', **{}) }}", "{{ l | join('-', **{'d': '+'}) }}", "{{ s | replace(*['l', 'L'], **{'count': 1}) }}", "{{ rows | map(**{'attribute': 'role'}) | list }}", "{{ rows | map(attribute='nope', **{'default': 'x'}) | list }}", "{{ '%(b)s' | format(**d) }}", "{{ '{b}{a}'.format(**d) }}", "{{ n is divisibleby(**{'num': 7}) }}", "{{ n is divisibleby(*[7]) }}", "{{ namespace(**d).b }}", "{% set ns = namespace(**{'k': 1}) %}{{ ns.k }}", "{{ namespace(**{'_k': 1}) }}", "{% for x in l %}{{ loop.cycle(**{'a': 1}) }}{% endfor %}", "{{ s.split(**{'sep': ', '}) }}",
]


def lines(text):
    for line in text.strip().split("\n"):
        for one in split_line(line):
            yield one, "{{ " + one + " }}"


def percents():
    """Random formats of "%" and arguments, most of which fit."""
    rng = random.Random(16)
    for _ in range(150):
        parts, args = [], []
        for _ in range(rng.randint(1, 3)):
            types = rng.choice(["sra", "diu", "oxX", "eEfFgG", "c"])
            flags = "".join(rng.sample("-+ #0", rng.choice([0, 0, 1, 2])))
            precision = rng.choice(["", "", ".0", ".1", ".4", ".12", "."])
            parts.append("%" + flags + rng.choice(["", "", "3", "9"]) + precision + rng.choice(types) + rng.choice(["", "%%", " é"]))
            args.append(rng.choice({"s": ["s", "u", "l", "ctl", "f", "none_value"], "d": ["n", "neg", "f", "t", "123456789"], "o": ["n", "neg", "z", "65535"],
                                    "e": ["f", "n", "neg", "1e22", "-0.00012345", "0.5", "2.675"], "c": ["65", "8364", "'x'"]}[types[0]]))
        if rng.random() < 0.1:
            args.pop()
        text = "'" + "".join(parts) + "'"
        yield text + (" | format(" + ", ".join(args) + ")" if rng.random() < 0.3 else " % (" + "".join(a + ", " for a in args) + ")")


def expressions():
    for name, template in list(lines(EXPRESSIONS)) + [(e, "{{ " + e + " }}") for e in percents()] + [(b, b) for b in BLOCKS + [TREE + x for x in RECURSION] + LOOPS + MAPPINGS]:
        yield case(name, template, CONTEXT)
    for name, template in list(lines(REFUSED)) + [(b, b) for b in REFUSED_BLOCKS]:
        yield {"name": name, "template": template, "error": "refused"}


# ---- chats ----------------------------------------------------------------------------------

WORDS = ["Hello.", "What is 17 * 3?", "\u00e9t\u00e9 \u4f60\u597d \U0001f600", "  two  blanks ", "line\nline\n\n", "\"quoted\" \\ it's", "<b>&amp;</b>", "", "x", "Please be brief.\nThanks!", "{{ not a tag }} {% x %}"]
PARAMS = {"type": "object", "properties": {"city": {"type": "string", "description": "Where, e.g. \"Gen\u00e8ve\""}, "days": {"type": "integer", "enum": [1, 2, 3]}, "tags": {"type": "array", "items": {"type": "string"}}}, "required": ["city"]}
TOOLS = [{"type": "function", "function": {"name": "get_weather", "description": "The weather.\nOf a city.", "parameters": PARAMS}},
         {"type": "function", "function": {"name": "now", "description": "The time & <date>", "parameters": {"type": "object", "properties": {}}}}]
ARGUMENTS = [{"city": "Paris", "days": 2}, {"city": "\u4eac\"'", "tags": ["a", "b"], "x": None, "y": 1.5, "ok": True}, {}]


def text(rng):
    return " ".join(rng.choices(WORDS, k=rng.randint(1, 2)))


def call(rng, i):
    return {"id": f"abcdefg{i % 100:02d}", "type": "function", "function": {"name": rng.choice(["get_weather", "now"]), "arguments": rng.choice(ARGUMENTS)}}


def turn(rng, tools):
    """Messages from the user's to the assistant's answer."""
    yield {"role": "user", "content": text(rng)}
    for _ in range(rng.randint(0, 2) if tools else 0):
        calls = [call(rng, rng.randrange(100)) for _ in range(rng.randint(1, 2))]
        m = {"role": "assistant", "content": rng.choice(["", text(rng)]), "tool_calls": calls}
        if rng.random() < 0.3:
            m["reasoning_content"] = text(rng)
        yield m
        for c in calls:
            yield {"role": "tool", "name": c["function"]["name"], "tool_call_id": c["id"], "content": rng.choice(["22 \u00b0C", "{\"ok\": true}", text(rng)])}
    m = {"role": "assistant", "content": text(rng)}
    how = rng.random()
    if how < 0.2:
        m["reasoning_content"] = text(rng)
    elif how < 0.4:
        m["content"] = "<think>\n" + text(rng) + "\n</think>\n\n" + m["content"]
    yield m


def chat(rng):
    tools = rng.random() < 0.4
    messages = [{"role": "system", "content": text(rng)}] if rng.random() < 0.5 else []
    for _ in range(rng.randint(1, 3)):
        messages += turn(rng, tools)
    ask = rng.random() < 0.5
    if ask and messages[-1]["role"] == "assistant":
        messages.pop()
    context = {"messages": messages, "add_generation_prompt": ask, "bos_token": "<s>", "eos_token": "</s>", "tools": None, "documents": None}
    if tools:
        context["tools"] = rng.choice([TOOLS, TOOLS[:1]])
    if rng.random() < 0.3:
        context["enable_thinking"] = rng.random() < 0.5
    return context


def chats(path, n):
    source = path.read_text()
    rng = random.Random(path.name)
    for i in range(n):
        yield case(f"{path.name} {i}", source, chat(rng))


def write(name, cases):
    cases = list(cases)
    (HERE / "jinja" / name).write_text("[\n" + ",\n".join(json.dumps(c) for c in cases) + "\n]\n")
    print(name, len(cases), "cases,", sum("error" in c for c in cases), "errors")


def main():
    if sys.argv[1:]:
        json.dump([c for path in sys.argv[1:] for c in chats(Path(path), 50)], sys.stdout)
        return
    (HERE / "jinja" / "context.json").write_text(json.dumps(CONTEXT) + "\n")
    write("expressions.json", (dict(c, context=None) for c in expressions()))
    for path in sorted((HERE / "jinja").glob("*.jinja")):
        write(path.stem + ".json", (dict(c, template=None) for c in chats(path, 12)))


if __name__ == "__main__":
    main()
