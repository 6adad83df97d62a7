"""Tools as a request declares them, `tool_choice` and `allowed_tools`."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any, Literal, TypeAlias
from urllib.parse import urlsplit, urlunsplit

from antwort.api.wire import UNSET, Plain, UnsetType, Wire, to_plain


class FunctionTool(Wire, tag="function"):
    """A function. The client runs it, unless a local executor is registered for its name."""

    name: str
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None
    defer_loading: bool | None | UnsetType = UNSET
    """Whether the model must search for the tool before it sees it; the same for other tools."""
    allowed_callers: tuple[str, ...] | None | UnsetType = UNSET
    """Who may call it: the model itself, `direct`, or a program that it writes. The default is the model. The same for
    other tools.
    """


class TextInput(Wire, tag="text"):
    """A free-form tool accepts any text."""


class GrammarInput(Wire, tag="grammar"):
    """A free-form tool accepts texts that match the grammar."""

    syntax: Literal["lark", "regex"]
    definition: str


class CustomTool(Wire, tag="custom"):
    """A free-form tool, which the client runs: its input is text, not JSON."""

    name: str
    description: str | None = None
    format: TextInput | GrammarInput = TextInput()
    defer_loading: bool | UnsetType = UNSET
    allowed_callers: tuple[str, ...] | UnsetType = UNSET


class NamespaceTool(Wire, tag="namespace"):
    """Tools under a common name. The model sees one unique name for each; clients see name and namespace."""

    name: str
    tools: tuple[FunctionTool | CustomTool, ...]
    description: str | None = None
    defer_loading: bool | UnsetType = UNSET


class McpToolFilter(Wire):
    """Select tools of a server, by name or only those that are read-only."""

    tool_names: tuple[str, ...] | None | UnsetType = UNSET
    read_only: bool | None | UnsetType = UNSET


class ApprovedTools(McpToolFilter, forbid_unknown_fields=True):
    """Select tools for an approval rule. Unknown fields are refused, because a call could run without its approval."""


class ApprovalFilter(Wire, forbid_unknown_fields=True):
    """Tools of a server that need the client's approval for each call, and tools that do not."""

    always: ApprovedTools | UnsetType = UNSET
    never: ApprovedTools | UnsetType = UNSET


class McpTool(Wire, tag="mcp"):
    """An MCP server, by address or by the label of one that the operator has configured."""

    server_label: str
    server_url: str | UnsetType = UNSET
    server_description: str | UnsetType = UNSET
    authorization: str | UnsetType = UNSET
    headers: dict[str, str] | UnsetType = UNSET
    allowed_tools: tuple[str, ...] | McpToolFilter | UnsetType = UNSET
    require_approval: Literal["always", "never"] | ApprovalFilter | UnsetType = UNSET
    connector_id: str | UnsetType = UNSET
    defer_loading: bool | UnsetType = UNSET
    """Whether the model must search for its tools before it sees them."""
    allowed_callers: tuple[str, ...] | UnsetType = UNSET

    def __repr__(self) -> str:
        """Show the label only: other fields may hold credentials."""
        return f"McpTool({self.server_label!r})"


class OpaqueTool:
    """A tool of a type that antwort does not run. The operator's settings decide what becomes of it.

    `path` is its place in the request: such tools are moved out of their namespace, to the end of the list.
    """

    __slots__ = ("fields", "path", "type")

    def __init__(self, type: str, fields: Mapping[str, Any], path: str = "") -> None:  # noqa: A002 - the protocol's name
        self.type, self.path = type, path
        self.fields: Mapping[str, Any] = dict(fields)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, OpaqueTool) and self.fields == other.fields

    def __hash__(self) -> int:
        return hash(self.type)

    def __repr__(self) -> str:
        return f"OpaqueTool({self.type!r})"


def may_be_called(tool: FunctionTool | CustomTool | McpTool | OpaqueTool) -> bool:
    """Return whether the model itself may call the tool: antwort runs no programs that could."""
    callers = tool.fields.get("allowed_callers") if isinstance(tool, OpaqueTool) else tool.allowed_callers
    return not isinstance(callers, list | tuple) or "direct" in callers


Tool: TypeAlias = FunctionTool | CustomTool | NamespaceTool | McpTool | OpaqueTool
ChoiceMode: TypeAlias = Literal["none", "auto", "required"]


class ForcedFunction(Wire, tag="function"):
    """The model must call this function."""

    name: str
    namespace: str | UnsetType = UNSET


class ForcedCustom(Wire, tag="custom"):
    """The model must call this free-form tool."""

    name: str
    namespace: str | UnsetType = UNSET


class ForcedHosted(Wire):
    """The model must use the tool that the operator offers in place of tools of this type."""

    type: str


class ForcedServer(Wire, tag="mcp"):
    """The model must call a tool of this server, or the one with this `name`."""

    server_label: str
    name: str | UnsetType = UNSET


class NamedTool(Wire):
    type: str
    name: str | UnsetType = UNSET
    server_label: str | UnsetType = UNSET
    namespace: str | UnsetType = UNSET


class AllowedTools(Wire, tag="allowed_tools"):
    """The model sees all tools, but only calls of `tools` are run."""

    tools: tuple[NamedTool, ...]
    mode: ChoiceMode = "auto"


Forced: TypeAlias = ForcedFunction | ForcedCustom | ForcedServer | ForcedHosted
ToolChoice: TypeAlias = ChoiceMode | Forced | AllowedTools


SECRET = ("authorization", "headers")


def echo_tool(tool: Tool) -> Plain:
    """Return the tool as the response repeats it: without credentials, also those in its address."""
    shown: Plain = to_plain(tool)
    for field in SECRET:
        shown.pop(field, None)
    if isinstance(tool, McpTool) and isinstance(tool.server_url, str):
        shown["server_url"] = shown_url(tool.server_url)
    return shown


def brought_by(tool: McpTool) -> bool:
    """Return whether the declaration holds credentials beside its address."""
    return not (tool.authorization is UNSET and tool.headers is UNSET)


def has_credentials(tool: Tool) -> bool:
    """Return whether a response leaves out something of the tool, such as the path of its address."""
    if not isinstance(tool, McpTool):
        return False
    return brought_by(tool) or (isinstance(tool.server_url, str) and shown_url(tool.server_url) != tool.server_url)


def shown_url(url: str) -> str:
    """Return scheme and host of an address: many servers use addresses that hold a key of the user."""
    return _shown(url) if len(url) <= _MAX_CACHED_URL else _shown.__wrapped__(url)


_MAX_CACHED_URL = 2048


@lru_cache(256)
def _shown(url: str) -> str:
    try:
        parts = urlsplit(url)
    except ValueError:
        return ""
    return urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], "", "", ""))


def same_place(one: str | UnsetType, other: str | UnsetType) -> bool:
    """Return whether two addresses are of one server; their queries do not count."""
    if not isinstance(one, str) or not isinstance(other, str):
        return one is other
    return one.partition("?")[0].rstrip("/") == other.partition("?")[0].rstrip("/")


def echo_choice(choice: ToolChoice) -> str | Plain:
    """Return the choice as the response repeats it."""
    if isinstance(choice, str):
        return choice
    plain: Plain = to_plain(choice)
    return plain
