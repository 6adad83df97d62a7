"""What items say about calls: which call an item asks for or answers, whose it is, and what it came to. Pure.

Three kinds of items ask for a call: `function_call` and `custom_tool_call` are the client's or a declared function's,
`mcp_call` is a server's, `mcp_approval_request` a server's that the client must approve first. Items of unknown types
count too, where their form shows a call or a result. A call id ties them together: `CallView` finds it for any item.

A server's call that runs later than it was asked for is shown by two items: the first without a result, the second with
it. Clients take items with the same `call_id` for one and drop the second, so the second carries none. Its own id says
which call it is, and so does the first item's, for clients that drop fields they do not know.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from math import isinf
from typing import Any, Final, Literal, TypeAlias, TypeVar, overload

import msgspec

from antwort.api.decoding import Steps, has_long_number, has_more_values
from antwort.api.items import (
    CustomToolCall,
    CustomToolCallOutput,
    FunctionCall,
    FunctionCallOutput,
    InputImage,
    InputItem,
    InputText,
    McpApprovalRequest,
    McpApprovalResponse,
    McpCall,
    Message,
    OpaqueItem,
    Reasoning,
    ResultPart,
    Text,
    ToolError,
)
from antwort.api.wire import UNSET, UnsetType, encode, replace
from antwort.engine.prompt.tool_names import legal_name
from antwort.ids import new_id
from antwort.tools.base import Output

T = TypeVar("T")
R = TypeVar("R")
FunctionKind: TypeAlias = FunctionCall | CustomToolCall
"""Calls whose result is an item of its own."""
Call: TypeAlias = FunctionKind | McpCall
CallItem: TypeAlias = Call | FunctionCallOutput | CustomToolCallOutput | McpApprovalRequest | McpApprovalResponse

Part: TypeAlias = Literal["call", "request", "decision", "run", "result"]
Owner: TypeAlias = Literal["function", "server", "foreign"]

_CALL_ID = re.compile(r"call_([0-9a-f]{32})")
_SHOWN_ID = re.compile(r"mcp_([0-9a-f]{32})(_run)?")
_RUN_ID = re.compile(r"mcp_[0-9a-f]{32}_run")
REQUEST_ID = re.compile(r"mcpr_([0-9a-f]{32})")


class CallView(msgspec.Struct, frozen=True, gc=False):
    """What one item says about one call."""

    item: CallItem | OpaqueItem
    call_id: str
    part: Part
    """`call` and `request` ask for the call, or for its approval first. The others refer to a call that another item
    asks for: `decision` approves or denies it, `run` shows how a server's call was run, `result` answers it."""
    owner: Owner
    """`function`: the client's or a declared function's. `server`: a tool server's. `foreign`: of an unknown type."""

    @overload
    @classmethod
    def of(cls, item: CallItem) -> CallView: ...
    @overload
    @classmethod
    def of(cls, item: InputItem) -> CallView | None: ...
    @classmethod
    def of(cls, item: InputItem) -> CallView | None:
        """Return what the item says about a call; None if it is not about any."""
        match item:
            case Message() | Reasoning():
                return None
            case FunctionCall() | CustomToolCall():
                return cls(item, item.call_id, "call", "function")
            case FunctionCallOutput() | CustomToolCallOutput():
                return cls(item, item.call_id, "result", "function")
            case McpCall():
                is_named = item.approval_request_id is not UNSET
                if not is_named and item.call_id is not UNSET:  # most are: neither id has to be looked into
                    return cls(item, item.call_id, "call", "server")
                is_run = item.call_id is UNSET and (is_named or _RUN_ID.fullmatch(item.id) is not None)
                return cls(item, call_id_of(item), "run" if is_run else "call", "server")
            case McpApprovalRequest():
                return cls(item, requested_call(item.id), "request", "server")
            case McpApprovalResponse():
                return cls(item, requested_call(item.approval_request_id), "decision", "server")
            case OpaqueItem():
                is_result = item.type.endswith(_OUTPUT)
                call_id = item.fields.get("call_id")
                if is_result:
                    call_id = call_id or item.id  # some results name the call in their own id
                if isinstance(call_id, str) and call_id:
                    return cls(item, call_id, "result" if is_result else "call", "foreign")
        return None

    @property
    def is_mcp_call(self) -> bool:
        """Whether the item is a server's call, with or without its result."""
        return self.owner == "server" and (self.part == "call" or self.part == "run")

    @property
    def has_our_id(self) -> bool:
        """Whether the item carries a call id that was made here."""
        call_id = getattr(self.item, "call_id", UNSET)
        return call_id is not UNSET and is_made_here(call_id)

    @property
    def is_cut(self) -> bool:
        """Whether the model was cut off within the call, as far as the item's type is known."""
        return not isinstance(self.item, OpaqueItem) and self.item.status == "incomplete"

    @property
    def is_open(self) -> bool:
        """Whether the item asks for a call whose result can only stand in another item. A function's call that was cut
        off has none, and an `mcp_call` with its result needs none.
        """
        if self.is_mcp_call:
            return self.part == "call" and self.result is None
        return self.part in ("call", "request") and not self.is_cut

    @property
    def is_answer(self) -> bool:
        """Whether the item shows what came of a call that another item asks for."""
        return self.part in ("result", "run")

    @property
    def request_id(self) -> str | None:
        """The id of the request for approval that the item is, decides about, or shows the call of."""
        match self.item:
            case McpApprovalRequest(id=request_id) | McpApprovalResponse(approval_request_id=request_id):
                return request_id
            case McpCall(approval_request_id=request_id) if request_id is not UNSET:
                return request_id
            case _:
                return None

    @property
    def name(self) -> str:
        """The tool's name, where the item is a call or asks for its approval."""
        if isinstance(self.item, OpaqueItem):
            name, kind = self.item.fields.get("name"), self.item.type
            return legal_name(name if isinstance(name, str) and name else kind.removesuffix("_call") or kind)
        return getattr(self.item, "name", "")

    @property
    def arguments(self) -> str:
        """The arguments as JSON text; of a free-form tool its input, of a foreign call all other fields."""
        match self.item:
            case OpaqueItem():
                return _foreign_arguments(self.item)
            case CustomToolCall():
                return self.item.input
            case _:
                return getattr(self.item, "arguments", "")

    @property
    def result(self) -> Output | None:
        """What the call came to, as the model reads it; None if the item does not say."""
        match item := self.item:
            case McpCall():
                if item.content is not UNSET:
                    return item.content
                return item.error_text if item.output is None else item.output
            case FunctionCallOutput() | CustomToolCallOutput():
                return item.output
            case OpaqueItem() if self.part == "result":
                return _foreign_output(item)
            case _:
                return None


CALL_TYPES = frozenset(
    {
        FunctionCall,
        CustomToolCall,
        FunctionCallOutput,
        CustomToolCallOutput,
        McpCall,
        McpApprovalRequest,
        McpApprovalResponse,
        OpaqueItem,
    }
)
"""The types of items that may be about a call."""


ITEMS_PER_STEP = 256
"""Items of a long history that are looked at between two yields: about 1 ms."""


def map_steps(function: Callable[[T], R], items: Sequence[T]) -> Steps[list[R]]:
    """Return what the function makes of each item, in pieces."""
    found: list[R] = []
    for start in range(0, len(items), ITEMS_PER_STEP):
        if start:
            yield
        found += map(function, items[start : start + ITEMS_PER_STEP])
    return found


def calls_in(items: Iterable[InputItem]) -> list[CallView]:
    """Return what the items say about calls, in order."""
    return [view for item in items if type(item) in CALL_TYPES and (view := CallView.of(item)) is not None]


class CallIndex(msgspec.Struct, frozen=True):
    """What the items of a history say about calls, in order, and which of the calls have a result."""

    views: Sequence[CallView] = ()
    answered: frozenset[str] = frozenset()
    """The ids of the calls that have a result, as an item of the standard."""

    @classmethod
    def steps(cls, items: Sequence[InputItem]) -> Steps[CallIndex]:
        """Make the index in pieces."""
        views = [view for view in (yield from map_steps(CallView.of, items)) if view is not None]
        return cls(views, answered_by(views))


class PendingCall(msgspec.Struct, frozen=True):
    """A call that waits for its result. `name` is what the model called; `at` is its place in the output, None in
    history.
    """

    call_id: str
    name: str
    arguments: str
    at: int | None
    item: Call

    @classmethod
    def of(cls, item: Call, name: str | None = None, at: int | None = None) -> PendingCall:
        """Return the call that an item asks for, under the `name` the model knows it by, if that is another one."""
        view = CallView.of(item)
        return cls(view.call_id, item.name if name is None else name, view.arguments, at, item)

    @property
    def server_label(self) -> str | None:
        """The label of its server; None for a function."""
        return getattr(self.item, "server_label", None)

    @property
    def approval_request_id(self) -> str | None:
        """The id of the request for its approval, where the call was to be approved."""
        return CallView.of(self.item).request_id


def lost_calls(
    lost: Collection[str], output: Iterable[InputItem], earlier: Iterable[InputItem] = ()
) -> list[PendingCall]:
    """Return the `lost` calls that an earlier response has asked for: functions that the output shows nothing of.

    `earlier` are the items to find them in. The error that answers them needs their ids alone.
    """
    missing = {*lost}.difference(view.call_id for view in calls_in(output) if view.part in ("call", "run"))
    if not missing:
        return []
    asked = {item.call_id: item for item in earlier if isinstance(item, FunctionCall)}
    unknown = (FunctionCall(id=call_id, call_id=call_id, name="", arguments="") for call_id in sorted(missing))
    return [PendingCall.of(asked.get(each.call_id, each)) for each in unknown]


# ---- one question about an item ----


def call_id_of(item: Call) -> str:
    """Return the id of the call that an item asks for or shows."""
    if not isinstance(item, McpCall):
        return item.call_id
    if item.approval_request_id is not UNSET:  # whatever call id a client sends with it
        return requested_call(item.approval_request_id)
    return (call_shown_by(item.id) or item.id) if item.call_id is UNSET else item.call_id


def result_of(item: InputItem) -> Output | None:
    """Return what the call of an item came to, as the model reads it; None if the item does not say."""
    return None if (view := CallView.of(item)) is None else view.result


def with_changed_result(item: InputItem, change: Callable[[str], str]) -> InputItem:
    """Return the item with each text of its result changed."""

    def changed(result: Any) -> Any:
        if isinstance(result, str):
            return change(result)
        if isinstance(result, ToolError):
            return replace(result, content=changed(result.content))
        if result is None or result is UNSET:
            return result
        return tuple(replace(part, text=change(part.text)) if hasattr(part, "text") else part for part in result)

    match item:
        case FunctionCallOutput() | CustomToolCallOutput():
            return replace(item, output=changed(item.output))
        case McpCall():
            output, error, content = map(changed, (item.output, item.error, item.content))
            return replace(item, output=output, error=error, content=content)
        case OpaqueItem() if isinstance(result := result_of(item), str):
            fields = {key: value for key, value in item.fields.items() if key in _BOOKKEEPING}
            return OpaqueItem(item.type, item.id, {**fields, "output": change(result)})
        case _:
            return item


def results_in(items: Iterable[InputItem]) -> frozenset[str]:
    """Return the ids of the calls that have a result among `items`, as an item of the standard."""
    return answered_by(calls_in(items))


def answered_by(views: Iterable[CallView]) -> frozenset[str]:
    """Return the ids of the calls that have a result among `views`, as an item of the standard."""
    return frozenset(view.call_id for view in views if view.owner != "foreign" and view.result is not None)


# ---- calls of servers ----


def as_call(request: McpApprovalRequest) -> McpCall:
    """Return the call that is to be approved, as a server's call without a result."""
    call_id = requested_call(request.id)
    return McpCall(
        id=shown_id(call_id),
        server_label=request.server_label,
        name=request.name,
        arguments=request.arguments,
        approval_request_id=request.id,
        call_id=call_id,
    )


def unanswered_server_call(item: InputItem) -> McpCall | None:
    """Return the server's call that an item asks for, if it is finished and the item has no result of it."""
    match item:
        case McpApprovalRequest(status="completed"):
            return as_call(item)
        case McpCall(status="completed") if result_of(item) is None:
            return item
        case _:
            return None


# ---- ids ----


def is_made_here(call_id: str) -> bool:
    """Return whether a call id is one of ours, which is never given to two calls."""
    return _CALL_ID.fullmatch(call_id) is not None


def is_request_id(item_id: str) -> bool:
    """Return whether an id has the form of our approval requests."""
    return REQUEST_ID.fullmatch(item_id) is not None


def shown_id(call_id: str) -> str:
    """Return the id of the `mcp_call` item that asks for a call."""
    return call_id.replace("call_", "mcp_", 1)


def request_id(call_id: str) -> str:
    """Return the id of the item that asks for the approval of a call."""
    return call_id.replace("call_", "mcpr_", 1)


def late_id(call_id: str) -> str:
    """Return the id under which the model is shown a call a second time. Some backends take no longer ids than ours."""
    return call_id.replace("call_", "late_", 1)


def run_ids(call_id: str, *, is_approved: bool = False) -> tuple[str, str | UnsetType]:
    """Return the id of the item that shows the run of an earlier call, and the call id that it carries.

    It carries none, unless the call's id was not made here. One that was to be approved names its request instead.
    """
    made = _CALL_ID.fullmatch(call_id)
    if made is not None:
        return f"mcp_{made[1]}_run", UNSET
    return new_id("mcp"), UNSET if is_approved else call_id


def run_id_of(item_id: str) -> str | None:
    """Return the id of the item that shows the run of a call, from the id of any item that shows the call."""
    shown = _SHOWN_ID.fullmatch(item_id) or REQUEST_ID.fullmatch(item_id)
    return None if shown is None else f"mcp_{shown[1]}_run"


def call_shown_by(item_id: str) -> str | None:
    """Return the id of the call that an item of this id shows, if the id was made here."""
    shown = _SHOWN_ID.fullmatch(item_id) or REQUEST_ID.fullmatch(item_id)
    return None if shown is None else f"call_{shown[1]}"


def requested_call(approval_request_id: str) -> str:
    """Return the id of the call that is to be approved; if the request was not made here, the request's own id."""
    asked = REQUEST_ID.fullmatch(approval_request_id)
    return approval_request_id if asked is None else f"call_{asked[1]}"


# ---- comparison ----


def is_same(item: InputItem, other: InputItem) -> bool:
    """Return whether both are calls of the same server's tool with the same arguments, however these are written."""
    asking = (McpCall, McpApprovalRequest)
    if not (isinstance(item, asking) and isinstance(other, asking)):
        return False
    if (item.server_label, item.name) != (other.server_label, other.name):
        return False
    return is_same_value(item.arguments, other.arguments)


def is_same_value(arguments: str, others: str) -> bool:
    """Return whether two JSON texts have the same value."""
    return arguments == others or _value(arguments) == _value(others)


def value_key(arguments: str) -> bytes:
    """Return the value of a JSON text in one form, however it is spaced, ordered and escaped; 1.0 is 1. Invalid JSON
    stays as it is.
    """
    if (value := _value(arguments)) is not arguments:
        with suppress(RecursionError):
            return msgspec.json.encode(value, order="sorted")
    return arguments.encode(errors="surrogatepass")


def _value(arguments: str) -> object:
    if is_heavy(arguments):
        return arguments
    try:
        return _decode_number(arguments or "{}")
    except (ValueError, RecursionError):
        return arguments


def _number(text: str) -> int | float:
    value = float(text)
    if isinf(value):
        raise ValueError("a number out of range")
    return int(value) if value.is_integer() else value


_decode_number: Final = msgspec.json.Decoder(float_hook=_number).decode


def canonical_arguments(arguments: str) -> str:
    """Return the arguments in one form: keys sorted, the last of two with one name."""
    if is_heavy(arguments):
        return arguments
    try:
        return msgspec.json.encode(msgspec.json.decode(arguments or "{}"), order="sorted").decode()
    except (ValueError, RecursionError):
        return arguments


def is_heavy(arguments: str) -> bool:
    """Return whether arguments hold too many values, or too long numbers, to be decoded for a comparison."""
    if len(arguments) <= _MAX_VALUES:
        return False
    raw = arguments.encode()
    return has_more_values(raw, _MAX_VALUES) or has_long_number(raw)


_MAX_VALUES = 100_000


# ---- items of unknown types ----

_OUTPUT: Final = "_output"
_BOOKKEEPING = frozenset({"type", "id", "call_id", "status", "name", "namespace", "caller", "fingerprint", "execution"})
_RESULT_FIELDS = ("output", "result", "tools")
_TEXT_TYPES = ("input_text", "output_text", "text")


def _content(item: OpaqueItem) -> Mapping[str, Any]:
    return {key: value for key, value in item.fields.items() if key not in _BOOKKEEPING and value is not None}


def _foreign_arguments(item: OpaqueItem) -> str:
    content = _content(item)
    arguments = content.get("arguments")
    if [*content] != ["arguments"] or not isinstance(arguments, str | dict):
        arguments = content
    return arguments if isinstance(arguments, str) else encode(arguments).decode()


def _foreign_output(item: OpaqueItem) -> Output:
    """Return text as text and images as images, wherever they are nested; the rest becomes JSON."""
    content = _content(item)
    value = next((content[field] for field in _RESULT_FIELDS if [*content] == [field]), None)
    if value is None:
        return encode(content).decode() if content else str(item.fields.get("status") or "")
    if isinstance(value, str):
        return value
    parts = [_part(each) for each in (value if isinstance(value, list) else [value])]
    return encode(value).decode() if all(isinstance(part, Text) for part in parts) else tuple(parts)


def _part(value: object) -> ResultPart:
    if isinstance(value, dict):  # not `match`: there may be very many, and it takes three times as long
        if isinstance(url := value.get("image_url"), str):
            return InputImage(image_url=url)
        if value.get("type") in _TEXT_TYPES and isinstance(text := value.get("text"), str):
            return InputText(text=text)
    return Text(text=encode(value).decode())
