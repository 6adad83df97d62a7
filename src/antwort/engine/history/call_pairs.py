"""A server's call that is run later shows twice: as it was asked for, and as it was run. Pure.

The two go by one call id and never carry it both: clients take items with the same call id for one, and keep the first.
So the run carries none, and its own id tells; what shows the call as asked for can be told by its id, too, where a
client drops what it does not know.

A call that the client must approve is asked for in another way, and is the same kind of pair: the request goes by the
call's id, and the run names the request.
"""

from __future__ import annotations

import re

import msgspec

from antwort.api.items import InputItem, McpApprovalRequest, McpCall
from antwort.api.json_text import has_long_number, has_more_values
from antwort.api.wire import UNSET, UnsetType
from antwort.ids import new_id
from antwort.tools.base import Output

_CALL = re.compile(r"call_([0-9a-f]{32})")
_SHOWN = re.compile(r"mcp_([0-9a-f]{32})(_run)?")
REQUEST_ID = re.compile(r"mcpr_([0-9a-f]{32})")


def shown_id(call_id: str) -> str:
    """The id of the item that shows a call as it was asked for."""
    return call_id.replace("call_", "mcp_", 1)


def run_ids(call_id: str, *, is_approved: bool = False) -> tuple[str, str | UnsetType]:
    """The id of the item that shows the run of an earlier call, and the call id that it carries: none, but for calls
    whose ids were not made here. One that was to be approved names its request instead.
    """
    made = _CALL.fullmatch(call_id)
    if made is not None:
        return f"mcp_{made[1]}_run", UNSET
    return new_id("mcp"), UNSET if is_approved else call_id


def run_of(item_id: str) -> str | None:
    """The id under which the run of a call shows, by the id of any item that shows the call."""
    shown = _SHOWN.fullmatch(item_id) or REQUEST_ID.fullmatch(item_id)
    return None if shown is None else f"mcp_{shown[1]}_run"


def call_id_of(item: McpCall) -> str:
    """The id of the call, by which what shows it and what answers it are tied together."""
    if item.approval_request_id is not UNSET:  # whatever call id a client sends with it
        return requested_call(item.approval_request_id)
    if item.call_id is not UNSET:
        return item.call_id
    shown = _SHOWN.fullmatch(item.id)
    return item.id if shown is None else f"call_{shown[1]}"


def call_shown_by(item_id: str) -> str | None:
    """Return the id of the call that an item of this id shows, where the id was made here."""
    shown = _SHOWN.fullmatch(item_id) or REQUEST_ID.fullmatch(item_id)
    return None if shown is None else f"call_{shown[1]}"


def request_id(call_id: str) -> str:
    """The id of the item that asks for the approval of a call."""
    return call_id.replace("call_", "mcpr_", 1)


def requested_call(approval_request_id: str) -> str:
    """The id of the call that is to be approved; where the request was not made here, the request's own."""
    asked = REQUEST_ID.fullmatch(approval_request_id)
    return approval_request_id if asked is None else f"call_{asked[1]}"


def late_id(call_id: str) -> str:
    """The id by which the model hears of a call again. Some backends take no longer ones than ours."""
    return call_id.replace("call_", "late_", 1)


def is_request_id(item_id: str) -> bool:
    """Whether it may be the id of a request for an approval that was made here."""
    return REQUEST_ID.fullmatch(item_id) is not None


def as_call(request: McpApprovalRequest) -> McpCall:
    """What is to be approved, as a call that was asked for and not run."""
    call_id = requested_call(request.id)
    return McpCall(
        id=shown_id(call_id),
        server_label=request.server_label,
        name=request.name,
        arguments=request.arguments,
        approval_request_id=request.id,
        call_id=call_id,
    )


def asked_in(item: InputItem) -> McpCall | None:
    """The finished call that the item shows as asked for, and of which it does not say what it came to."""
    if isinstance(item, McpApprovalRequest):
        return as_call(item) if item.status == "completed" else None
    return item if isinstance(item, McpCall) and item.status == "completed" and is_bare(item) else None


def is_bare(item: McpCall) -> bool:
    """Whether it does not say what the call came to."""
    return item.output is None and item.error is None and item.content is UNSET


def result_of(item: McpCall) -> Output | None:
    """What the call came to, as the model reads it."""
    if item.content is not UNSET:
        return item.content
    return item.error_text if item.output is None else item.output


def is_run(item: InputItem) -> bool:
    """Whether the item shows how a call was run that another one shows as asked for."""
    if not isinstance(item, McpCall) or item.call_id is not UNSET:
        return False
    return item.approval_request_id is not UNSET or run_of(item.id) == item.id


def is_ours(item: McpCall) -> bool:
    """Whether it carries the id of a call that was made here."""
    return item.call_id is not UNSET and is_made_here(item.call_id)


def is_made_here(call_id: str) -> bool:
    """Whether the id is one of ours, which nobody has given to two calls."""
    return _CALL.fullmatch(call_id) is not None


def is_same(item: InputItem, record: InputItem) -> bool:
    """Whether both ask the same of the same tool. Clients read the arguments and write them anew."""
    asking = McpCall | McpApprovalRequest
    if not isinstance(item, asking) or not isinstance(record, asking):
        return False
    if (item.server_label, item.name) != (record.server_label, record.name):
        return False
    return is_same_value(item.arguments, record.arguments)


def is_heavy(arguments: str) -> bool:
    """Whether they hold more values, or longer numbers, than it is worth to read them for a comparison."""
    if len(arguments) <= _MOST_VALUES:
        return False
    raw = arguments.encode()
    return has_more_values(raw, _MOST_VALUES) or has_long_number(raw)


_MOST_VALUES = 100_000


def is_same_value(arguments: str, others: str) -> bool:
    """Whether both say the same, however it is written."""
    return arguments == others or _value(arguments) == _value(others)


def _value(arguments: str) -> object:
    if is_heavy(arguments):
        return arguments
    try:
        return msgspec.json.decode(arguments or "{}")
    except (ValueError, RecursionError):
        return arguments
