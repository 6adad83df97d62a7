"""Requests of programs: as parsed, as a mapping of fields, or by keywords."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Literal, TypeAlias, TypedDict

from antwort.api.decoding import Limits, described
from antwort.api.items import InputItem
from antwort.api.requests import CreateRequest, parse_request
from antwort.api.wire import encode
from antwort.errors import InvalidField
from antwort.suggestions import nearest

Fields: TypeAlias = Mapping[str, object]
"""A JSON object: a plain dict, or a typed one of a client library."""


class RequestFields(TypedDict, total=False):
    """The fields of a request as keywords, with the meanings of the API."""

    input: str | Sequence[Fields | InputItem]
    model: str | None
    instructions: str | None
    previous_response_id: str | None
    conversation: str | Fields | None
    tools: Sequence[Fields]
    tool_choice: str | Fields
    allowed_tools: Sequence[str | Fields]
    parallel_tool_calls: bool | None
    max_tool_calls: int | None
    max_turns: int | None
    deadline: float | None
    token_budget: int | None
    max_output_tokens: int | None
    temperature: float | None
    top_p: float | None
    presence_penalty: float | None
    frequency_penalty: float | None
    top_logprobs: int | None
    text: Fields | None
    reasoning: Fields | None
    include: Sequence[str] | None
    metadata: Mapping[str, str] | None
    store: bool | None
    background: bool | None
    stream: bool | None
    stream_options: Fields | None
    truncation: Literal["auto", "disabled"] | None
    service_tier: str | None
    safety_identifier: str | None
    prompt_cache_key: str | None
    user: str | None
    context_management: Sequence[Fields] | None
    generate: bool | None


RequestLike: TypeAlias = CreateRequest | Fields


def parse_request_like(asked: object, fields: Fields, limits: Limits) -> CreateRequest:
    """Parse a request by the rules of the HTTP API. Raises `InvalidField`.

    A keyword that is no field raises `TypeError`, as for any function; in a mapping it is ignored, as over HTTP.
    """
    if asked is None:
        _check_keywords(fields)
        return _read(fields, limits)
    if fields:
        raise TypeError("A request is given whole or by its fields, not both.")
    if isinstance(asked, CreateRequest):
        return asked
    if not isinstance(asked, Mapping):
        hint = "; say input=… for what is asked" if isinstance(asked, str | list | tuple) else ""
        raise TypeError(f"A request is a mapping of its fields, or a CreateRequest, not {type(asked).__name__}{hint}.")
    return _read(asked, limits)


def _check_keywords(given: Iterable[str]) -> None:
    known = RequestFields.__annotations__
    for name in given:
        if name not in known:
            near = nearest(name, known)
            raise TypeError(f"A request has no field {name!r}{f'; is {near[0]!r} meant?' if near else '.'}")


def _read(fields: Fields, limits: Limits) -> CreateRequest:
    return parse_request(b"{%s}" % b",".join(_encoded(name, value) for name, value in fields.items()), limits)


def _encoded(name: str, value: object) -> bytes:
    try:
        return encode({name: value})[1:-1]
    except (TypeError, ValueError, NotImplementedError, RecursionError) as exc:
        raise InvalidField(str(name), f"cannot be written as JSON: {described(exc)}.") from exc
