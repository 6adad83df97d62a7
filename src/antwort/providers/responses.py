"""The answers of a backend that speaks the Responses API itself become the same deltas. Pure."""

from __future__ import annotations

from typing import Any

import msgspec

from antwort.api.responses import Usage
from antwort.errors import AntwortError, BackendError
from antwort.providers.base import CallDelta, Delta, Finished, ReasoningDelta, RefusalDelta, TextDelta
from antwort.providers.failures import NOBODY, Asked, error_in
from antwort.providers.reading import UNREADABLE, BodyReader, EventReader, broken_off, not_understood
from antwort.providers.tokens import TokenDetails, TokenProb, log_probs, usage_of


class _Item(msgspec.Struct, gc=False):
    type: str = ""
    id: str | None = None
    name: str | None = None
    arguments: str | None = None


class _Usage(msgspec.Struct, gc=False):
    input_tokens: int = 0
    output_tokens: int = 0
    total_tokens: int | None = None
    input_tokens_details: TokenDetails | None = None
    output_tokens_details: TokenDetails | None = None


class _Incomplete(msgspec.Struct, gc=False):
    reason: str | None = None


class _Response(msgspec.Struct, gc=False):
    status: str | None = None
    usage: _Usage | None = None
    incomplete_details: _Incomplete | None = None
    error: Any = None


class _Event(msgspec.Struct, gc=False):
    type: str = ""
    delta: str | None = None
    logprobs: list[TokenProb] | None = None
    item_id: str | None = None
    item: _Item | None = None
    response: _Response | None = None


_decode = msgspec.json.Decoder(_Event).decode
_ENDINGS = ("completed", "incomplete", "failed", "cancelled", "requires_action")
_TERMINAL = frozenset({"error", *(f"response.{ending}" for ending in _ENDINGS)})


class _Call:
    __slots__ = ("has_arguments", "number")

    def __init__(self, number: int, *, has_arguments: bool) -> None:
        self.number = number
        self.has_arguments = has_arguments


class ResponsesReader(EventReader):
    """Reads the deltas of texts, reasoning and calls, and how the response ended."""

    __slots__ = ("_calls", "_has_reasoning", "_last")

    def __init__(self, asked: Asked = NOBODY) -> None:
        super().__init__(asked)
        self._calls: dict[str | None, _Call] = {}
        self._last: str | None = None
        self._has_reasoning = False

    def _read(self, payload: bytes, out: list[Delta]) -> None:
        event = _decode(payload) if payload.startswith(b"{") else _Event()
        match event.type.removeprefix("response."):
            case "output_text.delta" if event.delta:
                out.append(TextDelta(event.delta, log_probs(event.logprobs) if event.logprobs else ()))
            case "reasoning_text.delta" | "reasoning.delta" if event.delta:
                self._has_reasoning = True
                out.append(ReasoningDelta(event.delta))
            case "reasoning_summary_text.delta" if event.delta and not self._has_reasoning:
                out.append(ReasoningDelta(event.delta))
            case "refusal.delta" if event.delta:
                out.append(RefusalDelta(event.delta))
            case "function_call_arguments.delta" if event.delta:
                self._read_arguments(event.item_id, event.delta, out)
            case "output_item.added" | "output_item.done":
                self._read_item(event.item, out)
            case _ if event.type in _TERMINAL:
                self._read_ending(event, payload, out)

    def _end(self, out: list[Delta]) -> None:  # noqa: ARG002 - without a terminal event there is nothing to hand out
        self._fail(broken_off())

    def _read_item(self, item: _Item | None, out: list[Delta]) -> None:
        """A call's name comes when it is added; its arguments, for backends that send no deltas, when it is done."""
        if item is None or item.type != "function_call":
            return
        call = self._calls.get(item.id)
        if call is None:
            self._calls[item.id] = _Call(len(self._calls), has_arguments=bool(item.arguments))
            self._last = item.id
            out.append(CallDelta(len(self._calls) - 1, item.name or "", item.arguments or ""))
        elif item.arguments and not call.has_arguments:
            call.has_arguments = True
            out.append(CallDelta(call.number, "", item.arguments))

    def _read_arguments(self, item_id: str | None, delta: str, out: list[Delta]) -> None:
        call = self._calls.get(item_id) or self._calls.get(self._last)
        if call is not None:
            call.has_arguments = True
            out.append(CallDelta(call.number, "", delta))

    def _read_ending(self, event: _Event, payload: bytes, out: list[Delta]) -> None:
        response = event.response or _Response()
        said = msgspec.json.encode({"error": response.error}) if response.error else payload
        kind = event.type.removeprefix("response.")
        ended = _ending(response, kind, said, self._asked, has_calls=bool(self._calls))
        if isinstance(ended, Finished):
            self.ended = True
            out.append(ended)
        else:
            self._fail(ended)


def _ending(
    response: _Response, kind: str | None, said: bytes, asked: Asked, *, has_calls: bool
) -> Finished | AntwortError:
    """How a response ended. The status inside counts: some backends end every stream with `response.completed`."""
    match response.status or kind:
        case "completed" | "requires_action":
            return Finished("tool_calls" if has_calls else "stop", _usage(response.usage))
        case "incomplete":
            reason = response.incomplete_details.reason if response.incomplete_details else None
            finish = "length" if reason in (None, "max_output_tokens") else reason
            return Finished(finish, _usage(response.usage))
        case _:
            return error_in(said, asked) or BackendError("The backend failed to answer.")


def _usage(told: _Usage | None) -> Usage | None:
    if told is None:
        return None
    return usage_of(
        told.input_tokens,
        told.output_tokens,
        told.total_tokens,
        told.input_tokens_details,
        told.output_tokens_details,
    )


# ---- an answer that was not streamed ----


class _Part(msgspec.Struct, gc=False):
    type: str = ""
    text: str | None = None
    refusal: str | None = None
    logprobs: list[TokenProb] | None = None


class _WholeItem(_Item, gc=False):
    content: list[_Part] | None = None
    summary: list[_Part] | None = None


class _Whole(_Response, gc=False):
    output: list[_WholeItem] | None = None


_decode_whole = msgspec.json.Decoder(_Whole).decode


class WholeResponseReader(BodyReader):
    def _read(self, body: bytes) -> list[Delta]:
        return read_response(body, self._asked)


def read_response(body: bytes, asked: Asked = NOBODY) -> list[Delta]:
    """The deltas of a whole response, `Finished` last. One that failed is an error."""
    try:
        response = _decode_whole(body)
    except UNREADABLE as exc:
        raise not_understood() from exc
    out: list[Delta] = []
    calls = 0
    for item in response.output or ():
        if item.type == "function_call":
            out.append(CallDelta(calls, item.name or "", item.arguments or ""))
            calls += 1
        else:
            _read_item(item, out)
    ended = _ending(response, None, body, asked, has_calls=calls > 0)
    if not isinstance(ended, Finished):
        raise ended
    out.append(ended)
    return out


def _read_item(item: _WholeItem, out: list[Delta]) -> None:
    """What was said or thought in an item; other kinds are passed over."""
    if item.type == "reasoning":
        texts = [part.text for part in item.content or item.summary or () if part.text]
        out.extend(map(ReasoningDelta, texts))
    elif item.type == "message":
        for part in item.content or ():
            if part.text:
                out.append(TextDelta(part.text, log_probs(part.logprobs or ())))
            if part.refusal:
                out.append(RefusalDelta(part.refusal))
