"""Tools as a request declares them, and what it says about their use. Tools are an open set."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any, Literal, TypeAlias
from urllib.parse import urlsplit, urlunsplit

from antwort.api.wire import UNSET, Plain, UnsetType, Wire, to_plain


class FunctionTool(Wire, tag="function"):
    """A function: the client's to run, unless a local executor is registered for its name."""

    name: str
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None
    defer_loading: bool | None | UnsetType = UNSET
    """Whether the model must look for it before it sees it; the same for the others."""
    allowed_callers: tuple[str, ...] | None | UnsetType = UNSET
    """Who may call it: the model itself, `direct`, or a program that it writes; left out, the model. The same for the
    others.
    """


class TextInput(Wire, tag="text"):
    """A free-form tool takes any text."""


class GrammarInput(Wire, tag="grammar"):
    """A free-form tool takes texts that fit the grammar."""

    syntax: Literal["lark", "regex"]
    definition: str


class CustomTool(Wire, tag="custom"):
    """A free-form tool, the client's to run: its input is text, not JSON."""

    name: str
    description: str | None = None
    format: TextInput | GrammarInput = TextInput()
    defer_loading: bool | UnsetType = UNSET
    allowed_callers: tuple[str, ...] | UnsetType = UNSET


class NamespaceTool(Wire, tag="namespace"):
    """Tools under a common name. The model sees each by a name of its own; clients see name and namespace apart."""

    name: str
    tools: tuple[FunctionTool | CustomTool, ...]
    description: str | None = None
    defer_loading: bool | UnsetType = UNSET


class McpToolFilter(Wire):
    """Which of a server's tools are meant: by name, or only those that change nothing."""

    tool_names: tuple[str, ...] | None | UnsetType = UNSET
    read_only: bool | None | UnsetType = UNSET


class ApprovedTools(McpToolFilter, forbid_unknown_fields=True):
    """The same. What is not understood is not passed over: nothing is run without the approval that was meant."""


class ApprovalFilter(Wire, forbid_unknown_fields=True):
    """Which of a server's tools need the client's approval for each call, and which do not."""

    always: ApprovedTools | UnsetType = UNSET
    never: ApprovedTools | UnsetType = UNSET


class McpTool(Wire, tag="mcp"):
    """A tool server, by address or by the label of something the operator configured."""

    server_label: str
    server_url: str | UnsetType = UNSET
    server_description: str | UnsetType = UNSET
    authorization: str | UnsetType = UNSET
    headers: dict[str, str] | UnsetType = UNSET
    allowed_tools: tuple[str, ...] | McpToolFilter | UnsetType = UNSET
    require_approval: Literal["always", "never"] | ApprovalFilter | UnsetType = UNSET
    connector_id: str | UnsetType = UNSET
    defer_loading: bool | UnsetType = UNSET
    """Whether the model must look for its tools before it sees them."""
    allowed_callers: tuple[str, ...] | UnsetType = UNSET

    def __repr__(self) -> str:
        """Without the rest: that may be what the request brought to log in."""
        return f"McpTool({self.server_label!r})"


class OpaqueTool:
    """A tool of a type this version does not run: kept as it came, and left to policy.

    `path` is where the request has it: those within a namespace are taken out of it, and stand behind all others.
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
    """Whether the model itself may call it: no program does so here."""
    callers = tool.fields.get("allowed_callers") if isinstance(tool, OpaqueTool) else tool.allowed_callers
    return not isinstance(callers, list | tuple) or "direct" in callers


Tool: TypeAlias = FunctionTool | CustomTool | NamespaceTool | McpTool | OpaqueTool
ChoiceMode: TypeAlias = Literal["none", "auto", "required"]


class ForcedFunction(Wire, tag="function"):
    """The model must call this one."""

    name: str
    namespace: str | UnsetType = UNSET


class ForcedCustom(Wire, tag="custom"):
    """The model must call this free-form tool."""

    name: str
    namespace: str | UnsetType = UNSET


class ForcedHosted(Wire):
    """The model must use the tool that the operator has put in the place of those of this type."""

    type: str


class ForcedServer(Wire, tag="mcp"):
    """The model must call a tool of this server; with `name`, that one."""

    server_label: str
    name: str | UnsetType = UNSET


class NamedTool(Wire):
    type: str
    name: str | UnsetType = UNSET
    server_label: str | UnsetType = UNSET
    namespace: str | UnsetType = UNSET


class AllowedTools(Wire, tag="allowed_tools"):
    """All tools stay visible; calls outside `tools` are refused."""

    tools: tuple[NamedTool, ...]
    mode: ChoiceMode = "auto"


Forced: TypeAlias = ForcedFunction | ForcedCustom | ForcedServer | ForcedHosted
ToolChoice: TypeAlias = ChoiceMode | Forced | AllowedTools


SECRET = ("authorization", "headers")


def echo_tool(tool: Tool) -> Plain:
    """The tool as a response repeats it. Credentials are never repeated, nor what an address carries of them."""
    shown: Plain = to_plain(tool)
    for field in SECRET:
        shown.pop(field, None)
    if isinstance(tool, McpTool) and isinstance(tool.server_url, str):
        shown["server_url"] = shown_url(tool.server_url)
    return shown


def brought_by(tool: McpTool) -> bool:
    """Whether it says how to log in."""
    return not (tool.authorization is UNSET and tool.headers is UNSET)


def has_credentials(tool: Tool) -> bool:
    """Whether it holds something that is not shown; of an address, that is all behind the host."""
    if not isinstance(tool, McpTool):
        return False
    return brought_by(tool) or (isinstance(tool.server_url, str) and shown_url(tool.server_url) != tool.server_url)


def shown_url(url: str) -> str:
    """An address without what may log somebody in: many a server gives out addresses that hold a key of its user."""
    return _shown(url) if len(url) <= _LONGEST_KEPT else _shown.__wrapped__(url)


_LONGEST_KEPT = 2048


@lru_cache(256)  # a few, and each again and again
def _shown(url: str) -> str:
    try:
        parts = urlsplit(url)
    except ValueError:
        return ""
    return urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], "", "", ""))


def same_place(one: str | UnsetType, other: str | UnsetType) -> bool:
    """Whether two addresses are those of one server, whatever stands in their queries."""
    if not isinstance(one, str) or not isinstance(other, str):
        return one is other
    return one.partition("?")[0].rstrip("/") == other.partition("?")[0].rstrip("/")


def echo_choice(choice: ToolChoice) -> str | Plain:
    if isinstance(choice, str):
        return choice
    plain: Plain = to_plain(choice)
    return plain
