"""Whether a response gets nowhere: told by its items alone. Pure.

It does where the model makes the same call again and again and gets the same result, or where turn after turn comes to
nothing but errors. What is new in between shows that it gets on: a test that is run after each change may well fail in
the same way, and a tool that is polled says something else in the end.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Hashable, Sequence
from typing import TypeAlias

import msgspec

from antwort.api.items import FunctionCall, FunctionCallOutput, McpCall, OutputItem
from antwort.api.wire import UNSET, encode
from antwort.engine.draft import Run
from antwort.engine.pairs import call_id_of, result_of
from antwort.tools.base import Output


class Made(msgspec.Struct, frozen=True):
    """A call that was answered. The same `what` is the same call with the same result."""

    name: str
    what: Hashable
    is_error: bool = False


Turns: TypeAlias = Sequence[Sequence[Made]]


class Standstill(msgspec.Struct, frozen=True):
    """It gets nowhere."""

    words: str
    """What the model is told of it."""
    was_told: bool
    """Whether the model was, before the last turn, and went on."""


def standstill(turns: Turns, after: int) -> Standstill | None:
    """Whether the last turn was one too many; `after` so many it is said, and with one more it is over."""
    return _repeated(turns, after) or _failing(turns, after)


def _repeated(turns: Turns, after: int) -> Standstill | None:
    if not turns or sum(map(len, turns)) < after:
        return None
    *before, last = turns[_last_news(turns) :]
    earlier = Counter([made.what for turn in before for made in turn])
    now = Counter([made.what for made in last])
    counts = [earlier[made.what] + now[made.what] for made in last]
    if not counts or (most := max(counts)) < after:
        return None
    was_told = max([earlier[made.what] for made in last]) >= after
    return Standstill(_SAME.format(last[counts.index(most)].name, most), was_told)


def _last_news(turns: Turns) -> int:
    """The last turn that brought something that was not there before."""
    seen: set[Hashable] = set()
    latest = 0
    for at, turn in enumerate(turns):
        said = {made.what for made in turn}
        if not said <= seen:
            latest = at
        seen |= said
    return latest


def _failing(turns: Turns, after: int) -> Standstill | None:
    count = 0
    for turn in reversed(turns):
        if not turn or not all(made.is_error for made in turn):
            break
        count += 1
    return Standstill(_ERRORS.format(count), count > after) if count >= after else None


_SAME = (
    "You have made this same call of {!r} {} times, and its result was the same each time. To make it again brings "
    "nothing new, and the response is ended then: do something else, or answer with what you have."
)
_ERRORS = (
    "The last {} turns have brought nothing but errors. With one more the response is ended: do something else, or "
    "answer with what you have."
)


# ---- reading the items ----


def turns_made(run: Run, others: Container[str] = ()) -> Turns:
    """The answered calls of each turn so far, but for the `others`, which this response was not asked for."""
    output = run.output
    results = _results(output)
    turns: list[list[Made]] = []
    start = 0
    for end in run.turn_ends:
        calls = [call for item in output[start:end] if (call := _call(item)) is not None]
        turns.append([_made(call, results[call[0]]) for call in calls if call[0] in results and call[0] not in others])
        start = end
    return turns


_Call: TypeAlias = tuple[str, str | None, str, str]
"""Its id, its server, its name and its arguments."""


def _call(item: OutputItem) -> _Call | None:
    match item:
        case FunctionCall(status="completed"):
            return item.call_id, None, item.name, item.arguments
        case McpCall() if item.status != "incomplete":
            return call_id_of(item), item.server_label, item.name, item.arguments
        case _:
            return None


def _results(output: Sequence[OutputItem]) -> dict[str, tuple[Output, bool]]:
    found: dict[str, tuple[Output, bool]] = {}
    for item in output:
        if isinstance(item, FunctionCallOutput):
            found[item.call_id] = item.output, item.is_error is True
        elif isinstance(item, McpCall) and (result := result_of(item)) is not None:
            found[call_id_of(item)] = result, item.error is not UNSET
    return found


def _made(call: _Call, result: tuple[Output, bool]) -> Made:
    _, server, name, arguments = call
    output, is_error = result
    said = output if isinstance(output, str) else encode(output)
    return Made(name, (server, name, _value(arguments), said, is_error), is_error)


def _value(arguments: str) -> Hashable:
    """What the arguments say, however it is written."""
    try:
        return _frozen(msgspec.json.decode(arguments or "{}"))
    except (ValueError, RecursionError):
        return arguments


def _frozen(value: object) -> Hashable:
    match value:
        case str():
            return value
        case bool():
            return "yes" if value else "no", bool  # for Python, true is 1
        case dict():
            return frozenset([(key, _frozen(each)) for key, each in value.items()])
        case list():
            return tuple(map(_frozen, value))
        case _:
            assert isinstance(value, Hashable)
            return value
