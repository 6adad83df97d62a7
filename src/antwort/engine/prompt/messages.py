"""Translate items into the chat messages of an inference.

Each turn of the model becomes one assistant message, with the results of its calls right behind it: backends refuse a
call without a result, and a result anywhere else. Pure.
"""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from operator import attrgetter
from typing import Any

import msgspec

from antwort.api.decoding import Steps
from antwort.api.items import (
    TEXTS,
    ContentPart,
    CustomToolCall,
    CustomToolCallOutput,
    FunctionCall,
    FunctionCallOutput,
    InputFile,
    InputImage,
    InputItem,
    InputVideo,
    McpApprovalRequest,
    McpApprovalResponse,
    McpCall,
    Message,
    OpaqueItem,
    Reasoning,
    Refusal,
    ResultPart,
)
from antwort.api.wire import UNSET, encode, replace
from antwort.engine.context.message_text import Pictures
from antwort.engine.history.calls import ITEMS_PER_STEP, CallView, as_call, is_same, late_id, requested_call, value_key
from antwort.engine.history.refusals import NO_APPROVAL, denial
from antwort.engine.history.turns import TurnCounter
from antwort.engine.loop.custom_input import as_object
from antwort.engine.prompt.declared_tools import INPUT
from antwort.engine.prompt.tool_names import called_name, legal_name, model_name
from antwort.providers.base import Capabilities, ChatCall, ChatFunction, ChatMessage
from antwort.tools.base import Output
from antwort.tools.routing import Toolbox

NO_RESULT = "No result was given for this call."
_TEXTS = frozenset(TEXTS)
_text_of = attrgetter("text")


class Results(msgspec.Struct, frozen=True):
    """The results of all calls, wherever they stand."""

    found: Mapping[str, deque[Output]] = {}
    """By call id. Ids may repeat in a client's history: then the order counts."""
    late: frozenset[str] = frozenset()
    """The calls that were decided about after the model had continued without them: they are shown again where they
    were run.
    """
    shown: frozenset[str] = frozenset()
    """The calls that were to be approved and whose runs are shown under other ids."""


class _Turn(msgspec.Struct):
    """The parts of one turn of the model so far."""

    texts: list[str] = []
    reasoning: list[str] = []
    calls: list[ChatCall] = []
    outputs: list[Output] = []
    call_ids: set[str] = set()
    has_results: bool = False
    """Of the client's or this process's functions."""
    has_server_results: bool = False
    has_open_calls: bool = False
    """To which a client's history has no result."""
    has_late_results: bool = False
    """Of calls that are shown again."""


class Transcript(msgspec.Struct, kw_only=True, eq=False):
    """Collect the messages, turn by turn."""

    capabilities: Capabilities
    toolbox: Toolbox
    results: Results
    """Of all items that will be added: results may stand anywhere in them."""
    placeholders: Mapping[str, str]
    """What stands in for the results of calls that have none, by call id."""
    messages: list[ChatMessage] = []
    is_input: bool = False
    """Whether a client has put the added items together, which may be many turns."""
    seen: dict[str, CallView] = {}
    """The servers' calls so far."""
    turn: _Turn | None = None
    """What the model has said since the last message."""

    def add_steps(self, items: Iterable[InputItem], *, is_input: bool = False) -> Steps[None]:
        """Add items that stand together, in pieces: no turn continues behind them. Lists of tools, decisions and items
        that were cut off come to no message.
        """
        self.is_input = is_input
        for at, item in enumerate(items, 1):
            if at % ITEMS_PER_STEP == 0:
                yield
            match item:
                case Message(role="assistant"):
                    self._words().texts.append(said_in(item.content))
                case Message():
                    if self.turn is not None:
                        self._end_turn()
                    self.messages.append(_chat_message(item, self.capabilities))
                case Reasoning():
                    raw = "" if item.content is UNSET else "".join(part.text for part in item.content)
                    # The summary holds the same text if the client asked for one.
                    self._words().reasoning.append(raw or "".join(part.text for part in item.summary))
                case FunctionCallOutput() | CustomToolCallOutput():
                    self._note_result()
                case FunctionCall() if item.status != "incomplete":
                    self._add_call(item.call_id, called_name(self.toolbox, item), item.arguments)
                case CustomToolCall() if item.status != "incomplete":
                    arguments = encode({INPUT: item.input}).decode()
                    self._add_call(item.call_id, called_name(self.toolbox, item), arguments)
                case McpCall() if item.status != "incomplete":
                    self._add_server_call(item)
                case McpApprovalRequest() if item.status != "incomplete":
                    if requested_call(item.id) not in self.results.shown:
                        self._add_server_call(as_call(item)).has_open_calls = is_input
                case OpaqueItem() if (view := CallView.of(item)) is not None:
                    # A call of an unknown type is shown with its result, or not at all.
                    if view.part == "result":
                        self._note_result()
                    elif self.results.found.get(view.call_id):
                        self._add_call(view.call_id, view.name, view.arguments)
        if self.turn is not None:
            self._end_turn()

    def _note_result(self) -> None:
        if self.turn is not None:
            self.turn.has_results = True

    def _words(self) -> _Turn:
        """Return the turn that the next words of the model belong to: behind results, they begin another message."""
        turn = self.turn
        if turn is None or turn.has_results or turn.has_server_results or turn.has_open_calls or turn.has_late_results:
            if turn is not None:
                self._end_turn()
            turn = self.turn = _Turn()
        return turn

    def _add_server_call(self, item: McpCall) -> _Turn:
        """Add a call of a server. One that a later response ran is shown twice, and was made once."""
        view = CallView.of(item)
        call_id, result, is_named = view.call_id, view.result, item.approval_request_id is not UNSET
        name = model_name(self.toolbox, item.server_label, item.name)
        turn = self.turn or _Turn()
        if result is not None and is_named and call_id in self.results.late:
            turn = self._add_call(late_id(call_id), name, item.arguments, result)
            turn.has_late_results = True
        elif (seen := self.seen.get(call_id)) is None or self._is_another(seen, view):
            self.seen[call_id] = view
            turn = self._add_call(call_id, name, item.arguments, result)
        # Parallel calls of servers stand one behind the other, each with its result. In a client's items, words end the
        # turn; in a stretch that is one turn for certain, they are part of it, unless the call is of an earlier one.
        if result is not None and (self.is_input or view.part == "run"):
            turn.has_server_results = True
        return turn

    def _is_another(self, seen: CallView, view: CallView) -> bool:
        """Ids may repeat in a client's history: a different call with a result is another one."""
        return self.is_input and None not in (seen.result, view.result) and not is_same(seen.item, view.item)

    def _add_call(self, call_id: str, name: str, arguments: str, result: Output | None = None) -> _Turn:
        turn = self.turn
        # Answered calls of servers, and a call that the client is to run after them, are of different turns.
        if (
            turn is None
            or turn.has_results
            or (turn.has_server_results and self.is_input and (result is None or call_id in turn.call_ids))
        ):
            if turn is not None:
                self._end_turn()
            turn = self.turn = _Turn()
        if name not in self.toolbox.tools:
            name = legal_name(name)
        if result is None or self.is_input:
            results = self.results.found.get(call_id)
            turn.has_open_calls = turn.has_open_calls or (self.is_input and not results)
            if result is None:
                result = results.popleft() if results else self.placeholders.get(call_id, NO_RESULT)
        turn.outputs.append(result)
        turn.call_ids.add(call_id)
        turn.calls.append(ChatCall(id=call_id, function=ChatFunction(name=name, arguments=as_object(arguments))))
        return turn

    def _end_turn(self) -> None:
        """Write the assistant message, and the results of its calls in the order of the calls."""
        turn, self.turn = self.turn, None
        assert turn is not None, "a turn is open"
        field, text = self.capabilities.reasoning_field, "\n".join(filter(None, turn.texts))
        reasoning = "" if field is None else "".join(turn.reasoning)
        if not (turn.calls or text or reasoning):
            return
        last = self.messages[-1] if turn.has_late_results and self.messages else None
        if last is None or last.role != "assistant" or last.tool_calls is not UNSET or turn.texts or turn.reasoning:
            content = text or (None if turn.calls else "")
            message = ChatMessage(role="assistant", content=content, tool_calls=turn.calls or UNSET)
            self.messages.append(replace(message, **{field: reasoning}) if field and reasoning else message)
        else:  # calls that are shown again belong to the model's last message, if nothing stands behind it
            self.messages[-1] = replace(last, tool_calls=turn.calls)
        images: list[dict[str, Any]] = []
        for call, output in zip(turn.calls, turn.outputs, strict=True):
            if isinstance(output, str):
                text = output
            else:
                text, pictures = _result_text(output, self.capabilities)
                images += pictures
            self.messages.append(ChatMessage(role="tool", tool_call_id=call.id, content=text))
        if images:
            self.messages.append(Pictures(role="user", content=images))


# ---- results ----


def result_steps(stretches: Sequence[Sequence[InputItem]], placeholders: Mapping[str, str]) -> Steps[Results]:
    """Find the results of all calls, in pieces."""
    found: dict[str, deque[Output]] = defaultdict(deque)
    requests: list[McpApprovalRequest] = []
    for at, item in enumerate(chain.from_iterable(stretches), 1):
        if at % ITEMS_PER_STEP == 0:
            yield
        if isinstance(item, McpApprovalRequest):
            requests.append(item)
        elif (view := CallView.of(item)) is not None and (result := view.result) is not None:
            found[view.call_id].append(result)
    if not requests:
        return Results(found)
    turns, asked, decisions = TurnCounter(), dict[str, int](), dict[str, McpApprovalResponse]()
    late, runs = set[str](), Counter[tuple[object, ...]]()
    for stretch in stretches:
        turns.end_turn()
        for at, item in enumerate(stretch, 1):
            if at % ITEMS_PER_STEP == 0:
                yield
            turns.add(item)
            if isinstance(item, McpApprovalRequest):
                asked.setdefault(item.id, turns.number)
            elif (view := CallView.of(item)) is not None and (request_id := view.request_id) is not None:
                if isinstance(item, McpApprovalResponse):
                    decisions.setdefault(request_id, item)
                # A decision that was made elsewhere shows only by the run of its call.
                if asked.pop(request_id, turns.number) < turns.number and found.get(view.call_id):
                    late.add(view.call_id)
            elif view is not None and isinstance(item, McpCall) and view.result is not None:
                runs[_question(item)] += 1
    for call_id in late:
        found[call_id].appendleft(NO_APPROVAL)
    shown = set[str]()
    for at, request in enumerate(requests, 1):
        if at % ITEMS_PER_STEP == 0:
            yield
        call_id, decision = requested_call(request.id), decisions.get(request.id)
        if found.get(call_id):
            continue
        if decision is not None and decision.approve:
            # Some clients leave out which request for approval a run belongs to.
            if runs[_question(request)] > 0:
                runs[_question(request)] -= 1
                shown.add(call_id)
        elif decision is not None:
            found[call_id].append(denial(decision))
        else:
            found[call_id].append(placeholders.get(call_id) or NO_APPROVAL)
    return Results(found, frozenset(late), frozenset(shown))


def _question(item: McpCall | McpApprovalRequest) -> tuple[object, ...]:
    """Return what a server's call asks, in a form that can be a key."""
    return item.server_label, item.name, value_key(item.arguments)


# ---- the Chat form of parts ----


def _chat_message(item: Message, capabilities: Capabilities) -> ChatMessage:
    role = "system" if item.role == "developer" and not capabilities.developer_role else item.role
    if _TEXTS.issuperset(map(type, item.content)):
        return ChatMessage(role=role, content="\n".join(map(_text_of, item.content)))
    return ChatMessage(role=role, content=[_chat_part(part) for part in item.content])


def said_in(parts: Sequence[ContentPart]) -> str:
    return "\n".join([part.refusal if isinstance(part, Refusal) else getattr(part, "text", "") for part in parts])


def _chat_part(part: ContentPart) -> dict[str, Any]:
    match part:
        case InputImage():
            image: dict[str, Any] = {"url": part.image_url}
            if part.detail != "auto":
                image["detail"] = "high" if part.detail == "original" else part.detail  # the most there is in Chat
            return {"type": "image_url", "image_url": image}
        case InputFile():
            given = {"filename": part.filename, "file_data": part.file_data}
            return {"type": "file", "file": {key: value for key, value in given.items() if isinstance(value, str)}}
        case InputVideo():
            return {"type": "video_url", "video_url": {"url": part.video_url}}
        case _:
            return {"type": "text", "text": said_in((part,))}


def _result_text(parts: Sequence[ResultPart], capabilities: Capabilities) -> tuple[str, list[dict[str, Any]]]:
    """Return the text of a result, and its images: a tool message holds text only, so they follow in a user message.

    A part that the backend would refuse is only named: a tool cannot know what the model takes.
    """
    texts: list[str] = []
    images: list[dict[str, Any]] = []
    for part in parts:
        if isinstance(part, TEXTS):
            texts.append(part.text)
            continue
        if isinstance(part, InputFile):
            is_taken = capabilities.files and isinstance(part.file_data, str)
        else:
            is_taken = capabilities.vision and not (isinstance(part, InputImage) and part.image_url is None)
        if is_taken:
            images.append(_chat_part(part))
        fate = "shown in the next message" if is_taken else "the model does not take it"
        texts.append(f"[{part.__struct_config__.tag}: {fate}]")
    return "\n".join(texts), images
