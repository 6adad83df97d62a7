"""A whole answer as nearly all of them are, read at one go. What is any other is left to who reads every kind. Pure."""

from __future__ import annotations

from typing import Annotated, Literal, TypeAlias

import msgspec

from antwort.api.responses import Usage
from antwort.providers.base import CallDelta, Delta, Finished, ReasoningDelta, TextDelta
from antwort.providers.reading import UNREADABLE
from antwort.providers.tokens import MOST_TOKENS, TokenDetails, usage_of

_Count: TypeAlias = Annotated[int, msgspec.Meta(ge=0, le=MOST_TOKENS)]

# ---- every field that `chunks` reads, with no more in it than can be taken as it is ----


class _Function(msgspec.Struct, gc=False):
    name: Annotated[str, msgspec.Meta(min_length=1)]
    arguments: str


class _Call(msgspec.Struct, gc=False):
    function: _Function
    index: int | None = None
    id: str | int | None = None


class _Message(msgspec.Struct, gc=False):
    content: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    refusal: None = None
    tool_calls: list[_Call] | None = None
    function_call: None = None


class _Choice(msgspec.Struct, gc=False):
    message: _Message
    finish_reason: Literal["stop", "length", "tool_calls", "content_filter"]
    index: Literal[0] = 0
    delta: None = None
    logprobs: None = None


class _Cost(msgspec.Struct, gc=False):
    prompt_tokens: _Count
    completion_tokens: _Count
    total_tokens: _Count
    prompt_tokens_details: TokenDetails | None = None
    completion_tokens_details: TokenDetails | None = None


class _Answer(msgspec.Struct, gc=False):
    choices: tuple[_Choice]
    usage: _Cost | None = None
    error: None = None


_decode = msgspec.json.Decoder(_Answer).decode


def read_plain(body: bytes) -> list[Delta] | None:
    """The deltas of one answer in words or in calls, `Finished` last; None where it is not as simple as that."""
    try:
        answer = _decode(body)
    except UNREADABLE:
        return None
    choice, cost = answer.choices[0], answer.usage
    message = choice.message
    said: list[Delta] = []
    if thoughts := message.reasoning_content or message.reasoning:
        said.append(ReasoningDelta(thoughts))
    if message.content:
        said.append(TextDelta(message.content))
    if message.tool_calls:
        for at, call in enumerate(message.tool_calls):
            said.append(CallDelta(at, call.function.name, call.function.arguments))
    if cost is None:
        usage = None
    elif cost.prompt_tokens_details is None and cost.completion_tokens_details is None:
        usage = Usage(
            input_tokens=cost.prompt_tokens, output_tokens=cost.completion_tokens, total_tokens=cost.total_tokens
        )
    else:
        usage = _detailed(cost)
    said.append(Finished(choice.finish_reason, usage))
    return said


def _detailed(cost: _Cost) -> Usage | None:
    before, after = cost.prompt_tokens_details, cost.completion_tokens_details
    return usage_of(cost.prompt_tokens, cost.completion_tokens, cost.total_tokens, before, after)
