"""What has the shape of a secret and is none: placeholders, references, prose, vocabularies, digests, ordinary words.

The shapes are in `secret_shapes`; the more general one is, the more is asked here of what it found.
"""

import re

import re2

from denpexd.notify.secret_shapes import STRONG, WEAK

# Kinds whose value may be something else: a placeholder, a reference, prose.
DOUBTFUL = frozenset({"assignment", "flag", "netrc"})
# Kinds whose value has to look like chance.
CHANCY = frozenset({"mention", "key", "webhook", "url_user", "prefixed_token", "basic"})
_WORDS = (
    r"none|null|nil|true|false|unset|undefined|missing|invalid|required|optional|expired|revoked|refused|rejected"
    r"|denied|incorrect|unauthorized|forbidden|unknown|absent|empty|provided|found|disabled|enabled|default|tokens?"
    r"|str|int|bool|bytes|object|string|redacted|hidden|masked|changeme|placeholder|ignored|file|not|is|has|was|from"
)
_HARMLESS = re2.compile(
    rf"(?i)^(?:(?:{_WORDS})[.:]?|[0-9][0-9,._]{{0,11}}(?:[kmb]|[mun]?s|%)?|<.*|\|.*|(?:\*|x)+|.{{0,8}}\*{{3,}}.{{0,4}}|\*+.*|\.{{3}}.*|.?…+|…"
    r"|\$\{?[A-Za-z_][A-Za-z0-9_]*\}?|\$\(.*|\{.*|\[.*|\(.*|torch\..*|tensor.*|/[a-z]+/.*|\./.*|~/.*|file:.*|env:.*"
    r"|redacted.*|your[_\-].*|[a-z_]+_here)$"
)
# A reference of source code: an attribute, a call, a subscript; or a name in snake case.
_CODE = re2.compile(r"^(?:[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*[(\[].*|[a-z_]+(?:\.[A-Za-z_]+)+|[a-z]+(?:_[a-z]+)+)$")
# A part of the vocabulary of a language model and no secret.
_VOCABULARY = re2.compile(
    r"(?i)(?:^|[_.\-])(?:pad|eos|bos|unk|sep|cls|mask|image|video|audio|vision|special|stop|start|end|next|last|first"
    r"|prev|prompt|max|min|num|per|new|total|added|fim|bot|eot|eom|boi|eoi|tool|think|user|system|assistant|suffix"
    r"|prefix|middle|input|output|decoded|sampled|generated|split|word|sub|special|image|control|label|target|n"
    r"|time|cost|throughput|loss|by|each|single|this|the|a)[_.\-]?tokens?\W*$"
)

_DIGEST = re.compile(r"(?i)sha[0-9]|md5|blake|crc")
_PORT = re.compile(r"[0-9]{1,5}[/?#,]")
_PROMISE = re.compile(rf"(?i){STRONG}|{WEAK}|token|://|authorization")
_RUN = re.compile(r"[0-9A-Za-z]{10,}")
_CHANGE = re.compile(r"(?<=[a-z])[^a-z]|(?<=[A-Z])[^A-Z]|(?<=[0-9])[^0-9]")


def is_other(kind: str, name: str, secret: str, after: str) -> bool:
    """Whether what has the shape of this kind is no secret. `name` and `after` are the text around it."""
    if kind == "email":
        return name.endswith("://") or secret.startswith("git@")  # the user of an ssh or git URL, not a person
    if kind == "url_password":
        return _PORT.match(secret) is not None  # of a URL with an @ in its path
    if kind == "prefixed_token" and _DIGEST.match(secret):
        return True
    if kind in CHANCY:
        return not is_chance(secret, strict=kind != "webhook" and _PROMISE.search(name) is None)
    return kind in DOUBTFUL and is_harmless(name, secret, after)


def is_chance(text: str, strict: bool = False) -> bool:
    """Whether a word of a text looks as if it was drawn: small, great letters and digits by turns.

    Not strict, a long one of letters of one kind and digits is enough, one of small and great letters, and a UUID.
    """
    if not strict and re.fullmatch(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}/?", text):
        return True
    return any(_is_drawn(word, strict) for word in _RUN.findall(text))


def _is_drawn(word: str, strict: bool) -> bool:
    kinds = sum(re.search(kind, word) is not None for kind in ("[a-z]", "[A-Z]", "[0-9]"))
    turns = len(_CHANGE.findall(word)) / (len(word) - 1)
    if kinds == 3:
        return turns >= (0.35 if strict or len(word) < 20 else 0.28)
    return not strict and kinds == 2 and len(word) >= 20 and turns >= (0.4 if word.isalpha() else 0.2)


def is_harmless(name: str, secret: str, after: str) -> bool:
    """Whether what stands where a secret could stand is none. `name` and `after` are the text around it."""
    quoted = secret[:1] in "\"'" or secret[1:2] in "\"'"
    value = secret.lstrip("bru").strip("\"'") if quoted else secret
    if _HARMLESS.search(value) or (_VOCABULARY.search(name) and not is_chance(value)):
        return True
    if quoted:  # a token of a grammar is a word, what a program wants to be let in with is none
        return (
            name.lower().rstrip("!=: \"'").endswith("token") and len(value) < 12 and value.isalpha() and value.islower()
        )
    if after[:1] in ("[", "("):
        return True
    prose = name.endswith(": ") and value.isalpha() and value.islower() and after[:1] == " " and after[1:2].isalpha()
    return prose or _CODE.search(value) is not None
