"""Calls that whoever made the run before has begun, and whose end nobody saw: by the record alone. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from antwort.api.items import CustomToolCall, FunctionCall, InputItem, McpCall
from antwort.engine.history.call_pairs import call_id_of
from antwort.engine.loop.fold import Run
from antwort.engine.plan import OpenCall


def lost_before(run: Run, earlier: Iterable[InputItem] = ()) -> list[OpenCall]:
    """Those of them that an earlier response has asked for, and of which the output shows nothing yet: functions. They
    are there whether somebody here would run them or not; `earlier` is where they may be found.
    """
    missing = run.lost.difference(_call_id(item) for item in run.output)
    if not missing:
        return []
    asked = {item.call_id: item for item in earlier if isinstance(item, FunctionCall)}
    return [_open(asked.get(call_id) or _unknown(call_id)) for call_id in sorted(missing)]


def _call_id(item: InputItem) -> str | None:
    if isinstance(item, McpCall):
        return call_id_of(item)
    return item.call_id if isinstance(item, FunctionCall | CustomToolCall) else None


def _open(item: FunctionCall) -> OpenCall:
    return OpenCall(item.call_id, item.name, item.arguments, None, item)


def _unknown(call_id: str) -> FunctionCall:
    """What it was, nobody needs to know who says that its end was not seen."""
    return FunctionCall(id=call_id, call_id=call_id, name="", arguments="")
