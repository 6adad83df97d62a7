"""What a backend says when a request is longer than its context: that it is, how much fits, how much it had. Pure.

Refusals repeat what clients have sent. So numbers are taken only from whole sentences of engines that are known, at the
beginning of what is said; and other words only where they stand before anything that is quoted.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cache

import msgspec

from antwort.api.wire import encode

_MOST = 2**40
_NUMBER = r"\d[\d,]{0,24}"

_PREFIX = (
    r"(?:litellm\.\w{1,60}: (?:(?:litellm\.)?\w{1,60}(?::| -) ){0,4})?"
    r"(?:(?:invalid request|input validation error|<400> internalerror\.algo\.invalidparameter): )?"
)
"""What proxies and engines put before it."""

_SENTENCES = """
[this model's ]maximum context length is {limit} tokens. however, you requested {number} tokens ({asked} in the
[this model's ]maximum context length is {limit} tokens. however, you requested {asked} tokens
[this model's ]maximum context length is {limit} tokens, however you requested {number} tokens ({asked} in
[this model's ]maximum context length is {limit} tokens, however you requested {asked} tokens
[this model's ]maximum context length is {limit} tokens. however, your messages resulted in {asked} tokens
[this model's ]maximum context length is {limit} tokens. however, your request has {asked} input tokens
[this model's ]maximum context length is {limit} tokens. however, your prompt contains [at least ]{asked} input tokens
[this model's ]maximum context length is {limit} tokens
'max_tokens' or 'max_completion_tokens' is too large: {number}. this model's maximum context length is {limit} tokens \
and your request has {asked} input tokens
this endpoint's maximum context length is {limit} tokens. however, you requested [about ]{number} tokens ({asked} of
this endpoint's maximum context length is {limit} tokens
input tokens exceed the configured limit of {limit} tokens. your messages resulted in {asked} tokens
input tokens exceed the configured limit of {limit} tokens
your input exceeds the context window of this model
requested tokens ({asked}) exceed context window of {limit}

you passed {asked} input[ tokens] and requested {number} output[ tokens]. however, the model's context length is only \
{limit}
you passed {number} input characters and requested {number} output[ tokens]. however, the model's context length is \
only {limit}
the [decoder ]prompt ([total ]length {asked}) is too long to fit into the model (context length {limit})
the [decoder ]prompt ([total ]length {asked}) is longer than the maximum model length of {limit}
the input ({asked} tokens) is longer than the model's context length ({limit} tokens)
requested token count exceeds the model's maximum context length of {limit} tokens. you requested a total of {number} \
tokens: {asked} tokens from the input
requested token count exceeds the model's maximum context length of {limit} tokens
input length ({asked}[ tokens]) exceeds model's maximum context length ({limit}[ tokens])
input length ({asked}[ tokens]) exceeds the maximum allowed length ({limit}[ tokens])

[the ]request ({asked} tokens) exceeds the available context size ({limit} tokens)
the request exceeds the available context size[ ({limit} tokens)]
input ({asked} tokens) is larger than the max context size ({limit} tokens)
context size has been exceeded
trying to keep the first {asked} tokens when context the overflows. however, the model is loaded with context length \
of only {limit} tokens
the model is loaded with context length of only {limit} tokens
[the number of ]tokens to keep from the initial prompt is greater than the context length\
[ (n_keep: {asked}[ ]>= n_ctx: {limit})]
the input length exceeds the context length
prompt too long; exceeded max context length by {number} tokens
prompt length {asked} is greater than max_seq_len {limit}
`inputs` must have less than {limit} tokens. given: {asked}
`inputs` tokens + `max_new_tokens` must be <= {limit}. given: {asked}

prompt is too long: {asked} tokens > {limit} maximum
input length and [`]max_tokens[`] exceed context limit: {asked} + {number} > {limit}
the input token count ({asked}) exceeds the maximum number of tokens allowed ({limit})
the input token count exceeds the maximum number of tokens allowed {limit}
this model's maximum prompt length is {limit} but the request contains {asked} tokens
prompt contains {asked} tokens[ and {number} draft tokens], too large for model with {limit} maximum context length
your request exceeded model token limit: {limit} (requested: {asked})
your request exceeded model token limit: {limit}
too many tokens: total number of tokens in the prompt cannot exceed {limit} - received {asked}
too many tokens: size limit exceeded by {number} tokens
range of input length should be [[1, {limit}]]
the prompt is too long: {asked}, model maximum context length: {limit}
please reduce the length of the messages or completion. current length is {asked} while limit is {limit}
prompt token count of {asked} exceeds the limit of {limit}
input is too long for requested model

the input has [about ]{asked} tokens, and the model's context has {limit}
"""
"""What engines say, in groups: OpenAI and those who say it in its words, vLLM and SGLang, engines on one machine,
services, and this server. `[ ]` may be left out. Where two begin alike, the one that tells more comes first.
"""

_PIECE = re.compile(r"\[\[|\]\]|[\[\]]|\{\w+\}|[^\[\]{}]+")
_PIECES = {
    "[": "(?:",
    "]": ")?",
    "[[": r"\[",
    "]]": r"\]",
    "{limit}": f"(?P<limit>{_NUMBER})",
    "{asked}": f"(?P<asked>{_NUMBER})",
    "{number}": _NUMBER,
}

_WORDS = re.compile(
    r"\Alitellm\.contextwindowexceedederror: |maximum context length|context (?:length|size|window|limit).{0,60}exceed"
    r"|exceed.{0,60}context (?:length|size|window|limit)|context_window_exceeded"
    r"|(?:longer|greater) than the (?:model's context|context length|maximum model length)|prompt (?:is )?too long"
    r"|larger than the max(?:imum)? context|context length (?:of|is) only"
    r"|exceeds the maximum number of (?:input )?tokens|input is too long"
    r"|maximum prompt length is|input tokens exceed the|exceeded model token limit"
    r"|should not exceed max_num_tokens|greater than max_seq_len"
)
_QUOTED = re.compile(r"[\"“”«`{\[<\n]|(?<!\w)'")
"""Where what a client sent may begin."""
_OPENING = re.compile(_PREFIX + r"(?:(?:\w{0,40}error|bad request): )?(?:(?:the|your|this) )?")
"""What may stand before words that are the backend's own: it names nothing of the request."""


class Overflow(msgspec.Struct, frozen=True):
    """A refusal of a request that is too long; None: it does not say."""

    limit: int | None = None
    """How many tokens fit."""
    asked: int | None = None
    """How many the input had: all that was asked for, where the two are not told apart."""


def overflow_in(text: str, sent: bytes = b"") -> Overflow | None:
    """What a refusal says in words; None: it is none for its length, or that is not certain. Numbers that are in what
    was `sent` say nothing, and neither do words where all that is said from there on is in it.
    """
    words = text.lstrip().lower()
    for match in filter(None, (pattern.match(words) for pattern in _patterns())):
        told = {} if _is_in(match[0], sent) else match.groupdict()
        return Overflow(number(told.get("limit") or ""), number(told.get("asked") or ""))
    quoted = _QUOTED.search(words)
    found = _WORDS.search(words, 0, len(words) if quoted is None else quoted.start())
    return None if found is None or _is_repeated(words, found.start(), sent) else Overflow()


def limit_in(text: str) -> int | None:
    """How many tokens fit, by the words of a refusal; None: they do not say."""
    found = overflow_in(text)
    return None if found is None else found.limit


def number(told: str) -> int | None:
    """A number of tokens that can be one."""
    digits = told.replace(",", "")
    size = int(digits) if digits.isdecimal() and len(digits) < 16 else 0
    return size if 0 < size <= _MOST else None


@cache
def _patterns() -> Sequence[re.Pattern[str]]:
    """Made when the first refusal comes: most servers never see one."""
    lines = filter(None, _SENTENCES.splitlines())
    return [re.compile(_PREFIX + "".join(map(_pattern, _PIECE.findall(line)))) for line in lines]


def _pattern(piece: str) -> str:
    return _PIECES.get(piece) or re.escape(piece)


def _is_repeated(words: str, start: int, sent: bytes) -> bool:
    """Whether the backend may only tell what was sent to it: then it says first what that is."""
    return _OPENING.fullmatch(words, 0, start) is None and _is_in(words[start:].rstrip(" ."), sent)


def _is_in(words: str, sent: bytes) -> bool:
    return encode(words)[1:-1] in sent.lower()
