"""Which of the latest turns a compaction keeps word for word. Pure.

What is kept never begins with a result, and no call is parted from its result.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import TypeAlias

import msgspec

from antwort.api.items import (
    CustomToolCallOutput,
    FunctionCallOutput,
    InputItem,
    McpApprovalRequest,
    McpApprovalResponse,
    McpCall,
    Message,
    OpaqueItem,
    Reasoning,
)
from antwort.api.wire import UNSET, encode, replace
from antwort.engine.history.calls import answered_in, called_in, result_of
from antwort.engine.history.turns import last_turn, since_words
from antwort.tools.base import Output

Measure: TypeAlias = Callable[[InputItem], int]
"""How much room an item takes, in the unit of the budget."""

_ENDS = 2
"""A client that lets the conversation go on beside a call may answer it then, or next; later it has given it up."""


class Divided(msgspec.Struct, frozen=True):
    """A conversation, parted for a compaction."""

    summed: tuple[InputItem, ...]
    """What the summary is of."""
    recent: tuple[InputItem, ...]
    """What stays as it is."""


def divide(items: Sequence[InputItem], budget: int, measure: Measure) -> Divided:
    """Keep as many of the latest turns as fit the budget, and at least what the model has not answered yet.

    What a client may still answer is kept, and so is what the user asked for at the time when the
    latest turns begin, if it fits. Of a conversation that fits whole, the last exchange is kept: who asks for a summary
    wants one. Of a single one, nothing is.
    """
    start = _start(items, budget, measure)
    before, tail = items[:start], items[start:]
    room = budget - sum(map(measure, tail))
    asked = _last_request(before) if tail and not any(_is_request(item) for item in tail) else None
    wanted = {id(item) for item in _open_calls(items, before)}
    if asked is not None and measure(asked) <= max(room, budget // 2):
        wanted.add(id(asked))
    head = [item for item in before if id(item) in wanted]
    return Divided(() if len(head) == len(before) else tuple(before), (*head, *tail))


def _start(items: Sequence[InputItem], budget: int, measure: Measure) -> int:
    """Where the tail begins that is kept: with words of the user, where there are any among what fits."""
    starts = places(items)
    due = _pending(items, starts)
    fitting = [*_fitting(items, starts, budget, measure)]
    exchanges = [place for place in fitting if _is_request(items[place])]
    start = min(due, min(exchanges or fitting, default=len(items)))
    if start > 0 or due == 0:
        return start
    return min(due, next((place for place in exchanges if place > 0), len(items)))


def _fitting(items: Sequence[InputItem], starts: Sequence[int], budget: int, measure: Measure) -> Iterator[int]:
    """The places from which on all fits, the last first."""
    size, first = 0, len(items)
    for place in reversed(starts):
        size += sum(map(measure, items[place:first]))
        first = place
        if size > budget:
            return
        yield place


def places(items: Sequence[InputItem]) -> list[int]:
    """Where a tail may begin, in order."""
    opened: Counter[str] = Counter()
    results = Counter(call_id for item in items if (call_id := answered_in(item)) is not None)
    found: list[int] = []
    waiting = 0
    for place, item in enumerate(items):
        follows_thought = place > 0 and isinstance(items[place - 1], Reasoning)
        is_answer = answered_in(item) is not None or isinstance(item, McpApprovalResponse)
        if not waiting and not is_answer and not follows_thought:
            found.append(place)
        waiting += _count(item, opened, results)
    return found


def _count(item: InputItem, opened: Counter[str], results: Counter[str]) -> int:
    """Keep the books of the calls whose results are still to come, and say how many more they are now."""
    more = 0
    if (call_id := answered_in(item)) is not None:
        results[call_id] -= 1
        more = -(opened[call_id] > 0)
    elif (call_id := called_in(item)) is not None:
        more = int(results[call_id] > opened[call_id])
    if call_id is not None:
        opened[call_id] += more
    return more


def _pending(items: Sequence[InputItem], starts: Sequence[int]) -> int:
    """Where what the model has not answered yet begins: the last words of the user, or the last calls."""
    if not items or (isinstance(items[-1], Message) and items[-1].role == "assistant"):
        return len(items)
    start = len(items)
    while start and _is_request(items[start - 1]):
        start -= 1
    latest = start if start < len(items) else start - 1
    return max((place for place in starts if place <= latest), default=0)


def _is_request(item: InputItem) -> bool:
    return isinstance(item, Message) and item.role == "user"


def _last_request(items: Sequence[InputItem]) -> InputItem | None:
    return next((item for item in reversed(items) if _is_request(item)), None)


def _open_calls(items: Sequence[InputItem], before: Sequence[InputItem]) -> list[InputItem]:
    """The calls that have no result: it may come yet, but not any more where the model has ended in words so often
    since. Of the servers' calls, those of the last turn, which are run when the client has answered its own: what is
    older, and shows no result, had one that was left away.
    """
    late, latest = {id(item) for item in since_words(items, _ENDS)}, {id(item) for item in last_turn(items)}
    results = Counter(call_id for item in items if (call_id := answered_in(item)) is not None)
    found: list[InputItem] = []
    for item in before:
        call_id = called_in(item)
        if call_id is None:
            continue
        results[call_id] -= 1
        if results[call_id] < 0 and id(item) in (latest if isinstance(item, McpCall) else late):
            found.append(item)
    requests = {item.id for item in found if isinstance(item, McpApprovalRequest)}
    found += [item for item in before if isinstance(item, McpApprovalResponse) and item.approval_request_id in requests]
    return found


# ---- how large an item is ----

_ONE_PICTURE = 4096
"""As many bytes of text as a picture or a file counts for: its size says little of its tokens."""


def item_size(item: InputItem) -> int:
    """In bytes, of what the model reads; of what is no text, so much at most."""
    match item:
        case Message():
            return sum(map(_part_size, item.content))
        case FunctionCallOutput() | CustomToolCallOutput() if not isinstance(item.output, str):
            return sum(map(_part_size, item.output))
        case McpCall() if (result := result_of(item)) is not None:
            asked = replace(item, output=None, error=None, content=UNSET)
            return len(encode(asked)) + _result_size(result)
        case OpaqueItem() if (answer := result_of(item)) is not None:
            return _result_size(answer)
    return len(encode(item))


def _result_size(result: Output) -> int:
    return len(result.encode()) if isinstance(result, str) else sum(map(_part_size, result))


def _part_size(part: msgspec.Struct) -> int:
    text = getattr(part, "text", None)
    return len(text.encode()) if isinstance(text, str) else min(len(encode(part)), _ONE_PICTURE)
