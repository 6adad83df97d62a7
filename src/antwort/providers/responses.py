"""The answers of a backend that speaks the Responses API itself become the same deltas. Pure."""

from __future__ import annotations

import contextlib
import re
from typing import Any, TypeVar

import msgspec

from antwort.errors import AntwortError, BackendCut, BackendError
from antwort.providers.base import CallDelta, Delta, Finished, ReasoningDelta, RefusalDelta, TextDelta
from antwort.providers.errors import NOBODY, Asked, error_in
from antwort.providers.native_items import (
    THOUGHTS,
    Item,
    Part,
    Said,
    arguments_of,
    item_of,
    items_of,
    read_usage,
)
from antwort.providers.reading import (
    OUTPUT_BYTES,
    BodyReader,
    EventReader,
    broken_off,
    read_body,
    said_by,
)
from antwort.providers.tokens import TokenProb, log_probs


class _Response(msgspec.Struct, gc=False):
    status: str | None = None
    usage: msgspec.Raw = msgspec.Raw(b"null")
    incomplete_details: Any = None
    error: Any = None
    output: Any = None


class _Event(msgspec.Struct, gc=False):
    type: str = ""
    delta: str | None = None
    output_index: int | None = None
    content_index: int | None = None
    item_id: str | None = None
    logprobs: list[TokenProb] | None = None
    text: str | None = None
    refusal: str | None = None
    arguments: Any = None
    item: Any = None
    response: msgspec.Raw = msgspec.Raw(b"null")


_event = msgspec.json.Decoder(_Event)
_response = msgspec.json.Decoder(_Response)
T = TypeVar("T", _Event, _Response)
_ENDINGS = ("completed", "incomplete", "failed", "cancelled", "requires_action")
_TEXT = frozenset({"response.output_text.delta", "output_text.delta"})
_TERMINAL = frozenset({"error", *(f"response.{ending}" for ending in _ENDINGS)})


def _read_as(told: bytes | msgspec.Raw, decoder: msgspec.json.Decoder[T]) -> T:
    """A field of a shape that nobody knows is as good as not there; an event of a kind that nobody knows is, too."""
    try:
        return decoder.decode(told)
    except msgspec.ValidationError:
        return _field_by_field(told, decoder.type())


def _field_by_field(told: bytes | msgspec.Raw, read: T) -> T:
    try:
        values = msgspec.json.decode(told, type=dict[str, msgspec.Raw])
    except msgspec.ValidationError:
        return read
    for field in msgspec.structs.fields(read):
        if field.name in values:
            with contextlib.suppress(msgspec.ValidationError):
                setattr(read, field.name, msgspec.json.decode(values[field.name], type=field.type))
    return read


class _Call:
    """`index` and `id` are the backend's: either may be missing, and some give an item a new id in every event."""

    __slots__ = ("has_arguments", "id", "index", "is_done", "number")

    def __init__(self, number: int, index: int | None, item_id: str | None) -> None:
        self.number, self.index, self.id = number, index, item_id
        self.has_arguments = self.is_done = False


class ResponsesReader(EventReader):
    """Reads the deltas of texts, reasoning and calls, and how the response ended. What comes without deltas is read
    when it is done, at the latest with the response.
    """

    __slots__ = ("_by_id", "_by_index", "_calls", "_has_reasoning", "_said")

    def __init__(self, asked: Asked = NOBODY, most: int = OUTPUT_BYTES) -> None:
        super().__init__(asked, most)
        self._calls: list[_Call] = []
        self._by_index: dict[int, list[_Call]] = {}
        self._by_id: dict[str, list[_Call]] = {}
        self._has_reasoning = False
        self._said = Said()

    def _read(self, payload: bytes, out: list[Delta]) -> None:
        event = _read_as(payload, _event) if payload.startswith(b"{") else _Event()
        if event.type in _TEXT and event.delta:
            self._said.note(event.output_index, event.item_id, event.content_index or 0)
            out.append(TextDelta(event.delta, log_probs(event.logprobs) if event.logprobs else ()))
            return
        before = len(out)
        self._read_other(event, payload, out)
        self._tally.size += sum([said_by(delta) for delta in out[before:] if not isinstance(delta, TextDelta)])

    def _read_other(self, event: _Event, payload: bytes, out: list[Delta]) -> None:
        match event.type.removeprefix("response."):
            case "reasoning_text.delta" | "reasoning.delta" if event.delta:
                self._has_reasoning = True
                self._read_thought(event, out)
            case "reasoning_summary_text.delta" if event.delta and not self._has_reasoning:
                self._read_thought(event, out)
            case "refusal.delta" if event.delta:
                self._said.note(event.output_index, event.item_id, event.content_index or 0)
                out.append(RefusalDelta(event.delta))
            case "function_call_arguments.delta" | "function_call_arguments.done":
                self._read_arguments(event, out)
            case "output_text.done" | "refusal.done":
                part = Part(text=event.text, refusal=event.refusal, logprobs=event.logprobs)
                self._read_part(event.output_index, event.item_id, event.content_index or 0, part, out)
            case "output_item.added" | "output_item.done":
                self._read_item(event, out)
            case _ if event.type in _TERMINAL:
                self._read_ending(event, payload, out)

    def _end(self, out: list[Delta]) -> None:  # noqa: ARG002 - without a terminal event there is nothing to hand out
        self._fail(broken_off())

    # ---- what is said and thought ----

    def _read_thought(self, event: _Event, out: list[Delta]) -> None:
        self._said.note(event.output_index, event.item_id, THOUGHTS)
        out.append(ReasoningDelta(event.delta or ""))

    def _read_part(self, index: int | None, item_id: str | None, at: int, part: Part, out: list[Delta]) -> None:
        """A part of a message that is done, if nothing of it has come."""
        if (part.text or part.refusal) and not self._said.has(index, item_id, at):
            self._said.note(index, item_id, at)
            part.read(out)

    def _read_item(self, event: _Event, out: list[Delta]) -> None:
        item, is_done = item_of(event.item), event.type.endswith(".done")
        if item.type == "function_call":
            self._read_call(item, event.output_index, is_done=is_done, out=out)
        elif is_done:
            self._read_done(item, event.output_index, out)

    def _read_done(self, item: Item, index: int | None, out: list[Delta]) -> None:
        if item.type == "reasoning" and not self._said.has(index, item.id, THOUGHTS):
            self._said.note(index, item.id, THOUGHTS)
            out.extend(map(ReasoningDelta, item.thoughts()))
        elif item.type == "message":
            for at, part in enumerate(item.content):
                self._read_part(index, item.id, at, part, out)

    # ---- calls ----

    def _read_call(self, item: Item, index: int | None, *, is_done: bool, out: list[Delta]) -> None:
        """A call's name comes when it is added; its arguments, for backends that send no deltas, when it is done."""
        call = self._open_call(index, item.id) if is_done else None
        if call is None:
            call = _Call(len(self._calls), index, item.id)
            self._calls.append(call)
            if index is not None:
                self._by_index.setdefault(index, []).append(call)
            if item.id:
                self._by_id.setdefault(item.id, []).append(call)
            call.has_arguments = bool(item.arguments)
            out.append(CallDelta(call.number, item.name, item.arguments))
        elif item.arguments and not call.has_arguments:
            call.has_arguments = True
            out.append(CallDelta(call.number, "", item.arguments))
        call.is_done = is_done

    def _open_call(self, index: int | None, item_id: str | None) -> _Call | None:
        """The call that an item which is done was added as: by its place, or its id, or as the last."""
        if index is not None and (here := _waiting(self._by_index.get(index))):
            return _named(here, item_id) or here[-1]
        if item_id:
            return next(iter(_waiting(self._by_id.get(item_id))), None)
        return next((call for call in reversed(self._calls) if not call.is_done), None) if index is None else None

    def _read_arguments(self, event: _Event, out: list[Delta]) -> None:
        call = self._call_of(event)
        if call is None:
            return
        piece = event.delta or ("" if call.has_arguments else arguments_of(event.arguments))
        if piece:
            call.has_arguments = True
            out.append(CallDelta(call.number, "", piece))

    def _call_of(self, event: _Event) -> _Call | None:
        if event.output_index is not None and (here := self._by_index.get(event.output_index)):
            return _named(here, event.item_id) or here[-1]
        if event.item_id and (known := self._by_id.get(event.item_id)):
            return known[0]
        return self._calls[-1] if self._calls else None

    # ---- the end ----

    def _read_ending(self, event: _Event, payload: bytes, out: list[Delta]) -> None:
        response = _read_as(event.response, _response)
        items = items_of(response.output)
        said = msgspec.json.encode({"error": response.error}) if response.error else payload
        has_calls = bool(self._calls) or any(item.type == "function_call" for item in items)
        ended = _ending(response, event.type.removeprefix("response."), said, self._asked, has_calls=has_calls)
        if isinstance(ended, Finished):
            self._read_rest(items, out)
            self.ended = True
            out.append(ended)
        else:
            self._fail(ended)

    def _read_rest(self, items: list[Item], out: list[Delta]) -> None:
        """Some send all of a kind with the last event only. What has come of a kind before is all there is of it."""
        has_calls, has_words, has_thoughts = bool(self._calls), self._said.has_words, self._said.has_thoughts
        for at, item in enumerate(items):
            if item.type == "function_call":
                if not has_calls:
                    self._read_call(item, at, is_done=True, out=out)
            elif not (has_thoughts if item.type == "reasoning" else has_words):
                self._read_done(item, at, out)


def _waiting(calls: list[_Call] | None) -> list[_Call]:
    return [call for call in calls or () if not call.is_done]


def _named(calls: list[_Call], item_id: str | None) -> _Call | None:
    return next((call for call in calls if item_id and call.id == item_id), None)


def _ending(
    response: _Response, kind: str | None, said: bytes, asked: Asked, *, has_calls: bool
) -> Finished | AntwortError:
    """How a response ended. The status inside counts: some backends end every stream with `response.completed`."""
    match response.status or kind:
        case "completed" | "requires_action":
            return Finished("tool_calls" if has_calls else "stop", read_usage(response.usage))
        case "incomplete":
            return _cut_short(response)
        case "cancelled":
            return BackendCut("The backend's answer was cancelled there.")
        case _:
            return error_in(said, asked) or BackendError("The backend failed to answer.")


def _cut_short(response: _Response) -> Finished | AntwortError:
    """What the client asked for, or may know, is an ending; a limit of the backend's own cuts the answer off."""
    details = response.incomplete_details
    reason = details.get("reason") if isinstance(details, dict) else None
    if reason in (None, "max_output_tokens"):
        return Finished("length", read_usage(response.usage))
    if reason == "content_filter":
        return Finished(reason, read_usage(response.usage))
    word = reason if isinstance(reason, str) and re.fullmatch(r"[a-z_]{1,40}", reason) else "no reason of ours"
    return BackendCut(f"The backend ended its answer before it was complete: {word}.")


# ---- an answer that was not streamed ----


class WholeResponseReader(BodyReader):
    def _read(self, body: bytes) -> list[Delta]:
        return read_response(body, self._asked)


def read_response(body: bytes, asked: Asked = NOBODY) -> list[Delta]:
    """The deltas of a whole response, `Finished` last. One that failed is an error."""
    response, body = read_body(_response.decode, body)
    out: list[Delta] = []
    calls = 0
    for item in items_of(response.output):
        if item.type == "function_call":
            out.append(CallDelta(calls, item.name, item.arguments))
            calls += 1
        elif item.type == "reasoning":
            out.extend(map(ReasoningDelta, item.thoughts()))
        elif item.type == "message":
            for part in item.content:
                part.read(out)
    ended = _ending(response, None, body, asked, has_calls=calls > 0)
    if not isinstance(ended, Finished):
        raise ended
    out.append(ended)
    return out
