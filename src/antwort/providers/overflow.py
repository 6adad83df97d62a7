"""What a backend says when a request is longer than its context: that it is, how much fits, how much it had. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence

_NUMBER = r"(\d[\d,]{0,24})"
_MOST = 2**40

_SAID = re.compile(
    r"maximum context length|context (?:length|size|window).{0,60}exceed|exceed.{0,60}context (?:length|size|window)"
    r"|(?:longer|greater) than the (?:model's context|context length|maximum model length)|prompt (?:is )?too long"
    r"|larger than the max(?:imum)? context|context length of only|exceeds the maximum number of (?:input )?tokens"
    r"|`inputs` (?:tokens \+|must have less than)|input is too long",
    re.IGNORECASE | re.DOTALL,
)
_LIMITS = tuple(
    re.compile(pattern)
    for pattern in (
        rf"maximum context length(?: is| of)? \(?{_NUMBER}",
        rf"available context size \({_NUMBER}",
        rf"maximum model length(?: is| of)? \(?{_NUMBER}",
        rf"maximum number of (?:input )?tokens\D{{0,20}}{_NUMBER}",
        rf"tokens > {_NUMBER} maximum",
        rf"must have less than {_NUMBER}",
        rf"must be <= {_NUMBER}",
        rf"context (?:length|size|window)\D{{0,20}}{_NUMBER}",
    )
)
_ASKED = tuple(
    re.compile(pattern)
    for pattern in (
        rf"\({_NUMBER} in the (?:messages|prompt)",
        rf"{_NUMBER} tokens from the input",
        rf"(?:contains|has)(?: at least)? {_NUMBER} input tokens",
        rf"(?:resulted in|requested|too long:) {_NUMBER} tokens",
        rf"(?:request|input|prompt) \({_NUMBER} tokens\)",
        rf"(?:input length|input token count) \({_NUMBER}",
        rf"given: {_NUMBER}",
    )
)


def is_overflow(text: str) -> bool:
    return _SAID.search(text) is not None


def limit_in(text: str) -> int | None:
    """How many tokens fit, by the words of a refusal; None: they do not say."""
    return _first(_LIMITS, text)


def asked_in(text: str) -> int | None:
    """How many tokens the input had: all that was asked for, where the two are not told apart."""
    return _first(_ASKED, text)


def number(told: str) -> int | None:
    """A number of tokens that can be one."""
    digits = told.replace(",", "")
    size = int(digits) if digits.isdecimal() and len(digits) < 16 else 0
    return size if 0 < size <= _MOST else None


def _first(patterns: Sequence[re.Pattern[str]], text: str) -> int | None:
    found = (pattern.search(text.lower()) for pattern in patterns)
    return next((size for match in found if match and (size := number(match[1])) is not None), None)
