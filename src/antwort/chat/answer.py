"""An answer as it grows: the frames of a stream, folded into the parts that are shown. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, TypeAlias, TypeVar

import msgspec

from antwort.chat.frames import Ending, Frame, Item, Tokens, item_of, message_in, response_of, text_of

Status: TypeAlias = Literal["in_progress", "completed", "incomplete", "failed", "cancelled"]

_FINISHED = {"response.completed", "response.incomplete", "response.failed", "response.requires_action"}
_CUT_OFF = "The answer broke off."
_NO_RESULT = "There was no result."


@dataclass(slots=True)
class Said:
    """What the model says, as Markdown."""

    text: str = ""
    is_done: bool = False


@dataclass(slots=True)
class Thought:
    """What the model thinks, as plain text."""

    text: str = ""
    is_done: bool = False
    is_summary: bool = False


@dataclass(slots=True)
class Called:
    """A call of a tool. It runs from `began`, when its arguments are whole, to `ended`.

    `label` is that of the server or of the namespace; of a free-form tool, the arguments are its input.
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
    """The id by which it is approved or denied, where it waits for that."""

    @property
    def title(self) -> str:
        return f"{self.label}.{self.name}" if self.label else self.name

    def seconds(self, now: float) -> float | None:
        """How long it has been running; None before it does."""
        return None if self.began is None else (now if self.ended is None else self.ended) - self.began

    def end(self, now: float) -> None:
        self.ended, self.is_done = now, True


@dataclass(slots=True)
class Problem:
    """A server of tools that could not be asked for its tools."""

    text: str
    is_done: bool = True


Part: TypeAlias = Said | Thought | Called | Problem
PartT = TypeVar("PartT", Said, Thought, Called)


@dataclass(slots=True)
class Answer:
    """All that is known of a turn. Times are those of a clock that only goes forward."""

    began: float
    parts: list[Part] = field(default_factory=list)
    status: Status = "in_progress"
    response_id: str = ""
    model: str = ""
    usage: Tokens = field(default_factory=Tokens)
    problem: str = ""
    """Why it failed, or why it is not complete."""
    output: list[msgspec.Raw] = field(default_factory=list)
    """The items of the response as they came: what is sent again where a server keeps nothing."""
    first_piece: float | None = None
    ended: float | None = None
    _places: dict[int, Part] = field(default_factory=dict)

    @property
    def text(self) -> str:
        return "\n\n".join(part.text for part in self.parts if isinstance(part, Said) and part.text)

    @property
    def asked(self) -> list[Called]:
        """The calls that wait to be approved."""
        return [part for part in self.parts if isinstance(part, Called) and part.approval]

    def feed(self, frame: Frame, now: float) -> None:
        match frame.type.removeprefix("response."):
            case "output_text.delta" | "refusal.delta":
                self._note_piece(now)
                self._place(frame.output_index, Said).text += frame.delta
            case "reasoning_text.delta" | "reasoning.delta" | "reasoning_summary_text.delta":
                self._note_piece(now)
                self._feed_thought(frame)
            case "mcp_call_arguments.delta" | "function_call_arguments.delta" | "custom_tool_call_input.delta":
                self._note_piece(now)
                self._place(frame.output_index, Called).arguments += frame.delta
            case "mcp_call_arguments.done" | "function_call_arguments.done" | "custom_tool_call_input.done":
                self._begin_call(frame, now)
            case "output_item.added":
                self._open(frame.output_index, item_of(frame), now)
            case "output_item.done":
                self._close(frame.output_index, item_of(frame), now)
            case "created" | "in_progress":
                self._note_response(response_of(frame))
            case "error":
                self.finish("failed", frame.message or message_in(frame.error), now)
            case _ if frame.type in _FINISHED:
                self._end(frame, now)

    def finish(self, status: Status, problem: str, now: float) -> None:
        """Nothing more will come. What is open is closed as it stands."""
        if self.status != "in_progress":
            return
        self.status, self.problem, self.ended = status, problem, now
        for part in self.parts:
            if isinstance(part, Called) and not part.is_done:
                part.error = part.error or ("cancelled" if status == "cancelled" else _NO_RESULT)
                part.end(now)
            part.is_done = True

    def cut_off(self, now: float) -> None:
        """The stream is over; an answer that has not said so itself has broken off."""
        self.finish("failed", _CUT_OFF, now)

    # ---- items ----

    def _open(self, at: int, item: Item, now: float) -> None:
        match item.type:
            case "message":
                self._place(at, Said)
            case "reasoning":
                self._place(at, Thought)
            case "mcp_call" | "function_call" | "custom_tool_call":
                self._note_piece(now)
                self._name(self._place(at, Called), item)

    def _close(self, at: int, item: Item, now: float) -> None:
        match item.type:
            case "message":
                said = self._place(at, Said)
                said.text, said.is_done = said.text or text_of(item.content), True
            case "reasoning":
                thought = self._place(at, Thought)
                thought.text = thought.text or text_of(item.content) or text_of(item.summary)
                thought.is_done = True
            case "mcp_call":
                self._close_call(self._place(at, Called), item, now)
            case "function_call" | "custom_tool_call":
                called = self._place(at, Called)
                self._name(called, item)
                called.began = now if called.began is None else called.began
            case "function_call_output" | "custom_tool_call_output":
                self._answer_call(item, now)
            case "mcp_approval_request":
                self._note_piece(now)
                called = self._place(at, Called)
                self._name(called, item)
                called.approval, called.is_done = item.id, True
            case "mcp_list_tools" if problem := message_in(item.error):
                self.parts.append(Problem(problem))

    def _name(self, called: Called, item: Item) -> None:
        called.name, called.label = item.name or called.name, item.server_label or item.namespace or called.label
        called.call_id = item.call_id or called.call_id
        called.arguments = item.arguments or item.input or called.arguments

    def _begin_call(self, frame: Frame, now: float) -> None:
        called = self._place(frame.output_index, Called)
        called.arguments, called.began = frame.arguments or frame.input or called.arguments, now

    def _close_call(self, called: Called, item: Item, now: float) -> None:
        self._name(called, item)
        called.output, called.error = text_of(item.output), message_in(item.error)
        called.end(now)

    def _answer_call(self, item: Item, now: float) -> None:
        for part in self.parts:
            if isinstance(part, Called) and part.call_id == item.call_id and not part.is_done:
                said = text_of(item.output)
                part.output, part.error = ("", said) if item.is_error else (said, "")
                part.end(now)

    def _feed_thought(self, frame: Frame) -> None:
        """Where both come, the summary only says the same again."""
        thought = self._place(frame.output_index, Thought)
        is_summary = "summary" in frame.type
        if not thought.text:
            thought.is_summary = is_summary
        if thought.is_summary is is_summary:
            thought.text += frame.delta

    def _place(self, at: int, kind: type[PartT]) -> PartT:
        """The part of the item at that place, new where nothing of its kind is there."""
        known = self._places.get(at)
        if isinstance(known, kind):
            return known
        part = self._places[at] = kind()
        self.parts.append(part)
        return part

    # ---- the response ----

    def _note_piece(self, now: float) -> None:
        if self.first_piece is None:
            self.first_piece = now

    def _note_response(self, response: Ending) -> None:
        self.response_id, self.model = response.id or self.response_id, response.model or self.model

    def _end(self, frame: Frame, now: float) -> None:
        response = response_of(frame)
        self._note_response(response)
        self.usage, self.output = response.usage or Tokens(), response.output
        match response.status or frame.type.removeprefix("response."):
            case "completed" | "requires_action":
                self.finish("completed", "", now)
            case "incomplete":
                self.finish("incomplete", _why_incomplete(response), now)
            case "cancelled":
                self.finish("cancelled", "", now)
            case _:
                self.finish("failed", message_in(response.error) or _CUT_OFF, now)

    # ---- figures ----

    def tokens_per_second(self) -> float | None:
        """Of the time in which the model wrote: not before its first piece, not while a tool ran."""
        if self.ended is None or self.first_piece is None:
            return None
        writing = self.ended - self.first_piece - self._time_in_tools()
        return self.usage.output_tokens / writing if writing > 0.05 and self.usage.output_tokens > 1 else None

    def _time_in_tools(self) -> float:
        """Calls that ran side by side count once."""
        spans = sorted((c.began, c.ended) for c in self.parts if isinstance(c, Called) and _has_run(c))
        total, until = 0.0, 0.0
        for began, ended in spans:
            assert began is not None
            assert ended is not None
            total += max(0.0, ended - max(began, until))
            until = max(until, ended)
        return total


def _has_run(called: Called) -> bool:
    return called.began is not None and called.ended is not None


def _why_incomplete(response: Ending) -> str:
    details = response.incomplete_details
    reason = details.get("reason") if isinstance(details, dict) else None
    return _REASONS.get(str(reason), f"The answer is not complete ({reason}).")


_REASONS = {
    "max_output_tokens": "The answer was cut off: it had become as long as it may be.",
    "max_turns": "The answer was cut off: the model had been asked as often as it may be.",
    "max_tool_calls": "The answer was cut off: as many tools had been called as may be.",
    "deadline": "The answer was cut off: it had taken as long as it may.",
    "token_budget": "The answer was cut off: it had taken as many tokens as it may.",
    "stuck": "The answer was cut off: the tools brought nothing new.",
    "content_filter": "The answer was cut off by a content filter.",
}
