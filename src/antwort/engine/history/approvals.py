"""Approvals of tool calls: which calls need one, and the decisions that clients send. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from msgspec.structs import replace

from antwort.api.items import InputItem, McpApprovalResponse
from antwort.api.tools import ApprovalFilter, McpTool, McpToolFilter
from antwort.api.wire import UNSET, UnsetType
from antwort.errors import Conflict
from antwort.schema.validate import decode_object
from antwort.tools.base import ToolDefinition, given_arguments

# ---- which calls need an approval ----


def with_approvals(tool: McpTool, found: Sequence[ToolDefinition]) -> Sequence[ToolDefinition]:
    """Return the tools of a server with their policy settled. A request can ask for more approvals than the operator,
    never for fewer.
    """
    settled = ((definition, _needs_approval(tool, definition)) for definition in found)
    return [
        definition
        if definition.needs_approval is needs_approval
        else replace(definition, needs_approval=needs_approval)
        for definition, needs_approval in settled
    ]


def _needs_approval(tool: McpTool, definition: ToolDefinition) -> bool:
    if definition.needs_approval is True:
        return True
    wanted = tool.require_approval
    if isinstance(wanted, ApprovalFilter):
        if _fits(wanted.always, definition):
            return True
        if wanted.never is not UNSET:  # a list of tools that need none means that all others do
            return not _fits(wanted.never, definition)
    elif wanted is not UNSET:
        return wanted == "always"
    return definition.needs_approval is None


def _fits(meant: McpToolFilter | UnsetType, definition: ToolDefinition) -> bool:
    """Return whether a filter includes the tool. An empty filter includes nothing."""
    if meant is UNSET:
        return False
    names, read_only = meant.tool_names, meant.read_only
    if not isinstance(names, tuple) and not isinstance(read_only, bool):
        return False
    is_named = not isinstance(names, tuple) or definition.own_name in names
    return is_named and (not isinstance(read_only, bool) or definition.read_only is read_only)


def is_asked(left: int | None, arguments: str, before: int) -> bool:
    """Return whether the client is asked to approve a call. One that is refused in any case is not asked for: where the
    response may run `left` more calls, and so many stand `before` it, or where the arguments are invalid.
    """
    return (left is None or before < left) and unasked(arguments) is None


def unasked(arguments: str) -> str | None:
    """Return why a call with these arguments is refused without asking, in words for the model; None if it is not."""
    value = decode_object(given_arguments(arguments))
    return value if isinstance(value, str) else None


# ---- decisions ----

_LONGEST_ID = 100
"""Characters of a client's id that an error repeats."""


def decisions_in(items: Iterable[InputItem]) -> Mapping[str, McpApprovalResponse]:
    """Return the decisions among the items, by the ids of the requests. Of several the first counts."""
    found: dict[str, McpApprovalResponse] = {}
    for item in items:
        if isinstance(item, McpApprovalResponse):
            found.setdefault(item.approval_request_id, item)
    return found


def contradiction(place: str, *, is_approved: bool) -> Conflict:
    decision = "approved" if is_approved else "denied"
    problem = f"The call was {decision} before, and that cannot be taken back."
    return Conflict(problem, param=place, code="approval_decided")


def superseded(place: str, response_id: str | None) -> Conflict:
    """Return the error for an approval of a call that was asked about again."""
    where = "" if response_id is None else f" in the response {response_id!r}"
    problem = f"The tool has changed since this call was asked about. It was not run, and is asked about again{where}."
    return Conflict(problem, param=place, code="tool_changed")
