"""Count the turns in which a response got nowhere. Pure.

A turn repeats the one before it when all its calls and their results are the same; their order does not matter. Turns
of nothing but errors count too. Polling is ordinary, so a repeated turn is no failure by itself: the settings say after
how many turns the model is told, and after how many the response ends.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from itertools import takewhile
from typing import NamedTuple

import msgspec

from antwort.api.items import FunctionCall, FunctionCallOutput, McpCall
from antwort.api.wire import encode
from antwort.engine.history.calls import call_id_of, result_of
from antwort.engine.loop.fold import Run
from antwort.tools.base import Output


class AnsweredCall(NamedTuple):
    """A call with its result, in a form in which equal calls are equal."""

    server: str
    name: str
    arguments: bytes
    result: bytes
    is_error: bool


def repeated_turns(run: Run, earlier: Collection[str] = ()) -> int:
    """Return how many turns in a row, up to the last, made the same calls and got the same results; 0 for no repeat."""
    turns = _turns_backwards(run, earlier)
    last = next(turns, [])
    repeats = sum(1 for _ in takewhile(lambda turn: turn == last, turns)) if last else 0
    return repeats + 1 if repeats else 0


def failed_turns(run: Run, earlier: Collection[str] = ()) -> int:
    """Return how many turns in a row, up to the last, brought nothing but errors."""
    turns = _turns_backwards(run, earlier)
    return sum(1 for _ in takewhile(lambda turn: turn and all(call.is_error for call in turn), turns))


def _turns_backwards(run: Run, earlier: Collection[str]) -> Iterator[list[AnsweredCall]]:
    """Yield the answered calls of each turn, the last turn first. Calls of `earlier` responses belong to no turn."""
    results = {item.call_id: item for item in run.output if isinstance(item, FunctionCallOutput)}
    ends = (0, *run.turn_ends)
    for at in range(run.turns, 0, -1):
        turn: list[AnsweredCall] = []
        for item in run.said(ends[at - 1], ends[at]):
            if isinstance(item, McpCall):
                call_id, result, is_error = call_id_of(item), result_of(item), item.error is not None
                server = item.server_label
            elif isinstance(item, FunctionCall) and (found := results.get(item.call_id)) is not None:
                call_id, result, is_error = item.call_id, found.output, found.is_error is True
                server = ""
            else:
                continue
            if result is not None and item.status != "incomplete" and call_id not in earlier:
                turn.append(AnsweredCall(server, item.name, _canonical(item.arguments), _as_bytes(result), is_error))
        yield sorted(turn)


def _as_bytes(result: Output) -> bytes:
    return result.encode(errors="surrogatepass") if isinstance(result, str) else encode(result)


def _canonical(arguments: str) -> bytes:
    """Return the arguments in one form, however they are spaced, ordered and escaped. Invalid JSON stays as it is."""
    try:
        return msgspec.json.encode(_decoder.decode(arguments or "{}"), order="sorted")
    except (ValueError, RecursionError):
        return arguments.encode(errors="surrogatepass")


def _number(text: str) -> int | float:
    value = float(text)
    return int(value) if value.is_integer() else value


_decoder = msgspec.json.Decoder(float_hook=_number)
