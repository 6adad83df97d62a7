"""The grammar of a stream: order, indices, ids, numbers, added/done pairs, one terminal event, and the terminal
payload as the sum of the events.

    checker = StreamChecker()
    for number, event in enumerate(events):
        checker.feed(number, event)
    response = checker.finish()

`check_frames` does the same for the body of a streamed answer as it came over the wire. Both raise `GrammarError` with
a sentence that names the number, the event and the rule.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import singledispatchmethod
from typing import Any

from antwort.api.events import (
    ErrorEvent,
    Event,
    ItemEvent,
    OutputItemAdded,
    OutputItemDone,
    ResponseCompleted,
    ResponseCreated,
    ResponseFailed,
    ResponseIncomplete,
    ResponseInProgress,
    ResponseQueued,
    ResponseRequiresAction,
    RunEvent,
    StreamEvent,
    Terminal,
)
from antwort.api.items import (
    CustomToolCall,
    CustomToolCallOutput,
    FunctionCall,
    FunctionCallOutput,
    McpApprovalRequest,
    McpCall,
    OutputItem,
)
from antwort.api.responses import Response
from antwort.api.status import IllegalTransition, transition
from antwort.api.wire import UNSET, replace
from antwort.testing.base_grammar import ItemGrammar
from antwort.testing.frames import read_frames
from antwort.testing.item_grammar import grammar_of
from antwort.testing.rules import Broken, GrammarError, require, tag_of

__all__ = ["GrammarError", "StreamChecker", "check_frames", "check_stream"]

_STATUSES: dict[type[Terminal], tuple[str, ...]] = {
    ResponseCompleted: ("completed", "requires_action"),
    ResponseIncomplete: ("incomplete", "cancelled"),
    ResponseFailed: ("failed",),
    ResponseRequiresAction: ("requires_action",),
}


class StreamChecker:
    """Follows one stream, event by event.

    `response.in_progress` may come again while a tool works here; `keepalive` allows it at any time, as after a long
    silence. `takeover` allows items that a worker which died left behind as incomplete, whatever
    became of the response afterwards.
    """

    def __init__(self, *, keepalive: bool = False, takeover: bool = False) -> None:
        self._keepalive, self._takeover = keepalive, takeover
        self._next = 0
        self._response: Response | None = None
        self._is_queued = self._has_started = False
        self._items: list[ItemGrammar[Any]] = []
        self._calls: dict[str, int] = {}
        self._answers: dict[str, int] = {}
        self._final: Response | None = None

    def feed(self, number: int, event: RunEvent) -> None:
        try:
            require(self._final is None, "nothing comes after the terminal event")
            require(number == self._next, f"the number should be {self._next}: they start at 0 and go up by one")
            is_first = self._response is None
            require(is_first == isinstance(event, ResponseCreated), "response.created comes first, and only there")
            self._take(event)
        except Broken as broken:
            raise GrammarError(number, tag_of(event), str(broken)) from None
        self._next += 1

    def finish(self) -> Response:
        """The response as the terminal event carried it."""
        if self._final is None:
            raise GrammarError(None, None, f"it ended after {self._next} events without a terminal event")
        return self._final

    @singledispatchmethod
    def _take(self, _event: Event) -> None:
        raise Broken("this is never sent")

    # ---- the life of the response ----

    @_take.register
    def _created(self, event: ResponseCreated) -> None:
        require(event.response.status in ("queued", "in_progress"), f"status cannot be {event.response.status} yet")
        _is_fresh(event.response)
        self._response = event.response

    @_take.register
    def _queued(self, event: ResponseQueued) -> None:
        require(self._so_far.status == "queued" and not self._is_queued, "a response is queued once, before it starts")
        self._is_queued = True
        self._is_unchanged(event.response, "queued")

    @_take.register
    def _in_progress(self, event: ResponseInProgress) -> None:
        may_repeat = self._keepalive or self._is_at_work()
        require(may_repeat or not self._has_started, "response.in_progress comes once")
        self._is_unchanged(event.response, "in_progress")
        self._has_started, self._response = True, event.response

    @_take.register
    def _error(self, _event: ErrorEvent) -> None:
        raise Broken("once there is a response, a failure is response.failed")

    # ---- items ----

    @_take.register
    def _added(self, event: OutputItemAdded) -> None:
        self._is_running()
        index, item = event.output_index, event.item
        require(index == len(self._items), f"the next item has output_index {len(self._items)}, not {index}")
        is_next = not self._items or self._items[-1].is_written  # so were those before the last when it was added
        require(is_next, "an item is added when the one before it is done, or, of an mcp_call, its arguments are")
        require(bool(item.id), "every item has an id")
        require(all(item.id != known.added.id for known in self._items), f"there is an item {item.id} already")
        self._note_call(item, index)
        self._items.append(grammar_of(item))

    @_take.register
    def _inside(self, event: ItemEvent) -> None:
        self._item(event.output_index).feed(event)

    @_take.register
    def _done(self, event: OutputItemDone) -> None:
        self._item(event.output_index).close(event.item)

    def _item(self, index: int) -> ItemGrammar[Any]:
        self._is_running()
        require(0 <= index < len(self._items), f"no item with output_index {index} was added")
        return self._items[index]

    def _note_call(self, item: OutputItem, index: int) -> None:
        if isinstance(item, FunctionCall | CustomToolCall | McpCall):
            if item.call_id is not UNSET:
                _note(item.call_id, index, self._calls, "call")
        elif isinstance(item, FunctionCallOutput | CustomToolCallOutput):
            _note(item.call_id, index, self._answers, "result")
            self._check_answer(item.call_id)

    def _check_answer(self, call_id: str) -> None:
        """Results come in the order of their calls, none before its call is whole."""
        if (at := self._calls.get(call_id)) is None:
            return  # the call stands in an earlier response
        require(self._items[at].done is not None, "a result comes after its call is done")
        later = [known for known in self._answers if self._calls.get(known, -1) > at]
        require(not later, "results come in the order of their calls")

    # ---- the end ----

    @_take.register
    def _end(self, event: Terminal) -> None:
        response = event.response
        self._check_ending(event)
        require(all(item.done for item in self._items), "every item is done before the response ends")
        require(
            response.output == tuple(item.done for item in self._items), "output is not the items as they were done"
        )
        _check_reason(response)
        self._check_incomplete(response)
        _check_open_call(response)
        self._final = response

    def _check_ending(self, event: Terminal) -> None:
        status = event.response.status
        require(status in _STATUSES[type(event)], f"status {status} does not fit this event")
        require(self._has_started or self._so_far.status == "queued", "response.in_progress comes before the end")
        try:
            transition(self._so_far.status, status)
        except IllegalTransition as illegal:
            raise Broken(str(illegal)) from None
        require(_settings(event.response) == _settings(self._so_far), "the response is not the one that was created")

    def _check_incomplete(self, response: Response) -> None:
        """Incomplete items are the last ones that the model said in an incomplete response, unless the run was broken
        off. Results of calls before them, which began while the model was writing, stand behind.
        """
        reason = response.incomplete_details.reason if response.incomplete_details else None
        if self._takeover or response.status in ("failed", "cancelled") or reason == "deadline":
            return
        said = [item for item in response.output if not isinstance(item, FunctionCallOutput)]  # not by the model
        incomplete = [index for index, item in enumerate(said) if item.status == "incomplete"]
        require(not incomplete or response.status == "incomplete", "an incomplete item makes the response incomplete")
        last = range(len(said) - len(incomplete), len(said))
        require(incomplete == list(last), "an incomplete item is the last one")

    # ---- what holds so far ----

    @property
    def _so_far(self) -> Response:
        assert self._response is not None
        return self._response

    def _is_at_work(self) -> bool:
        """Whether a tool may be at work here: there is a call without a result, and nothing else is being written."""
        still_open = [item for item in self._items if item.done is None]
        if still_open:
            return all(isinstance(item.added, McpCall) for item in still_open)
        unanswered = self._calls.keys() - self._answers.keys()
        return any(not isinstance(self._items[self._calls[call]].added, McpCall) for call in unanswered)

    def _is_running(self) -> None:
        require(self._has_started, "items come after response.in_progress")

    def _is_unchanged(self, response: Response, status: str) -> None:
        require(response.status == status, f"status is {response.status} here")
        _is_fresh(response)
        require(_settings(response) == _settings(self._so_far), "the response is not the one that was created")


def _is_fresh(response: Response) -> None:
    require(response.output == (), "a response that runs is sent without output")
    ended = (response.completed_at, response.error, response.incomplete_details, response.usage)
    require(ended == (None, None, None, None), "a response that runs has no outcome yet")


def _settings(response: Response) -> Response:
    """What stays the same from the first event to the last: the id, the time, and all that is echoed."""
    return replace(
        response, status="queued", output=(), usage=None, error=None, incomplete_details=None, completed_at=None
    )


def _note(call_id: str, index: int, known: dict[str, int], word: str) -> None:
    require(bool(call_id), f"a {word} has a call_id")
    require(call_id not in known, f"there is a {word} with call_id {call_id} already")
    known[call_id] = index


def _check_reason(response: Response) -> None:
    has_failed, is_incomplete = response.status == "failed", response.status == "incomplete"
    require((response.error is not None) == has_failed, "there is an error if and only if the response failed")
    has_details = response.incomplete_details is not None
    fits = response.status == "cancelled" or has_details == is_incomplete
    require(fits, "there are incomplete_details if and only if the response is incomplete")


def _check_open_call(response: Response) -> None:
    if response.status != "requires_action":
        return
    answered = {item.call_id for item in response.output if isinstance(item, FunctionCallOutput | CustomToolCallOutput)}
    for item in response.output:
        if isinstance(item, McpApprovalRequest):
            return
        if isinstance(item, FunctionCall | CustomToolCall) and item.call_id not in answered:
            return
    raise Broken("a response that requires action holds a call for the client")


def check_stream(numbered: Iterable[tuple[int, StreamEvent]], *, keepalive: bool = False) -> Response:
    """The response at the end of a whole stream."""
    checker = StreamChecker(keepalive=keepalive)
    for number, event in numbered:
        checker.feed(number, event)
    return checker.finish()


def check_frames(body: str | bytes, *, keepalive: bool = False, strict: bool = False) -> Response:
    """The response at the end of a whole body of server-sent events, the last frame being `[DONE]`; with `strict`, in
    the standard's words.
    """
    return check_stream(read_frames(body, strict=strict), keepalive=keepalive)
