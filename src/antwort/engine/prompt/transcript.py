"""Translate items into the chat messages of an inference, and log the items that come to none."""

from __future__ import annotations

import logging
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, ClassVar

import msgspec

from antwort.api.items import (
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
    is_additional,
)
from antwort.api.wire import UNSET, encode, replace
from antwort.engine.context.compaction_item import is_trigger
from antwort.engine.context.message_text import Pictures, Recap, recalled
from antwort.engine.history.approvals import NO_APPROVAL, decisions_in, unrun_result
from antwort.engine.history.calls import (
    CallView,
    answered_in,
    approval_request_of,
    as_call,
    call_id_of,
    called_in,
    is_bare,
    is_run,
    is_same,
    late_id,
    requested_call,
    result_of,
)
from antwort.engine.history.turns import TurnCounter
from antwort.engine.loop.custom_input import as_object
from antwort.engine.prompt.content_parts import chat_message, result_text, said_in
from antwort.engine.prompt.declared_tools import INPUT
from antwort.engine.prompt.tool_names import called_name, legal_name, model_name
from antwort.notes import note
from antwort.providers.base import Capabilities, ChatCall, ChatFunction, ChatMessage
from antwort.tools.base import Output
from antwort.tools.routing import Toolbox

_log = logging.getLogger("antwort.engine")

NO_RESULT = "No result was given for this call."
_MOST_TYPES, _LONGEST_TYPE = 10, 60
"""How much of the client's words a line of the log takes."""


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


class Transcript:
    """Collects each turn of the model into one assistant message, with the results of its calls right behind it."""

    def __init__(
        self,
        capabilities: Capabilities,
        toolbox: Toolbox,
        stretches: Sequence[Sequence[InputItem]],
        placeholders: Mapping[str, str],
    ) -> None:
        """The `stretches` are all items that will be added: results may stand anywhere in them. `placeholders` stand in
        for the results of calls that have none, by call id.
        """
        self.messages: list[ChatMessage] = []
        self.is_input = False
        """Whether a client has put the added items together, which may be many turns."""
        self.recap = ""
        """The summary of a compacted history, until a message holds it."""
        self._capabilities, self._toolbox, self._stretches, self._placeholders = (
            capabilities,
            toolbox,
            stretches,
            placeholders,
        )
        self._found: CallResults | None = None
        self._seen: dict[str, McpCall] = {}
        self._turn = _Turn()

    @property
    def _results(self) -> CallResults:
        """Found when they are needed: a server's call mostly has its result with it."""
        if self._found is None:
            self._found = results_of(self._stretches, self._placeholders)
        return self._found

    def add(self, item: InputItem) -> None:
        if (add := self._ADDERS.get(type(item))) is not None:
            add(self, item)

    def add_stretch(self, items: Iterable[InputItem]) -> None:
        """Add items that stand together: no turn continues behind them."""
        for item in items:
            if (add := self._ADDERS.get(type(item))) is not None:
                add(self, item)
        self.flush()

    def go_on(self, turns: Iterable[Sequence[InputItem]], news: Sequence[InputItem]) -> None:
        """Add the turns since then, whose items are `news`."""
        self._stretches, self._placeholders, self._found = (news,), {}, None
        for turn in turns:
            self.add_stretch(turn)

    def flush(self) -> None:
        """Write the assistant message, and the results of its calls in the order of the calls."""
        turn = self._turn
        if not (turn.calls or turn.texts or turn.reasoning):
            turn.has_results = turn.has_server_results = turn.has_open_calls = False
            return
        if turn.calls or any(turn.texts) or (any(turn.reasoning) and self._capabilities.reasoning_field is not None):
            if turn.has_late_results:
                self._write_late(turn)
            else:
                self._write(self._assistant(turn))
            images: list[dict[str, Any]] = []
            for call, output in zip(turn.calls, turn.outputs, strict=True):
                if isinstance(output, str):
                    text = output
                else:
                    text, pictures = result_text(output, self._capabilities)
                    images += pictures
                self.messages.append(ChatMessage(role="tool", tool_call_id=call.id, content=text))
            if images:
                self.messages.append(Pictures(role="user", content=images))
        self._turn = _Turn()

    def _write_late(self, turn: _Turn) -> None:
        """Add calls that are shown again to the model's last message, if nothing stands behind it."""
        last = self.messages[-1] if self.messages else None
        if last is None or last.role != "assistant" or last.tool_calls is not UNSET or turn.texts or turn.reasoning:
            self._write(self._assistant(turn))
        else:
            self.messages[-1] = replace(last, tool_calls=turn.calls)

    def _write(self, message: ChatMessage) -> None:
        """The summary goes into the first user message: some templates take no two in a row."""
        if self.recap and message.role not in ("system", "developer"):
            if message.role == "user":
                message = recalled(self.recap, message)
            else:
                self.messages.append(Recap(role="user", content=self.recap))
            self.recap = ""
        self.messages.append(message)

    def whole(self) -> list[ChatMessage]:
        return [*self.messages, Recap(role="user", content=self.recap)] if self.recap else self.messages

    def _next_turn(self) -> None:
        """Words of the model after results belong to another message, and so do words after calls that a client never
        answers.
        """
        turn = self._turn
        if turn.has_results or turn.has_server_results or turn.has_open_calls or turn.has_late_results:
            self.flush()

    def _add_message(self, item: Message) -> None:
        if item.role == "assistant":
            self._next_turn()
            self._turn.texts.append(said_in(item.content))
        else:
            self.flush()
            self._write(chat_message(item, self._capabilities))

    def _add_reasoning(self, item: Reasoning) -> None:
        self._next_turn()
        self._turn.reasoning.append(_reasoning_of(item))

    def _add_function_call(self, item: FunctionCall) -> None:
        if item.status != "incomplete":
            self._add_own(item.call_id, called_name(self._toolbox, item), item.arguments)

    def _add_custom_call(self, item: CustomToolCall) -> None:
        if item.status != "incomplete":
            arguments = encode({INPUT: item.input}).decode()
            self._add_own(item.call_id, called_name(self._toolbox, item), arguments)

    def _add_result(self, _: FunctionCallOutput | CustomToolCallOutput) -> None:
        self._turn.has_results = True

    def _leave_answered(self) -> None:
        """Answered calls of servers, and a call that the client is to run after them, are of different turns."""
        if self._turn.has_server_results and self.is_input:
            self.flush()

    def _add_own(self, call_id: str, name: str, arguments: str) -> None:
        self._leave_answered()
        self._add_call(call_id, name, arguments)

    def _add_server_call(self, item: McpCall) -> None:
        """A call that a later response ran is shown twice, and was made once."""
        if item.status == "incomplete":
            return
        call_id, result = call_id_of(item), result_of(item)
        if result is not None and item.approval_request_id is not UNSET and self._results.is_late(item):
            self._add_late(item, call_id, result)
        elif call_id not in self._seen or self._is_another(self._seen[call_id], item):
            self._seen[call_id] = item
            if result is None or call_id in self._turn.call_ids:
                self._leave_answered()
            self._add_call(call_id, model_name(self._toolbox, item.server_label, item.name), item.arguments, result)
        # Parallel calls of servers stand one behind the other, each with its result. In a client's items, words end the
        # turn; in a stretch that is one turn for certain, they are part of it, unless the call is of an earlier one.
        if result is not None and (self.is_input or (item.call_id is UNSET and is_run(item))):
            self._turn.has_server_results = True

    def _add_request(self, item: McpApprovalRequest) -> None:
        if item.status == "incomplete":
            return
        asked = as_call(item)
        if call_id_of(asked) not in self._results.shown:
            self._add_server_call(asked)
            self._turn.has_open_calls = self.is_input

    def _add_late(self, item: McpCall, call_id: str, result: Output) -> None:
        name = model_name(self._toolbox, item.server_label, item.name)
        self._add_call(late_id(call_id), name, item.arguments, result)
        self._turn.has_late_results = True

    def _is_another(self, seen: McpCall, item: McpCall) -> bool:
        """Ids may repeat in a client's history: a different call with a result is another one."""
        return self.is_input and not is_bare(seen) and not is_bare(item) and not is_same(seen, item)

    def _add_foreign(self, item: OpaqueItem) -> None:
        """A foreign call is shown with its result, or not at all."""
        if (view := CallView.of(item)) is None:
            return
        if view.part == "result":
            self._turn.has_results = True
        elif self._results.found.get(view.call_id):
            self._add_own(view.call_id, view.name, view.arguments)

    def _add_call(self, call_id: str, name: str, arguments: str, result: Output | None = None) -> None:
        if (turn := self._turn).has_results:
            self.flush()
            turn = self._turn
        if name not in self._toolbox.tools:
            name = legal_name(name)
        if result is None or self.is_input:
            results = self._results.found.get(call_id)
            turn.has_open_calls = turn.has_open_calls or (self.is_input and not results)
            if result is None:
                result = results.popleft() if results else self._placeholders.get(call_id, NO_RESULT)
        turn.outputs.append(result)
        turn.call_ids.add(call_id)
        turn.calls.append(ChatCall(id=call_id, function=ChatFunction(name=name, arguments=as_object(arguments))))

    def _assistant(self, turn: _Turn) -> ChatMessage:
        text = "\n".join(filter(None, turn.texts)) if turn.texts else ""
        calls = turn.calls
        message = ChatMessage(role="assistant", content=text or (None if calls else ""), tool_calls=calls or UNSET)
        if not turn.reasoning:
            return message
        reasoning, field = "".join(turn.reasoning), self._capabilities.reasoning_field
        return message if field is None or not reasoning else replace(message, **{field: reasoning})

    _ADDERS: ClassVar[Mapping[type, Callable[[Transcript, Any], None]]] = {
        Message: _add_message,
        Reasoning: _add_reasoning,
        FunctionCall: _add_function_call,
        CustomToolCall: _add_custom_call,
        McpCall: _add_server_call,
        McpApprovalRequest: _add_request,
        FunctionCallOutput: _add_result,
        CustomToolCallOutput: _add_result,
        OpaqueItem: _add_foreign,
    }
    """Other items, such as lists of tools and decisions about calls, come to no message."""


def _reasoning_of(item: Reasoning) -> str:
    """Return the raw text, or else the summary, which holds the same text if the client asked for one."""
    raw = "" if item.content is UNSET else "".join(part.text for part in item.content)
    return raw or "".join(part.text for part in item.summary)


# ---- results ----


class CallResults(msgspec.Struct, frozen=True):
    """The results of all calls, wherever they stand."""

    found: Mapping[str, deque[Output]]
    """By call id. Ids may repeat in a client's history: then the order counts."""
    late: frozenset[str] = frozenset()
    """The calls that were decided about after the model had continued without them: they are shown again where they
    were run.
    """
    shown: frozenset[str] = frozenset()
    """The calls that were to be approved and whose runs are shown under other ids."""

    def is_late(self, item: McpCall) -> bool:
        """Whether the item shows the run of a late call."""
        return bool(self.late) and item.approval_request_id is not UNSET and call_id_of(item) in self.late


def results_of(stretches: Sequence[Sequence[InputItem]], placeholders: Mapping[str, str]) -> CallResults:
    found: dict[str, deque[Output]] = defaultdict(deque)
    requests: list[McpApprovalRequest] = []
    for stretch in stretches:
        for item in stretch:
            if isinstance(item, McpApprovalRequest):
                requests.append(item)
            elif (result := result_of(item)) is not None and (call_id := call_id_of(item)) is not None:
                found[call_id].append(result)
    return _with_decisions(found, requests, stretches, placeholders) if requests else CallResults(found)


def _with_decisions(
    found: dict[str, deque[Output]],
    requests: Sequence[McpApprovalRequest],
    stretches: Sequence[Sequence[InputItem]],
    placeholders: Mapping[str, str],
) -> CallResults:
    late = frozenset(call_id for call_id in _decided_late(stretches) if found.get(call_id))
    for call_id in late:
        found[call_id].appendleft(NO_APPROVAL)
    given = decisions_in([item for stretch in stretches for item in stretch])
    shown = frozenset(_unnamed_runs(requests, stretches, found, given))
    for call_id, reason in _unrun_results(requests, given, placeholders):
        if not found[call_id]:
            found[call_id].append(reason)
    return CallResults(found, late, shown)


def _decided_late(stretches: Iterable[Sequence[InputItem]]) -> Iterator[str]:
    """Return the ids of calls that were decided about in a later turn of the model. A decision that was made elsewhere
    shows only by the run of its call.
    """
    turns = TurnCounter()
    asked: dict[str, int] = {}
    for stretch in stretches:
        turns.end_turn()
        for item in stretch:
            turns.add(item)
            if isinstance(item, McpApprovalRequest):
                asked.setdefault(item.id, turns.number)
            elif (meant := approval_request_of(item)) is not None and asked.pop(meant, turns.number) < turns.number:
                yield requested_call(meant)


def _unnamed_runs(
    requests: Iterable[McpApprovalRequest],
    stretches: Iterable[Sequence[InputItem]],
    found: Mapping[str, deque[Output]],
    given: Mapping[str, McpApprovalResponse],
) -> Iterator[str]:
    """Return the ids of calls whose runs do not name the request for approval: some clients leave it out."""
    runs = [item for stretch in stretches for item in stretch if isinstance(item, McpCall)]
    runs = [item for item in runs if item.approval_request_id is UNSET and not is_bare(item)]
    for request in requests if runs else ():
        call_id, decision = requested_call(request.id), given.get(request.id)
        if decision is None or not decision.approve or found.get(call_id):
            continue
        if (run := next((each for each in runs if is_same(request, each)), None)) is not None:
            runs.remove(run)
            yield call_id


def _unrun_results(
    requests: Iterable[McpApprovalRequest], given: Mapping[str, McpApprovalResponse], placeholders: Mapping[str, str]
) -> Iterator[tuple[str, str]]:
    """Return what the model reads of the calls that were to be approved and were not run, by their ids."""
    for request in requests:
        call_id, decision = requested_call(request.id), given.get(request.id)
        reason = placeholders.get(call_id) if decision is None else None
        if (reason := reason or unrun_result(decision)) is not None:
            yield call_id, reason


# ---- items that come to no message ----


def log_omitted(stretches: Sequence[Sequence[InputItem]]) -> None:
    """Log the items, and parts of items, of the new input, the last stretch, that come to no message."""
    if not any(isinstance(item, OpaqueItem) or any(_omitted_in(item)) for item in stretches[-1]):
        return
    if types := [*_omitted(stretches)]:
        kinds = dict.fromkeys(types)
        shown = ", ".join(each[:_LONGEST_TYPE] for each in [*kinds][:_MOST_TYPES])
        more = f", and {len(kinds) - _MOST_TYPES} more" if len(kinds) > _MOST_TYPES else ""
        text = "input items that say nothing to the model were left out"
        note(_log, logging.INFO, text, types=f"{shown}{more}", items=len(types))


def _omitted_in(item: InputItem) -> Iterator[str]:
    """Return the types of an item of a known type, or of its parts, that come to no message."""
    match item:
        case FunctionCall(status="incomplete") | CustomToolCall(status="incomplete") | McpCall(status="incomplete"):
            yield _tag_of(item)
        case Message(role="assistant"):
            yield from (_tag_of(part) for part in item.content if isinstance(part, InputImage | InputFile | InputVideo))


def _tag_of(value: msgspec.Struct) -> str:
    return str(value.__struct_config__.tag)


def _omitted(stretches: Sequence[Sequence[InputItem]]) -> Iterator[str]:
    """Foreign calls are shown as far as there are results for them, in order; results if there is a call."""
    items = [item for stretch in stretches for item in stretch]
    results = Counter(call_id for item in items if (call_id := answered_in(item)) is not None)
    called = {call_id for item in items if (call_id := called_in(item)) is not None}
    first_new = len(items) - len(stretches[-1])
    for at, item in enumerate(items):
        call_id = called_in(item)
        is_shown = answered_in(item) in called if call_id is None else results[call_id] > 0
        if call_id is not None:
            results[call_id] -= 1
        if at >= first_new:
            yield from _omitted_in(item)
            is_heard = is_shown or is_additional(item) or (is_trigger(item) and at == len(items) - 1)
            if isinstance(item, OpaqueItem) and not is_heard:
                yield item.type
