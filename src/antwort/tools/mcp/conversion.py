"""Convert what an MCP server sends: its list into tool definitions, results of calls into tool outputs. Pure.

Nothing that a server sends is taken to be valid.
"""

from __future__ import annotations

import string
from collections.abc import Callable, Collection, Container, Iterable, Mapping
from typing import Any

import msgspec
from msgspec.structs import replace

from antwort.api.items import InputFile, InputImage, InputText, ResultPart
from antwort.api.tools import McpTool
from antwort.tools.base import Output, ToolDefinition, ToolKind
from antwort.tools.mcp.base import McpCallResult, ServerTool, ServerTools, ServerUnavailable
from antwort.tools.mcp.messages import NOT_AN_ANSWER
from antwort.tools.mcp.servers import ApprovalRule, McpPolicy, McpServer, McpToolPolicy

# ---- the list, as it comes in pages ----

MAX_TOOLS = 5_000
MAX_PAGES = 500
MAX_LIST_BYTES = 32 * 2**20
MAX_UNTRUSTED_LIST_BYTES = 2**20
"""For servers that requests name by address, because a request can name many."""
MAX_UNTRUSTED_PAGE_BYTES = 4 * 2**20
"""Longest page of such a server. For the operator's servers, the limit of all messages applies."""
_MAX_NAME = 256


class ToolList:
    """Collect the pages of a list, up to the limits. `usable` returns whether a tool with that schema may be used;
    `most` is the limit in bytes.
    """

    def __init__(self, usable: Callable[[object], bool], most: int | None = None) -> None:
        self._usable = usable
        self._most = MAX_LIST_BYTES if most is None else most
        self._found: dict[str, ServerTool] = {}
        self._cursors: set[str] = set()
        self._pages = self._seen = self._bytes = self._odd = 0
        self._is_cut = False

    @property
    def tools(self) -> tuple[ServerTool, ...]:
        return tuple(self._found.values())

    @property
    def size(self) -> int:
        """Size of the collected tools as JSON."""
        return self._bytes

    @property
    def left_out(self) -> str:
        """What was left out, in words; empty if nothing was."""
        odd = f"{self._odd} in it are no tools" if self._odd else ""
        cut = "it is too long" if self._is_cut else ""
        return " and ".join(filter(None, (odd, cut)))

    def feed(self, page: object) -> str | None:
        """Add a page, and return the cursor of the next one, if it is wanted. Raises `ServerUnavailable`."""
        if not isinstance(page, dict) or not isinstance(listed := page.get("tools"), list):
            raise ServerUnavailable(NOT_AN_ANSWER)
        self._pages += 1
        self._is_cut = self._is_cut or len(listed) > MAX_TOOLS
        for one in listed[:MAX_TOOLS]:
            size = _size(one)
            self._seen += size
            self._odd += not self._add(one, size)
        return self._next(page.get("nextCursor"))

    def _next(self, cursor: object) -> str | None:
        if not isinstance(cursor, str) or not cursor:
            return None
        taken = len(self._found) + self._odd
        is_full = taken >= MAX_TOOLS or self._pages >= MAX_PAGES or self._seen >= self._most
        if is_full or cursor in self._cursors:  # a repeated cursor would never end
            self._is_cut = True
            return None
        self._cursors.add(cursor)
        return cursor

    def _add(self, one: object, size: int) -> bool:
        tool = read_tool(one)
        if tool is None:
            return False
        if (first := self._found.get(tool.name)) is not None:
            if first.annotations != tool.annotations:  # it is not known which of the two a call runs
                self._found[tool.name] = replace(first, annotations=None)
            return False
        if not self._usable(tool.input_schema):
            return False
        if len(self._found) < MAX_TOOLS and self._bytes + size <= self._most:
            self._found[tool.name] = tool
            self._bytes += size
        else:
            self._is_cut = True
        return True


def read_tool(one: object) -> ServerTool | None:
    """Parse a tool of a list. Return None if it is invalid."""
    if not isinstance(one, dict):
        return None
    name, schema = one.get("name"), one.get("inputSchema", {})
    if not isinstance(name, str) or not 0 < len(name) <= _MAX_NAME or not isinstance(schema, dict):
        return None
    return ServerTool(
        name=name,
        title=_text(one, "title"),
        description=_text(one, "description"),
        input_schema=schema,
        output_schema=_mapping(one, "outputSchema"),
        annotations=_mapping(one, "annotations"),
    )


def _text(one: Mapping[str, Any], field: str) -> str | None:
    return value if isinstance(value := one.get(field), str) else None


def _mapping(one: Mapping[str, Any], field: str) -> Mapping[str, Any] | None:
    return value if isinstance(value := one.get(field), dict) else None


def _size(one: object) -> int:
    try:
        return len(msgspec.json.encode(one))
    except (msgspec.MsgspecError, RecursionError, ValueError, TypeError, OverflowError):
        return 2 * MAX_LIST_BYTES  # it cannot be encoded, so it is left out


# ---- tool definitions ----

_MAX_DESCRIPTION = 16 * 1024
_MAX_INSTRUCTIONS = 16 * 1024
_AS_LISTED = McpToolPolicy()


class ToolRules(msgspec.Struct, frozen=True, kw_only=True):
    """Settings for the tools of a server that override what the server says."""

    allowed: tuple[str, ...] | None = None
    tools: Mapping[str, McpToolPolicy] = {}
    require_approval: ApprovalRule = "never"
    default: bool | None = False
    """`ToolDefinition.needs_approval` of tools that need no approval by `require_approval`."""


def rules_for(server: McpServer) -> ToolRules:
    return ToolRules(allowed=server.allowed_tools, tools=server.tools, require_approval=server.require_approval)


def untrusted_rules(policy: McpPolicy) -> ToolRules:
    """Return the rules for servers that requests name by address."""
    if policy.require_approval == "never":
        return ToolRules()
    return ToolRules(require_approval="always") if policy.force_approval else ToolRules(default=None)


def define(
    listed: ServerTools, declared: McpTool, *rules: ToolRules, writing: Collection[Container[str]] = ()
) -> tuple[ToolDefinition, ...]:
    """Return the definitions of a list: the first tool of each name. Tools without a usable name are left out.

    All `rules` apply: each must allow a tool, and the strictest decides about approvals. Tools in one of `writing` were
    listed as writing before, and count as writing unless the rules say otherwise.
    """
    first: dict[str, ServerTool] = {}
    for tool in listed.tools:
        if _is_usable(tool.name) and all(each.allowed is None or tool.name in each.allowed for each in rules):
            first.setdefault(tool.name, tool)
    return tuple(
        _define(tool, declared, rules, may_read=not any(tool.name in names for names in writing))
        for tool in first.values()
    )


def writing_names(listed: ServerTools) -> frozenset[str]:
    """Return the names of the tools that are not listed as read-only."""
    return frozenset(tool.name for tool in listed.tools if _is_usable(tool.name) and not _reads(tool))


def read_only_names(listed: ServerTools) -> frozenset[str]:
    return frozenset(tool.name for tool in listed.tools if _is_usable(tool.name) and _reads(tool))


def unknown_names(listed: ServerTools, server: McpServer) -> tuple[str, ...]:
    """Return the tools that the operator's settings name and that the server does not have."""
    there = {tool.name for tool in listed.tools}
    return tuple(name for name in dict.fromkeys((*(server.allowed_tools or ()), *server.tools)) if name not in there)


def instructions_of(listed: ServerTools, declared: McpTool, server: McpServer | None) -> str | None:
    """Return the description for the model: the request's, the operator's, or the server's own instructions."""
    if isinstance(declared.server_description, str) and declared.server_description.strip():
        return declared.server_description
    if server is not None and server.description is not None:
        return server.description
    return listed.instructions[:_MAX_INSTRUCTIONS] if listed.instructions else None


def _is_usable(name: str) -> bool:
    return bool(name.strip()) and len(name) <= _MAX_NAME and name.isprintable()


def _reads(tool: ServerTool) -> bool:
    return isinstance(tool.annotations, Mapping) and tool.annotations.get("readOnlyHint") is True


def _define(tool: ServerTool, declared: McpTool, rules: Iterable[ToolRules], *, may_read: bool) -> ToolDefinition:
    own = [(each, each.tools.get(tool.name, _AS_LISTED)) for each in rules]
    hints = tool.annotations if isinstance(tool.annotations, Mapping) else {}
    decided = [policy.read_only for _, policy in own if policy.read_only is not None]
    read_only = all(decided) if decided else may_read and _reads(tool)
    decided = [policy.idempotent for _, policy in own if policy.idempotent is not None]
    is_idempotent = all(decided) if decided else read_only or hints.get("idempotentHint") is True
    return ToolDefinition(
        name=tool.name,
        kind=ToolKind.MCP,
        description=_description(tool, hints),
        parameters=_schema(tool.input_schema),
        server_label=declared.server_label,
        read_only=read_only,
        idempotent=is_idempotent,
        annotations={name: hint for name, hint in hints.items() if hint is not None} or None,
        declared=declared,
        needs_approval=_strictest([_needs_approval(policy, each, read_only=read_only) for each, policy in own]),
        is_serial=not all(policy.parallel for _, policy in own),
    )


def _description(tool: ServerTool, hints: Mapping[str, Any]) -> str | None:
    """Return the description, or else a title that is not just the name."""
    for text in (tool.description, tool.title, hints.get("title")):
        if isinstance(text, str) and text.strip() and text != tool.name:
            return text[:_MAX_DESCRIPTION]
    return None


def _schema(schema: object) -> dict[str, Any]:
    if not isinstance(schema, Mapping) or not schema:
        return {"type": "object", "properties": {}}
    return schema if isinstance(schema, dict) else dict(schema)  # the same object, because results for it are cached


def _strictest(demands: Collection[bool | None]) -> bool | None:
    """True before None before False, as `ToolDefinition.needs_approval` has them."""
    return True if True in demands else None if None in demands else False


def _needs_approval(own: McpToolPolicy, rules: ToolRules, *, read_only: bool) -> bool | None:
    if own.require_approval is not None:
        return own.require_approval
    if rules.require_approval == "always" or (rules.require_approval == "writes" and not read_only):
        return True
    return rules.default


# ---- outputs ----

IMAGES = frozenset({"image/png", "image/jpeg", "image/gif", "image/webp"})
"""The types of pictures that models accept."""
_FILES = frozenset({"application/pdf"})
_BASE64 = (string.ascii_letters + string.digits + "+/").encode()
_MAX_PARTS = 256
_MAX_WORD = 200
_SILENT_FAILURE = "The tool failed, and did not say why."


def output_of(outcome: McpCallResult) -> Output:
    """Return the output of a call: a text, or parts in the order of the result.

    `structuredContent` is used only if there is no text, because servers send the same as text. Parts that models do
    not accept become a note in brackets.
    """
    if len(outcome.content) == 1 and isinstance(only := outcome.content[0], dict) and only.get("type") == "text":
        text = only.get("text")
        if isinstance(text, str) and text and (not outcome.is_error or text.strip()):
            return text  # the usual case
    parts = [part for content in _bounded(outcome.content) for part in _parts(content)]
    if outcome.structured is not None and not any(isinstance(part, InputText) for part in parts):
        parts.insert(0, InputText(text=_json(outcome.structured)))
    if outcome.is_error and not any(_has_content(part) for part in parts):
        parts.insert(0, InputText(text=_SILENT_FAILURE))
    texts = [part.text for part in parts if isinstance(part, InputText)]
    return "\n".join(texts) if len(texts) == len(parts) else tuple(parts)


def _bounded(content: object) -> Iterable[object]:
    if not isinstance(content, list | tuple):
        return ()
    more = len(content) - _MAX_PARTS
    if more <= 0:
        return content
    return [*content[:_MAX_PARTS], {"type": "text", "text": f"[{more} more parts left out]"}]


def _has_content(part: ResultPart) -> bool:
    return not isinstance(part, InputText) or bool(part.text.strip())


def _parts(content: object) -> list[ResultPart]:
    if not isinstance(content, dict) and not isinstance(content, Mapping):  # `isinstance` of an abstract class is slow
        return [_left_out("a part that is none")]
    match content.get("type"):
        case "text":
            text = content.get("text")
            return [InputText(text=text)] if isinstance(text, str) else [_left_out("text that is none")]
        case "image":
            return [_media(content.get("data"), content.get("mimeType"), "image")]
        case "audio":
            return [_left_out(f"audio{_kind(content.get('mimeType'))}")]
        case "resource_link":
            return [InputText(text=_link(content))]
        case "resource":
            return _resource(content.get("resource"))
        case other:
            return [_left_out(f"content of the type {_word(other)!r}")]


def _resource(resource: object) -> list[ResultPart]:
    """Convert an embedded resource: its text, or its bytes if models accept the type."""
    if not isinstance(resource, Mapping):
        return [_left_out("a resource that is none")]
    if isinstance(text := resource.get("text"), str):
        return [InputText(text=text)]
    return [_media(resource.get("blob"), resource.get("mimeType"), "resource", _word(resource.get("uri")))]


def _link(link: Mapping[str, Any]) -> str:
    """Convert a link to a resource: the model sees the link, and the resource is not fetched."""
    name = _word(link.get("title") or link.get("name"))
    about = f": {text}" if isinstance(text := link.get("description"), str) and text else ""
    return f"[resource {name!r}{_kind(link.get('mimeType'))} at {_word(link.get('uri'))}]{about}"


def _media(data: object, kind: object, what: str, uri: str = "") -> ResultPart:
    kind = _essence(kind)
    encoded = "".join(data.split()) if isinstance(data, str) else ""
    named = f"{what}{f' {uri}' if uri else ''}"
    if not _is_base64(encoded):
        return _left_out(f"{named} that cannot be read")
    url = f"data:{kind};base64,{encoded}"
    if kind in IMAGES:
        return InputImage(image_url=url)
    if kind in _FILES:
        return InputFile(filename=uri.rpartition("/")[2] or "file", file_data=url)
    return _left_out(f"{named}{_kind(kind)}, {len(encoded.rstrip('=')) * 3 // 4} bytes")


def _is_base64(text: str) -> bool:
    """Return whether a text is base64. A regular expression would block for a tenth of a second on 16 MiB."""
    bare = text.rstrip("=")
    is_whole = bool(bare) and len(text) % 4 == 0 and len(text) - len(bare) <= 2
    return is_whole and bare.isascii() and not bare.encode().translate(None, _BASE64)


def _essence(kind: object) -> str:
    """Return a media type without its parameters."""
    return _word(kind).partition(";")[0].strip().lower()


def _kind(kind: object) -> str:
    return f" ({essence})" if (essence := _essence(kind)) else ""


def _left_out(what: str) -> InputText:
    return InputText(text=f"[{what}: left out]")


def _word(value: object) -> str:
    """Return a name from the server, shortened and printable."""
    text = value if isinstance(value, str) else ""
    return "".join(character if character.isprintable() else " " for character in text[:_MAX_WORD]).strip()


def _json(value: object) -> str:
    return msgspec.json.encode(value).decode()
