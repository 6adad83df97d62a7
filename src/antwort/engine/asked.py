"""What a program asks for: a request as it was read, or the fields that a client would send."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, TypeAlias, TypedDict

from antwort.api.faults import described
from antwort.api.items import InputItem
from antwort.api.requests import CreateRequest, Limits, parse_request
from antwort.api.wire import Plain, encode
from antwort.errors import InvalidField


class RequestFields(TypedDict, total=False):
    """The fields of a request, as keywords. What they mean and may be is what the API says of them."""

    input: str | Sequence[Plain | InputItem]
    model: str | None
    instructions: str | None
    previous_response_id: str | None
    tools: Sequence[Plain]
    tool_choice: str | Plain
    allowed_tools: Sequence[str | Plain]
    parallel_tool_calls: bool | None
    max_tool_calls: int | None
    max_output_tokens: int | None
    temperature: float | None
    top_p: float | None
    presence_penalty: float | None
    frequency_penalty: float | None
    top_logprobs: int | None
    text: Plain | None
    reasoning: Plain | None
    include: Sequence[str] | None
    metadata: Mapping[str, str] | None
    store: bool | None
    background: bool | None
    stream: bool | None
    stream_options: Plain | None
    truncation: Literal["auto", "disabled"] | None
    service_tier: str | None
    safety_identifier: str | None
    prompt_cache_key: str | None
    user: str | None


Asked: TypeAlias = CreateRequest | Mapping[str, Any]


def read_asked(asked: Asked | None, fields: Mapping[str, Any], limits: Limits) -> CreateRequest:
    """The request, read by the rules that hold for one that came over HTTP. Raises `InvalidField`."""
    if asked is not None and fields:
        raise TypeError("A request is given whole or by its fields, not both.")
    if isinstance(asked, CreateRequest):
        return asked
    try:
        body = encode(dict(fields if asked is None else asked))
    except (TypeError, ValueError, NotImplementedError, RecursionError) as exc:
        raise InvalidField("", f"The request cannot be written as JSON: {described(exc)}.") from exc
    return parse_request(body, limits)
