"""Calls that whoever made the run before has begun, and whose end nobody saw: by the record alone. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from antwort.api.items import FunctionCall, InputItem
from antwort.engine.history.calls import PendingCall, call_id_of, is_call, pending_call
from antwort.engine.loop.fold import Run


def lost_before(run: Run, earlier: Iterable[InputItem] = ()) -> list[PendingCall]:
    """Those of them that an earlier response has asked for, and of which the output shows nothing yet: functions. They
    are there whether somebody here would run them or not; `earlier` is where they may be found.
    """
    missing = run.lost.difference(call_id_of(item) for item in run.output if is_call(item))
    if not missing:
        return []
    asked = {item.call_id: item for item in earlier if isinstance(item, FunctionCall)}
    return [pending_call(asked.get(call_id) or _unknown(call_id)) for call_id in sorted(missing)]


def _unknown(call_id: str) -> FunctionCall:
    """What it was, nobody needs to know who says that its end was not seen."""
    return FunctionCall(id=call_id, call_id=call_id, name="", arguments="")
