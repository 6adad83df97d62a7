"""Keep messages out from between a call and its results. Pure.

Clients put messages there: a user steers while a tool runs, or the last message is sent once more with the result. Most
backends refuse a chat in which anything stands between a call and its results.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, ClassVar

from antwort.api.items import (
    CustomToolCall,
    CustomToolCallOutput,
    FunctionCall,
    FunctionCallOutput,
    InputItem,
    McpApprovalRequest,
    McpApprovalResponse,
    McpCall,
    Message,
    OpaqueItem,
    Reasoning,
)
from antwort.engine.history.calls import (
    answered_in,
    call_id_of,
    called_in,
    is_bare,
    is_made_here,
    is_ours,
    requested_call,
)
from antwort.engine.history.deduplication import words_of

Place = tuple[int, int]
"""The number of a stretch, and a place in it."""


def in_order(stretches: Sequence[Sequence[InputItem]], inputs: Collection[int]) -> tuple[Sequence[InputItem], ...]:
    """Return the stretches without messages between the calls of a turn and their results.

    A message that equals the last one of its role before the calls is dropped. Another one is moved behind what its
    stretch holds of the turn. `inputs` are the stretches that clients have put together; in the others, each is what
    the model said in one turn, with the results of the turn before in front.

    A message is between a call and its result only where the model has not spoken since: its words, or a call behind a
    result, begin another turn.
    """
    if not any(_CALLS.intersection(map(type, stretch)) for stretch in stretches):
        return tuple(stretches)
    walk = _Walk()
    for number, stretch in enumerate(stretches):
        walk.begin(number, is_input=number in inputs)
        for place, item in enumerate(stretch):
            walk.add(place, item)
    walk.end_turn()
    if not walk.dropped and not walk.moved:
        return tuple(stretches)
    return tuple(_rebuilt(number, stretch, walk) for number, stretch in enumerate(stretches))


_CALLS = frozenset({FunctionCall, CustomToolCall, McpCall, McpApprovalRequest, OpaqueItem})


def _is_equal(message: Message, other: Message | None) -> bool:
    return other is not None and words_of(message.content) == words_of(other.content)


def _rebuilt(number: int, stretch: Sequence[InputItem], walk: _Walk) -> Sequence[InputItem]:
    found: list[InputItem] = []
    for place, item in enumerate(stretch):
        if (number, place) not in walk.dropped:
            found.append(item)
        found += walk.moved.get((number, place), ())
    return found


class _Turn:
    """The calls of one turn, and what follows them until the model speaks again."""

    def __init__(self, stretch: int, before: Mapping[str, Message]) -> None:
        self.stretch = stretch
        """Where its calls stand."""
        self.before = before
        """The last message of each role before the calls."""
        self.calls: dict[str, int] = {}
        """When each was made, as the walk counts."""
        self.answered: list[tuple[int, int]] = []
        """When calls were made and answered."""
        self.left_open: dict[str, int] = {}
        """When servers' calls were made that are run once the client has answered its own."""
        self.messages: list[tuple[int, Place, Message]] = []
        self.has_results = False
        self.last = 0
        """The place of its last call or result in that stretch."""


class _Walk:
    """Goes through all items once."""

    def __init__(self) -> None:
        self.dropped: set[Place] = set()
        """Also those that are moved."""
        self.moved: dict[Place, list[InputItem]] = defaultdict(list)
        """By the place that they come behind."""
        self._turn: _Turn | None = None
        self._last: dict[str, Message] = {}
        """The last message of each role."""
        self._time = 0
        self._stretch = 0
        self._place = 0
        self._is_input = False

    def begin(self, stretch: int, *, is_input: bool) -> None:
        self._stretch, self._is_input = stretch, is_input

    def add(self, place: int, item: InputItem) -> None:
        self._time += 1
        self._place = place
        if (add := self._HOW.get(type(item))) is not None:
            add(self, item)

    def end_turn(self) -> None:
        """Say what becomes of the messages between its calls and their results."""
        turn, self._turn = self._turn, None
        if turn is None or not turn.messages or not turn.answered:
            return
        end = max(until for _, until in turn.answered)
        answered, until = deque(sorted([*turn.answered, *((made, end) for made in turn.left_open.values())])), 0
        for time, place, message in turn.messages:
            while answered and answered[0][0] < time:
                until = max(until, answered.popleft()[1])
            if until < time:
                continue
            stretch, at = place
            if _is_equal(message, turn.before.get(message.role)):
                self.dropped.add(place)
            elif message.role != "assistant" and stretch == turn.stretch and at < turn.last:
                self.dropped.add(place)
                self.moved[stretch, turn.last].append(message)

    def _goes_on(self) -> bool:
        """Whether a call may be one of the turn."""
        turn = self._turn
        return turn is not None and turn.stretch == self._stretch and not turn.has_results

    def _add_message(self, item: Message) -> None:
        if (turn := self._turn) is not None:
            is_models = item.role == "assistant"
            if is_models and (turn.has_results or not _is_equal(item, turn.before.get("assistant"))):
                self._add_words(item)
            else:
                turn.messages.append((self._time, (self._stretch, self._place), item))
        self._last[item.role] = item

    def _add_words(self, _: Message | Reasoning) -> None:
        """What the model says after calls is of the same turn, unless it was told something in between."""
        if self._turn is not None and (not self._goes_on() or self._turn.messages):
            self.end_turn()

    def _add_call(self, call_id: str) -> None:
        # The calls of one of our turns are given out together: behind a message, a call is of the next turn.
        is_next = self._turn is not None and bool(self._turn.messages) and is_made_here(call_id)
        if is_next or not self._goes_on():
            self.end_turn()
            self._turn = _Turn(self._stretch, dict(self._last))
        assert self._turn is not None
        self._turn.calls.setdefault(call_id, self._time)
        self._turn.last = self._place

    def _add_own(self, item: FunctionCall | CustomToolCall) -> None:
        if item.status != "incomplete":
            self._add_call(item.call_id)

    def _add_request(self, item: McpApprovalRequest) -> None:
        if item.status != "incomplete":
            self._add_call(requested_call(item.id))

    def _add_server_call(self, item: McpCall) -> None:
        call_id = call_id_of(item)
        if self._turn is not None and call_id in self._turn.calls:
            if not is_bare(item):
                self._add_result(call_id)
        elif is_bare(item):
            if item.status != "incomplete":
                self._add_call(call_id)
                if self._turn is not None and is_ours(item):
                    self._turn.left_open[call_id] = self._time
        elif self._turn is not None:  # a call with its result
            if self._goes_on():
                self._turn.last = self._place
            else:
                self.end_turn()

    def _add_result(self, call_id: str) -> None:
        turn = self._turn
        if turn is None:
            return
        if self._is_input and call_id in turn.calls:
            turn.left_open.pop(call_id, None)
            turn.answered.append((turn.calls[call_id], self._time))
        turn.has_results = True
        if turn.stretch == self._stretch:
            turn.last = self._place

    def _add_output(self, item: FunctionCallOutput | CustomToolCallOutput) -> None:
        self._add_result(item.call_id)

    def _add_decision(self, item: McpApprovalResponse) -> None:
        self._add_result(requested_call(item.approval_request_id))

    def _add_foreign(self, item: OpaqueItem) -> None:
        if (call_id := called_in(item)) is not None:
            self._add_call(call_id)
        elif (call_id := answered_in(item)) is not None:
            self._add_result(call_id)

    _HOW: ClassVar[Mapping[type, Callable[[_Walk, Any], None]]] = {
        Message: _add_message,
        Reasoning: _add_words,
        FunctionCall: _add_own,
        CustomToolCall: _add_own,
        McpCall: _add_server_call,
        McpApprovalRequest: _add_request,
        FunctionCallOutput: _add_output,
        CustomToolCallOutput: _add_output,
        McpApprovalResponse: _add_decision,
        OpaqueItem: _add_foreign,
    }
