"""Whether a response gets nowhere: told by its items alone. Pure.

It does where the model makes the same call again and again and gets the same result, or where turn after turn comes to
nothing but errors. What is new in between shows that it gets on: a test that is run after each change may well fail in
the same way, and a tool that is polled says something else in the end.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Sequence
from typing import TypeAlias

import msgspec

from antwort.api.items import FunctionCall, FunctionCallOutput, McpCall, OutputItem
from antwort.api.wire import UNSET, encode
from antwort.engine.draft import Run
from antwort.engine.pairs import call_id_of, result_of


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
        for made in turn:
            if made.what not in seen:
                seen.add(made.what)
                latest = at
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


def turns_made(run: Run, others: Collection[str] = ()) -> Turns:
    """The answered calls of each turn so far, but for the `others`, which this response was not asked for."""
    output, values = run.response.output, _Values()
    results: dict[str, FunctionCallOutput] | None = None
    turns: list[list[Made]] = []
    start = 0
    for end in run.turn_ends:
        turn: list[Made] = []
        for item in output[start:end]:
            if isinstance(item, McpCall):
                made = _made_by_server(item, values, others)
            elif isinstance(item, FunctionCall):
                results = _results_in(output) if results is None else results
                made = _made_here(item, results.get(item.call_id), values, others)
            else:
                continue
            if made is not None:
                turn.append(made)
        turns.append(turn)
        start = end
    return turns


def _made_by_server(item: McpCall, values: _Values, others: Collection[str]) -> Made | None:
    said = result_of(item)
    if said is None or item.status == "incomplete" or (others and call_id_of(item) in others):
        return None
    name, is_error = item.name, item.error is not UNSET
    text = said if isinstance(said, str) else encode(said)
    return Made(name, (item.server_label, name, values[item.arguments], text, is_error), is_error)


def _made_here(
    item: FunctionCall, result: FunctionCallOutput | None, values: _Values, others: Collection[str]
) -> Made | None:
    if result is None or item.status != "completed" or item.call_id in others:
        return None
    name, said, is_error = item.name, result.output, result.is_error is True
    text = said if isinstance(said, str) else encode(said)
    return Made(name, (None, name, values[item.arguments], text, is_error), is_error)


def _results_in(output: Sequence[OutputItem]) -> dict[str, FunctionCallOutput]:
    return {item.call_id: item for item in output if isinstance(item, FunctionCallOutput)}


class _Values(dict[str, Hashable]):
    """What arguments say, however it is written. Each is read once."""

    def __missing__(self, arguments: str) -> Hashable:
        try:
            value = _frozen(msgspec.json.decode(arguments or "{}"))
        except (ValueError, RecursionError):
            value = arguments
        self[arguments] = value
        return value


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
