"""What backends tell of tokens, their cost and their chances: the same in all they speak. Pure."""

from __future__ import annotations

from collections.abc import Iterable

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


class TokenDetails(msgspec.Struct, gc=False):
    cached_tokens: int | None = None
    cache_write_tokens: int | None = None
    reasoning_tokens: int | None = None


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
    read: int, written: int, total: int | None, before: TokenDetails | None, after: TokenDetails | None
) -> Usage:
    """The usage; a total that was not told is the sum."""
    read, written = _count(read), _count(written)
    return Usage(
        input_tokens=read,
        output_tokens=written,
        total_tokens=read + written if total is None else _count(total),
        input_tokens_details=_NONE_READ if before is None else _details_before(before),
        output_tokens_details=_NONE_WRITTEN if after is None else _details_after(after),
    )


def _details_before(told: TokenDetails) -> InputTokensDetails:
    return InputTokensDetails(
        cached_tokens=_count(told.cached_tokens), cache_write_tokens=_count(told.cache_write_tokens)
    )


def _details_after(told: TokenDetails) -> OutputTokensDetails:
    return OutputTokensDetails(reasoning_tokens=_count(told.reasoning_tokens))


def _count(told: int | None) -> int:
    """The number, if an inference can have so many: what adds them up is not broken by a backend that tells stories."""
    return told if told is not None and 0 <= told <= MOST_TOKENS else 0


_NONE_READ, _NONE_WRITTEN = _details_before(TokenDetails()), _details_after(TokenDetails())
