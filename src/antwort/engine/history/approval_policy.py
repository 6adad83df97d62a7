"""Which calls the client must approve: what the operator demands, and what the request says. Pure."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from antwort.api.tools import ApprovalFilter, McpTool, McpToolFilter
from antwort.api.wire import UNSET, UnsetType
from antwort.tools.base import ToolDefinition, given_arguments


def with_approvals(tool: McpTool, found: Sequence[ToolDefinition]) -> Sequence[ToolDefinition]:
    """The tools that a server offers, each decided. A request can ask for more approvals than the operator, never for
    fewer.
    """
    return [definition.decided(_needs_approval(tool, definition)) for definition in found]


def _needs_approval(tool: McpTool, definition: ToolDefinition) -> bool:
    if definition.needs_approval is True:
        return True
    asked = _asks(tool, definition)
    return definition.needs_approval is None if asked is None else asked


def _asks(tool: McpTool, definition: ToolDefinition) -> bool | None:
    """What the request says of the tool; None where it says nothing."""
    wanted = tool.require_approval
    if not isinstance(wanted, ApprovalFilter):
        return None if wanted is UNSET else wanted == "always"
    if _fits(wanted.always, definition):
        return True
    if _fits(wanted.never, definition):
        return False
    return None if wanted.never is UNSET else True  # who names those that need none means that all others do


def _fits(meant: McpToolFilter | UnsetType, definition: ToolDefinition) -> bool:
    """A filter that names nothing fits nothing."""
    if meant is UNSET:
        return False
    names, read_only = meant.tool_names, meant.read_only
    if not isinstance(names, tuple) and not isinstance(read_only, bool):
        return False
    is_named = not isinstance(names, tuple) or definition.own_name in names
    return is_named and (not isinstance(read_only, bool) or definition.read_only is read_only)


# ---- calls that nobody is asked about ----


def is_asked(left: int | None, arguments: str, before: int) -> bool:
    """Whether the client is asked for its approval, where the response may run so many calls yet, less those `before`
    it: what is refused whatever the client says is not asked for.
    """
    return (left is None or before < left) and unasked(arguments) is None


def unasked(arguments: str) -> str | None:
    """Why a call with these arguments is not even asked for, in words the model can use."""
    try:
        value = msgspec.json.decode(given_arguments(arguments))
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        return f"The arguments are not valid JSON: {error}"
    return None if isinstance(value, dict) else "The arguments must be a JSON object."
