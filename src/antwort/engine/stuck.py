"""Whether a response gets nowhere: told by its items alone. Pure.

It does where the model makes the same call again and again and gets the same result, or where turn after turn comes to
nothing but errors. What is new in between shows that it gets on: a test that is run after each change may well fail in
the same way, and a tool that is polled says something else in the end.
"""

from __future__ import annotations

from collections.abc import Container, Hashable, Sequence
from typing import TypeAlias

import msgspec

from antwort.api.items import FunctionCall, FunctionCallOutput, McpCall
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
    earlier = [made.what for turn in before for made in turn]
    now = [made.what for made in last]
    counts = [earlier.count(what) + now.count(what) for what in now]
    if not counts or (most := max(counts)) < after:
        return None
    was_told = max(map(earlier.count, now)) >= after
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


def may_stand_still(run: Run, after: int) -> bool:
    """Whether there is anything to look at. Mostly there is not: since the last turn began no error has come, and no
    result that there were so many of.
    """
    output, ends = run.response.output, run.turn_ends
    said = [item.output for item in output if isinstance(item, _ANSWERED)]
    for item in output[ends[-2] :] if len(ends) > 1 else output:
        if not isinstance(item, _ANSWERED):
            continue
        is_error = item.error is not UNSET if isinstance(item, McpCall) else item.is_error is True
        if is_error or said.count(item.output) >= after:
            return True
    return False


_ANSWERED = (McpCall, FunctionCallOutput)
"""Of a server's call, what its result says in parts is named in its output as well."""


def turns_made(run: Run, others: Container[str] = ()) -> Turns:
    """The answered calls of each turn so far, but for the `others`, which this response was not asked for."""
    output = run.response.output
    results: dict[str, tuple[Output | None, bool]] = {
        item.call_id: (item.output, item.is_error is True) for item in output if isinstance(item, FunctionCallOutput)
    }
    values: dict[str, Hashable] = {}
    turns: list[list[Made]] = []
    start = 0
    for end in run.turn_ends:
        turn: list[Made] = []
        for item in output[start:end]:
            if isinstance(item, McpCall):
                is_whole, call_id, server = item.status != "incomplete", call_id_of(item), item.server_label
                said, is_error = result_of(item), item.error is not UNSET
            elif isinstance(item, FunctionCall):
                is_whole, call_id, server = item.status == "completed", item.call_id, None
                said, is_error = results.get(call_id, (None, False))
            else:
                continue
            if is_whole and said is not None and call_id not in others:
                text = said if isinstance(said, str) else encode(said)
                what = server, item.name, _value(item.arguments, values), text, is_error
                turn.append(Made(item.name, what, is_error))
        turns.append(turn)
        start = end
    return turns


def _value(arguments: str, known: dict[str, Hashable]) -> Hashable:
    """What the arguments say, however it is written; `known` is what was read already."""
    if arguments not in known:
        try:
            known[arguments] = _frozen(msgspec.json.decode(arguments or "{}"))
        except (ValueError, RecursionError):
            known[arguments] = arguments
    return known[arguments]


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
