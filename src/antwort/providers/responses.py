"""The event stream of a backend that speaks the Responses API itself becomes the same deltas. Pure."""

from __future__ import annotations

from typing import Any

import msgspec

from antwort.api.responses import InputTokensDetails, OutputTokensDetails, Usage
from antwort.errors import BackendError
from antwort.providers.base import CallDelta, Delta, Finished, ReasoningDelta, RefusalDelta, TextDelta
from antwort.providers.failures import NOBODY, Asked, error_in
from antwort.providers.reading import EventReader, broken_off


class _Item(msgspec.Struct, gc=False):
    type: str = ""
    id: str | None = None
    name: str | None = None
    arguments: str | None = None


class _TokenDetails(msgspec.Struct, gc=False):
    cached_tokens: int | None = None
    cache_write_tokens: int | None = None
    reasoning_tokens: int | None = None


class _Usage(msgspec.Struct, gc=False):
    input_tokens: int = 0
    output_tokens: int = 0
    total_tokens: int | None = None
    input_tokens_details: _TokenDetails | None = None
    output_tokens_details: _TokenDetails | None = None


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
    item_id: str | None = None
    item: _Item | None = None
    response: _Response | None = None


_decode = msgspec.json.Decoder(_Event).decode
_TERMINAL = frozenset({"response.completed", "response.incomplete", "response.failed", "response.cancelled", "error"})


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
                out.append(TextDelta(event.delta))
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
        """The status inside counts: some backends end every response with `response.completed`."""
        response = event.response or _Response()
        match response.status or event.type.removeprefix("response."):
            case "completed":
                self._finish_with("tool_calls" if self._calls else "stop", response, out)
            case "incomplete":
                reason = response.incomplete_details.reason if response.incomplete_details else None
                self._finish_with("length" if reason in (None, "max_output_tokens") else reason, response, out)
            case _:
                said = msgspec.json.encode({"error": response.error}) if response.error else payload
                self._fail(error_in(said, self._asked) or BackendError("The backend failed to answer."))

    def _finish_with(self, finish: str, response: _Response, out: list[Delta]) -> None:
        self.ended = True
        out.append(Finished(finish, _usage(response.usage)))


def _usage(told: _Usage | None) -> Usage | None:
    if told is None:
        return None
    before = told.input_tokens_details or _TokenDetails()
    after = told.output_tokens_details or _TokenDetails()
    made_total = told.input_tokens + told.output_tokens
    return Usage(
        input_tokens=told.input_tokens,
        output_tokens=told.output_tokens,
        total_tokens=made_total if told.total_tokens is None else told.total_tokens,
        input_tokens_details=InputTokensDetails(
            cached_tokens=before.cached_tokens or 0, cache_write_tokens=before.cache_write_tokens or 0
        ),
        output_tokens_details=OutputTokensDetails(reasoning_tokens=after.reasoning_tokens or 0),
    )
