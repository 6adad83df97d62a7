"""Turns of the model in items that clients have put together: where they begin, and messages between calls and results.

Clients put messages between a call and its results: a user steers while a tool runs, or the last message is sent once
more with the result. Most backends refuse a chat with anything between the two. Pure.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Collection, Mapping, Sequence
from itertools import chain, pairwise

import msgspec

from antwort.api.decoding import Steps
from antwort.api.items import InputItem, Message, OpaqueItem, Reasoning
from antwort.engine.history.calls import CALL_TYPES, ITEMS_PER_STEP, CallView, is_made_here, map_steps
from antwort.engine.history.deduplication import words_of

# ---- where turns begin ----


class TurnCounter:
    """Counts the turns of the model in the items that are added."""

    def __init__(self) -> None:
        self.number = 0
        self._has_input = False
        self._known: set[str] = set()
        """The ids of servers' calls so far: how one of them is run is no turn of the model."""

    def end_turn(self) -> None:
        """Let the next item of the model begin another turn, whatever stands before it."""
        self._has_input = True

    def add(self, item: InputItem) -> bool:
        """Return whether the item begins a turn: the model writes it after something came from the client."""
        if isinstance(item, Message):
            is_input, is_models = item.role != "assistant", True
        elif (view := CallView.of(item)) is None:
            is_foreign_call = isinstance(item, OpaqueItem) and item.type.endswith("_call")
            is_input, is_models = False, is_foreign_call or isinstance(item, Reasoning)
        else:
            is_input = view.part in ("result", "decision")
            is_models = not view.is_mcp_call or view.call_id not in self._known
            if view.owner == "server" and not is_input:
                self._known.add(view.call_id)
        if is_input:
            self._has_input = True
        elif self._has_input and is_models:
            self.number, self._has_input = self.number + 1, False
            return True
        return False


def turn_steps(items: Sequence[InputItem]) -> Steps[list[Sequence[InputItem]]]:
    """Return the items of each turn of the model, with what came from the client behind it, in pieces."""
    starts = yield from _start_steps(items)
    return [items[start:end] for start, end in pairwise([*starts, len(items)])]


def last_turn_steps(items: Sequence[InputItem]) -> Steps[Sequence[InputItem]]:
    """Return the items of the last turn, and what came from the client behind it, in pieces."""
    items = since_words(items)
    starts = yield from _start_steps(items)
    return items[starts[-1] :] if starts else items


def _start_steps(items: Sequence[InputItem]) -> Steps[list[int]]:
    begins = yield from map_steps(TurnCounter().add, items)
    return [place for place, is_first in enumerate(begins) if is_first]


def since_words(items: Sequence[InputItem], ends: int = 1) -> Sequence[InputItem]:
    """Return the items after the last turn, or after so many, that ended in words.

    Calls before it have had their results, even where the client does not send them.
    """
    for i in reversed(range(len(items))):
        item = items[i]
        follows = items[i + 1] if i + 1 < len(items) else None
        is_end = follows is None or (isinstance(follows, Message) and follows.role != "assistant")
        if is_end and isinstance(item, Message) and item.role == "assistant":
            ends -= 1
            if not ends:
                return items[i + 1 :]
    return items


# ---- messages between calls and their results ----


def uninterrupted_steps(
    stretches: Sequence[Sequence[InputItem]], inputs: Collection[int]
) -> Steps[tuple[Sequence[InputItem], ...]]:
    """Return the stretches without messages between the calls of a turn and their results, in pieces.

    A message that equals the last one of its role before the calls is dropped. Another one is moved behind what its
    stretch holds of the turn. `inputs` are the stretches that clients have put together; each of the others is what
    the model wrote in one turn, with the results of the turn before in front.

    A message is between a call and its result only where the model has not spoken since: its words, or a call behind a
    result, begin another turn.
    """
    if CALL_TYPES.isdisjoint(map(type, chain.from_iterable(stretches))):
        return tuple(stretches)
    scan = _InterruptionScan()
    for number, stretch in enumerate(stretches):
        for item in stretch:
            if scan.add(item, number, is_input=number in inputs) % ITEMS_PER_STEP == 0:
                yield
    scan.end_turn()
    if not scan.dropped:
        return tuple(stretches)
    found: list[list[InputItem]] = []
    time = 0
    for stretch in stretches:
        found.append([])
        for time, item in enumerate(stretch, time + 1):  # noqa: B020 - items are timed by their number
            if time not in scan.dropped:
                found[-1].append(item)
            found[-1] += scan.moved.get(time, ())
    return tuple(found)


class _OpenTurn(msgspec.Struct):
    """The calls of one turn, and what follows them until the model speaks again. Items are timed by their number."""

    stretch: int
    """Where its calls stand."""
    before: Mapping[str, Message]
    """The last message of each role before the calls."""
    calls: dict[str, int] = {}
    """When each was made."""
    answered: list[tuple[int, int]] = []
    """When calls were made and answered."""
    left_open: dict[str, int] = {}
    """When servers' calls were made that are run once the client has answered its own."""
    messages: list[tuple[int, int, Message]] = []
    """With their times and stretches."""
    has_results: bool = False
    last: int = 0
    """The time of its last call or result in its stretch."""


class _InterruptionScan:
    """Goes through all items once, and finds the messages to drop and to move."""

    def __init__(self) -> None:
        self.dropped: set[int] = set()
        """The times of messages, including those that are moved."""
        self.moved: dict[int, list[InputItem]] = defaultdict(list)
        """By the time of the item that they come behind."""
        self._turn: _OpenTurn | None = None
        self._last_messages: dict[str, Message] = {}
        """By their roles."""
        self._time = self._stretch = 0

    def add(self, item: InputItem, stretch: int, *, is_input: bool) -> int:
        """Return the number of the item."""
        self._time += 1
        self._stretch = stretch
        if isinstance(item, Message):
            self._add_message(item)
        elif isinstance(item, Reasoning):
            self._add_words()
        elif (view := CallView.of(item)) is None:
            pass
        elif view.is_mcp_call:
            self._add_server_call(view, is_input=is_input)
        elif view.is_open:
            self._add_call(view.call_id)
        elif view.part in ("result", "decision"):
            self._add_result(view.call_id, is_input=is_input)
        return self._time

    def end_turn(self) -> None:
        """Decide about the messages between its calls and their results."""
        turn, self._turn = self._turn, None
        if turn is None or not turn.messages or not turn.answered:
            return
        end = max(until for _, until in turn.answered)
        answered, until = deque(sorted([*turn.answered, *((made, end) for made in turn.left_open.values())])), 0
        for time, stretch, message in turn.messages:
            while answered and answered[0][0] < time:
                until = max(until, answered.popleft()[1])
            if until < time:
                continue
            if _is_equal(message, turn.before.get(message.role)):
                self.dropped.add(time)
            elif message.role != "assistant" and stretch == turn.stretch and time < turn.last:
                self.dropped.add(time)
                self.moved[turn.last].append(message)

    def _accepts_calls(self) -> bool:
        """Whether a call may belong to the open turn."""
        turn = self._turn
        return turn is not None and turn.stretch == self._stretch and not turn.has_results

    def _add_message(self, item: Message) -> None:
        if (turn := self._turn) is not None:
            is_models = item.role == "assistant"
            if is_models and (turn.has_results or not _is_equal(item, turn.before.get("assistant"))):
                self._add_words()
            else:
                turn.messages.append((self._time, self._stretch, item))
        self._last_messages[item.role] = item

    def _add_words(self) -> None:
        """Words of the model after calls belong to the same turn, unless something came from the client in between."""
        if self._turn is not None and (not self._accepts_calls() or self._turn.messages):
            self.end_turn()

    def _add_call(self, call_id: str) -> _OpenTurn:
        # The calls of one of our turns are given out together: behind a message, a call is of the next turn.
        turn = self._turn
        is_next = turn is not None and bool(turn.messages) and is_made_here(call_id)
        if turn is None or is_next or not self._accepts_calls():
            self.end_turn()
            turn = self._turn = _OpenTurn(self._stretch, dict(self._last_messages))
        turn.calls.setdefault(call_id, self._time)
        turn.last = self._time
        return turn

    def _add_server_call(self, view: CallView, *, is_input: bool) -> None:
        turn = self._turn
        if turn is not None and view.call_id in turn.calls:
            if view.result is not None:
                self._add_result(view.call_id, is_input=is_input)
        elif view.result is None:
            if not view.is_cut:
                turn = self._add_call(view.call_id)
                if view.has_our_id:
                    turn.left_open[view.call_id] = self._time
        elif turn is not None:  # a call with its result
            if self._accepts_calls():
                turn.last = self._time
            else:
                self.end_turn()

    def _add_result(self, call_id: str, *, is_input: bool) -> None:
        turn = self._turn
        if turn is None:
            return
        if is_input and call_id in turn.calls:
            turn.left_open.pop(call_id, None)
            turn.answered.append((turn.calls[call_id], self._time))
        turn.has_results = True
        if turn.stretch == self._stretch:
            turn.last = self._time


def _is_equal(message: Message, other: Message | None) -> bool:
    return other is not None and words_of(message.content) == words_of(other.content)
