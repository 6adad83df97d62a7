"""What backends tell of tokens, their cost and their chances: the same in all they speak. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeAlias

import msgspec

from antwort.api.items import LogProb, TopLogProb
from antwort.api.responses import InputTokensDetails, OutputTokensDetails, Usage

MOST_TOKENS = 2**40
"""What no inference has more of, whatever a backend tells."""


class TokenProb(msgspec.Struct, gc=False):
    token: str = ""
    logprob: float | None = None
    bytes: tuple[int, ...] | None = None
    top_logprobs: list[TokenProb] | None = None


Told: TypeAlias = int | float | str | None
"""A number of tokens as backends tell it. Only what is a whole number is believed: 10, or 10.0."""


class TokenDetails(msgspec.Struct, gc=False):
    cached_tokens: Told = None
    cache_write_tokens: Told = None
    reasoning_tokens: Told = None


def log_probs(told: Iterable[TokenProb]) -> tuple[LogProb, ...]:
    return tuple(
        LogProb(
            token=each.token,
            logprob=each.logprob or 0.0,
            bytes=each.bytes or (),
            top_logprobs=tuple(
                TopLogProb(token=top.token, logprob=top.logprob or 0.0, bytes=top.bytes or ())
                for top in each.top_logprobs or ()
            ),
        )
        for each in told
    )


def usage_of(
    read: Told, written: Told, total: Told, before: TokenDetails | None, after: TokenDetails | None
) -> Usage | None:
    """The usage; a total that was not told is the sum. None where neither number is one."""
    told_read, told_written, told_total = _number(read), _number(written), _number(total)
    if told_read is None and told_written is None:
        return None
    return Usage(
        input_tokens=told_read or 0,
        output_tokens=told_written or 0,
        total_tokens=(told_read or 0) + (told_written or 0) if told_total is None else told_total,
        input_tokens_details=_NONE_READ if before is None else _details_before(before),
        output_tokens_details=_NONE_WRITTEN if after is None else _details_after(after),
    )


def _details_before(told: TokenDetails) -> InputTokensDetails:
    return InputTokensDetails(
        cached_tokens=_count(told.cached_tokens), cache_write_tokens=_count(told.cache_write_tokens)
    )


def _details_after(told: TokenDetails) -> OutputTokensDetails:
    return OutputTokensDetails(reasoning_tokens=_count(told.reasoning_tokens))


def _number(told: Told) -> int | None:
    """The number, if an inference can have so many: what adds them up is not broken by a backend that tells stories."""
    if isinstance(told, float):
        told = int(told) if told.is_integer() else None
    return told if isinstance(told, int) and 0 <= told <= MOST_TOKENS else None


def _count(told: Told) -> int:
    return _number(told) or 0


_NONE_READ, _NONE_WRITTEN = _details_before(TokenDetails()), _details_after(TokenDetails())
