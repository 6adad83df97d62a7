"""Fold the events of a stream into the parts of an answer. Pure.

Only what is shown is read. Unknown events and fields of unexpected types are ignored: a server may be newer than this
program.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, field
from typing import Literal, TypeAlias, TypeVar

import msgspec

Status: TypeAlias = Literal["in_progress", "completed", "incomplete", "failed", "cancelled"]
T = TypeVar("T", bound=msgspec.Struct)

_PREFIX = "antwort:"
"""Of types that the standard does not have, where a server follows it strictly."""
_CUT_OFF = "The answer broke off."
_NO_RESULT = "There was no result."
_INCOMPLETE = {
    "max_output_tokens": "The answer was cut off: it had become as long as it may be.",
    "max_turns": "The answer was cut off: the model had been asked as often as it may be.",
    "max_tool_calls": "The answer was cut off: as many tools had been called as may be.",
    "deadline": "The answer was cut off: it had taken as long as it may.",
    "token_budget": "The answer was cut off: it had taken as many tokens as it may.",
    "stuck": "The answer was cut off: the tools brought nothing new.",
    "content_filter": "The answer was cut off by a content filter.",
}


# ---- events ----


class TokenUsage(msgspec.Struct, frozen=True):
    input_tokens: int = 0
    output_tokens: int = 0


class ReceivedItem(msgspec.Struct):
    type: str = ""
    id: str = ""
    name: str = ""
    server_label: str = ""
    namespace: str = ""
    arguments: str = ""
    input: str = ""
    call_id: str = ""
    output: object = None
    error: object = None
    is_error: bool = False
    content: object = None
    summary: object = None


class ReceivedResponse(msgspec.Struct):
    id: str = ""
    model: str = ""
    status: str = ""
    usage: TokenUsage | None = None
    error: object = None
    incomplete_details: object = None
    output: list[msgspec.Raw] = msgspec.field(default_factory=list)


class ReceivedEvent(msgspec.Struct):
    type: str = ""
    output_index: int = 0
    delta: str = ""
    arguments: str = ""
    input: str = ""
    message: str = ""
    error: object = None
    item: msgspec.Raw = msgspec.Raw(b"null")
    response: msgspec.Raw = msgspec.Raw(b"null")


def read_event(payload: bytes) -> ReceivedEvent:
    event = _decode(payload, ReceivedEvent)
    event.type = event.type.removeprefix(_PREFIX)
    return event


def _decode(data: bytes | msgspec.Raw, to: type[T]) -> T:
    """Decode an object; of one with unexpected fields, only the expected ones."""
    try:
        return msgspec.json.decode(data, type=to)
    except (ValueError, RecursionError):
        pass
    try:
        values = msgspec.json.decode(data, type=dict[str, msgspec.Raw])
    except (ValueError, RecursionError):
        return to()
    known: dict[str, object] = {}
    for each in msgspec.structs.fields(to):
        if each.name in values:
            with contextlib.suppress(ValueError, RecursionError):
                known[each.name] = msgspec.json.decode(values[each.name], type=each.type)
    return to(**known)


def message_in(error: object) -> str:
    """Return the message of an error in any of its forms; empty if there is none."""
    if isinstance(error, dict):
        message = error.get("message")
        return message if isinstance(message, str) else text_of(error.get("content")) or message_in(error.get("error"))
    return error if isinstance(error, str) else ""


def text_of(content: object) -> str:
    """Return the text of content parts or of a tool's output. Other parts are named."""
    if isinstance(content, str):
        return content
    texts = []
    for part in content if isinstance(content, list) else []:
        if isinstance(part, dict):
            found = (part[name] for name in ("text", "refusal") if isinstance(part.get(name), str))
            texts.append(next(found, f"[{part.get('type', 'something')}]"))
    return "\n".join(texts)


# ---- parts ----


@dataclass(slots=True)
class TextPart:
    """What the model says, as Markdown."""

    text: str = ""
    is_done: bool = False


@dataclass(slots=True)
class ReasoningPart:
    """What the model thinks, as plain text."""

    text: str = ""
    is_done: bool = False
    is_summary: bool = False


@dataclass(slots=True)
class CallPart:
    """A tool call. It runs from `began`, when its arguments are complete, to `ended`.

    `label` is that of the server or the namespace. The arguments of a free-form tool are its input.
    """

    name: str = ""
    label: str = ""
    arguments: str = ""
    call_id: str = ""
    began: float | None = None
    ended: float | None = None
    output: str = ""
    error: str = ""
    is_done: bool = False
    approval: str = ""
    """The id of its approval request, if it waits for approval."""

    @property
    def title(self) -> str:
        return f"{self.label}.{self.name}" if self.label else self.name

    def seconds(self, now: float) -> float | None:
        """Return how long it has been running; None before it starts."""
        return None if self.began is None else (now if self.ended is None else self.ended) - self.began

    def end(self, now: float) -> None:
        self.ended, self.is_done = now, True


@dataclass(slots=True)
class ProblemPart:
    """A tool server that could not list its tools."""

    text: str
    is_done: bool = True


Part: TypeAlias = TextPart | ReasoningPart | CallPart | ProblemPart
PartT = TypeVar("PartT", TextPart, ReasoningPart, CallPart)


@dataclass(slots=True)
class ChatAnswer:
    """One answer so far. Times are those of a monotonic clock."""

    began: float
    parts: list[Part] = field(default_factory=list)
    status: Status = "in_progress"
    response_id: str = ""
    model: str = ""
    usage: TokenUsage = field(default_factory=TokenUsage)
    problem: str = ""
    """Why it failed or is incomplete."""
    output: list[msgspec.Raw] = field(default_factory=list)
    """The items of the response as they came, to be sent again to a server that does not store them."""
    first_token: float | None = None
    ended: float | None = None
    _by_index: dict[int, Part] = field(default_factory=dict)

    @property
    def text(self) -> str:
        return "\n\n".join(part.text for part in self.parts if isinstance(part, TextPart) and part.text)

    @property
    def awaiting_approval(self) -> list[CallPart]:
        return [part for part in self.parts if isinstance(part, CallPart) and part.approval]

    def feed(self, event: ReceivedEvent, now: float) -> None:
        index = event.output_index
        match event.type.removeprefix("response."):
            case "output_text.delta" | "refusal.delta":
                self._note_token(now)
                self._part(index, TextPart).text += event.delta
            case "reasoning_text.delta" | "reasoning.delta" | "reasoning_summary_text.delta" as kind:
                self._note_token(now)
                reasoning, is_summary = self._part(index, ReasoningPart), "summary" in kind
                if not reasoning.text:
                    reasoning.is_summary = is_summary
                if reasoning.is_summary is is_summary:  # of a text and its summary, the first that comes is shown
                    reasoning.text += event.delta
            case "mcp_call_arguments.delta" | "function_call_arguments.delta" | "custom_tool_call_input.delta":
                self._note_token(now)
                self._part(index, CallPart).arguments += event.delta
            case "mcp_call_arguments.done" | "function_call_arguments.done" | "custom_tool_call_input.done":
                call = self._part(index, CallPart)
                call.arguments, call.began = event.arguments or event.input or call.arguments, now
            case "output_item.added":
                self._open(index, _item(event), now)
            case "output_item.done":
                self._close(index, _item(event), now)
            case "created" | "in_progress":
                self._note_response(_decode(event.response, ReceivedResponse))
            case "completed" | "incomplete" | "failed" | "requires_action" as status:
                self._end(_decode(event.response, ReceivedResponse), status, now)
            case "error":
                self.finish("failed", event.message or message_in(event.error), now)

    def finish(self, status: Status, problem: str, now: float) -> None:
        """End the answer, and close what is open."""
        if self.status != "in_progress":
            return
        self.status, self.problem, self.ended = status, problem, now
        for part in self.parts:
            if isinstance(part, CallPart) and not part.is_done:
                part.error = part.error or ("cancelled" if status == "cancelled" else _NO_RESULT)
                part.end(now)
            part.is_done = True

    def cut_off(self, now: float) -> None:
        """End an answer whose stream has ended without an ending event."""
        self.finish("failed", _CUT_OFF, now)

    def tokens_per_second(self) -> float | None:
        """Return the speed at which the model wrote: not before its first token, and not while a tool ran."""
        if self.ended is None or self.first_token is None:
            return None
        calls = [part for part in self.parts if isinstance(part, CallPart)]
        in_tools, until = 0.0, 0.0
        for began, ended in sorted((c.began, c.ended) for c in calls if c.began is not None and c.ended is not None):
            in_tools += max(0.0, ended - max(began, until))  # calls that ran at the same time count once
            until = max(until, ended)
        seconds = self.ended - self.first_token - in_tools
        return self.usage.output_tokens / seconds if seconds > 0.05 and self.usage.output_tokens > 1 else None

    # ---- within ----

    def _open(self, index: int, item: ReceivedItem, now: float) -> None:
        match item.type:
            case "message":
                self._part(index, TextPart)
            case "reasoning":
                self._part(index, ReasoningPart)
            case "mcp_call" | "function_call" | "custom_tool_call":
                self._note_token(now)
                self._call(index, item)

    def _close(self, index: int, item: ReceivedItem, now: float) -> None:
        match item.type:
            case "message":
                text = self._part(index, TextPart)
                text.text, text.is_done = text.text or text_of(item.content), True
            case "reasoning":
                reasoning = self._part(index, ReasoningPart)
                reasoning.text = reasoning.text or text_of(item.content) or text_of(item.summary)
                reasoning.is_done = True
            case "mcp_call":
                call = self._call(index, item)
                call.output, call.error = text_of(item.output), message_in(item.error)
                call.end(now)
            case "function_call" | "custom_tool_call":
                call = self._call(index, item)
                call.began = now if call.began is None else call.began
            case "function_call_output" | "custom_tool_call_output":
                for part in self.parts:
                    if isinstance(part, CallPart) and part.call_id == item.call_id and not part.is_done:
                        result = text_of(item.output)
                        part.output, part.error = ("", result) if item.is_error else (result, "")
                        part.end(now)
            case "mcp_approval_request":
                self._note_token(now)
                call = self._call(index, item)
                call.approval, call.is_done = item.id, True
            case "mcp_list_tools" if problem := message_in(item.error):
                self.parts.append(ProblemPart(problem))

    def _call(self, index: int, item: ReceivedItem) -> CallPart:
        call = self._part(index, CallPart)
        call.name, call.label = item.name or call.name, item.server_label or item.namespace or call.label
        call.call_id = item.call_id or call.call_id
        call.arguments = item.arguments or item.input or call.arguments
        return call

    def _part(self, index: int, kind: type[PartT]) -> PartT:
        """Return the part of the item at that index, a new one if there is none of its kind."""
        known = self._by_index.get(index)
        if isinstance(known, kind):
            return known
        part = self._by_index[index] = kind()
        self.parts.append(part)
        return part

    def _note_token(self, now: float) -> None:
        if self.first_token is None:
            self.first_token = now

    def _note_response(self, response: ReceivedResponse) -> None:
        self.response_id, self.model = response.id or self.response_id, response.model or self.model

    def _end(self, response: ReceivedResponse, status: str, now: float) -> None:
        self._note_response(response)
        self.usage, self.output = response.usage or TokenUsage(), response.output
        match response.status or status:
            case "completed" | "requires_action":
                self.finish("completed", "", now)
            case "incomplete":
                details = response.incomplete_details
                reason = details.get("reason") if isinstance(details, dict) else None
                problem = _INCOMPLETE.get(str(reason), f"The answer is not complete ({reason}).")
                self.finish("incomplete", problem, now)
            case "cancelled":
                self.finish("cancelled", "", now)
            case _:
                self.finish("failed", message_in(response.error) or _CUT_OFF, now)


def _item(event: ReceivedEvent) -> ReceivedItem:
    item = _decode(event.item, ReceivedItem)
    item.type = item.type.removeprefix(_PREFIX)
    return item
