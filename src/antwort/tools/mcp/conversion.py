"""Convert what an MCP server sends: its list into tool definitions, results of calls into tool outputs. Pure.

Nothing that a server sends is taken to be valid.
"""

from __future__ import annotations

import string
from collections.abc import Awaitable, Callable, Collection, Container, Mapping, Sequence
from typing import Any

import msgspec
from msgspec.structs import replace

from antwort.api.items import InputFile, InputImage, InputText, ResultPart
from antwort.api.tools import McpTool
from antwort.tools.base import Output, ToolDefinition, ToolKind
from antwort.tools.mcp.base import McpCallResult, ServerTool, ServerTools, ServerUnavailable
from antwort.tools.mcp.messages import METHOD_NOT_FOUND, NOT_AN_ANSWER, JsonRpcError
from antwort.tools.mcp.servers import McpPolicy, McpServer, McpToolPolicy

# ---- the list, as it comes in pages ----

MAX_TOOLS = 5_000
MAX_PAGES = 500
MAX_LIST_BYTES = 32 * 2**20
MAX_UNTRUSTED_LIST_BYTES = 2**20
"""For servers that requests name by address, because a request can name many."""
MAX_UNTRUSTED_PAGE_BYTES = 4 * 2**20
"""Longest page of such a server. For the operator's servers, the limit of all messages applies."""
_MAX_NAME = 256


class ToolList(msgspec.Struct, frozen=True):
    """The tools of all pages, up to the limits."""

    tools: tuple[ServerTool, ...]
    size: int
    """Size of the tools as JSON."""
    left_out: str
    """What was left out, in words; empty if nothing was."""


async def read_list(
    ask: Callable[[str | None], Awaitable[object]], is_allowed: Callable[[object], bool], most: int = MAX_LIST_BYTES
) -> ToolList:
    """Read a list page by page. `ask` returns the page at a cursor, `is_allowed` whether a tool with that schema may be
    used; `most` is the limit in bytes. Raises `ServerUnavailable` for a page that is none, and what `ask` raises.
    """
    found: dict[str, ServerTool] = {}
    cursors: set[object] = set()
    cursor: str | None = None
    pages = seen = size = odd = 0
    is_cut = False
    while cursor not in cursors:
        cursors.add(cursor)
        try:
            page = await ask(cursor)
        except JsonRpcError as error:
            if error.code != METHOD_NOT_FOUND:  # a server without tools
                raise
            page = {"tools": []}
        if not isinstance(page, dict) or not isinstance(listed := page.get("tools"), list):
            raise ServerUnavailable(NOT_AN_ANSWER)
        pages += 1
        is_cut = is_cut or len(listed) > MAX_TOOLS
        for one in listed[:MAX_TOOLS]:
            bytes_of_one = _size(one)
            seen += bytes_of_one
            tool = read_tool(one)
            if tool is not None and (first := found.get(tool.name)) is not None:
                if first.annotations != tool.annotations:  # it is not known which of the two a call runs
                    found[tool.name] = replace(first, annotations=None)
                odd += 1
            elif tool is None or not is_allowed(tool.input_schema):
                odd += 1
            elif len(found) < MAX_TOOLS and size + bytes_of_one <= most:
                found[tool.name] = tool
                size += bytes_of_one
            else:
                is_cut = True
        cursor = page.get("nextCursor")
        if not isinstance(cursor, str) or not cursor:
            break
        if len(found) + odd >= MAX_TOOLS or pages >= MAX_PAGES or seen >= most:
            is_cut = True
            break
    else:  # a repeated cursor would never end
        is_cut = True
    causes = (f"{odd} in it are no tools" if odd else "", "it is too long" if is_cut else "")
    return ToolList(tuple(found.values()), size, " and ".join(filter(None, causes)))


def read_tool(one: object) -> ServerTool | None:
    """Parse a tool of a list. Return None if it is invalid, or has no usable name."""
    if not isinstance(one, dict):
        return None
    name, schema = one.get("name"), one.get("inputSchema", {})
    if not isinstance(name, str) or not name.strip() or len(name) > _MAX_NAME or not name.isprintable():
        return None
    if not isinstance(schema, dict):
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


class Writing(msgspec.Struct, frozen=True):
    """The tools that count as writing, as `ToolMemory` knows them."""

    names: tuple[Container[str], ...]
    """Sets of names, one for each tenant: a tool in any of them counts as writing. An unchanged set is the same object.
    """
    version: int
    """`ToolMemory.version` when they were read."""
    stale_at: float
    """On the monotonic clock: when they are read again."""


class Definitions(msgspec.Struct, frozen=True):
    """The definitions of a list, and what they were made from."""

    listed: ServerTools
    declared: McpTool
    writing: Writing
    tools: tuple[ToolDefinition, ...]


def define(
    listed: ServerTools,
    declared: McpTool,
    *servers: McpServer,
    needs_approval: bool | None = False,
    writing: Collection[Container[str]] = (),
) -> tuple[ToolDefinition, ...]:
    """Return the definitions of a list.

    The settings of all `servers` apply: each must allow a tool, and the strictest decides about approvals, of which
    `needs_approval` is the least. Tools in one of `writing` were listed as writing before, and count as writing unless
    the settings say otherwise.
    """
    return tuple(
        _define(tool, declared, servers, needs_approval, may_read=not any(tool.name in names for names in writing))
        for tool in listed.tools
        if all(each.allowed_tools is None or tool.name in each.allowed_tools for each in servers)
    )


def usual_approval(policy: McpPolicy) -> bool | None:
    """Return what tools need of servers that requests name by address, as `ToolDefinition.needs_approval` has it."""
    if policy.require_approval == "never":
        return False
    return True if policy.force_approval else None


def writing_names(listed: ServerTools) -> frozenset[str]:
    """Return the names of the tools that are not listed as read-only."""
    return frozenset(tool.name for tool in listed.tools if not tool.reads)


def read_only_names(listed: ServerTools) -> frozenset[str]:
    return frozenset(tool.name for tool in listed.tools if tool.reads)


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


def _define(
    tool: ServerTool,
    declared: McpTool,
    servers: Sequence[McpServer],
    needs_approval: bool | None,
    *,
    may_read: bool,
) -> ToolDefinition:
    hints = tool.annotations or {}
    own = [each.tools.get(tool.name, _AS_LISTED) for each in servers]
    decided = [policy.read_only for policy in own if policy.read_only is not None]
    read_only = all(decided) if decided else may_read and tool.reads
    decided = [policy.idempotent for policy in own if policy.idempotent is not None]
    is_idempotent = all(decided) if decided else read_only or hints.get("idempotentHint") is True
    demands = [needs_approval]
    for server, policy in zip(servers, own, strict=True):
        is_demanded = server.require_approval == "always" or (server.require_approval == "writes" and not read_only)
        demands.append(is_demanded if policy.require_approval is None else policy.require_approval)
    return ToolDefinition(
        name=tool.name,
        kind=ToolKind.MCP,
        description=_description(tool, hints),
        # The same object as in the list: what is made of it is cached.
        parameters=tool.input_schema or {"type": "object", "properties": {}},
        server_label=declared.server_label,
        read_only=read_only,
        idempotent=is_idempotent,
        annotations={name: hint for name, hint in hints.items() if hint is not None} or None,
        declared=declared,
        needs_approval=True if True in demands else needs_approval,
        is_serial=not all(policy.parallel for policy in own),
    )


def _description(tool: ServerTool, hints: Mapping[str, Any]) -> str | None:
    """Return the description, or else a title that is not just the name."""
    for text in (tool.description, tool.title, hints.get("title")):
        if isinstance(text, str) and text.strip() and text != tool.name:
            return text[:_MAX_DESCRIPTION]
    return None


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
    parts = [part for content in outcome.content[:_MAX_PARTS] for part in _parts(content)]
    if (more := len(outcome.content) - _MAX_PARTS) > 0:
        parts.append(InputText(text=f"[{more} more parts left out]"))
    texts = [part.text for part in parts if isinstance(part, InputText)]
    if outcome.structured is not None and not texts:
        texts = [msgspec.json.encode(outcome.structured).decode()]
        parts.insert(0, InputText(text=texts[0]))
    if outcome.is_error and len(texts) == len(parts) and not any(text.strip() for text in texts):
        texts.insert(0, _SILENT_FAILURE)
        parts.insert(0, InputText(text=_SILENT_FAILURE))
    return "\n".join(texts) if len(texts) == len(parts) else tuple(parts)


def _parts(content: Mapping[str, Any]) -> list[ResultPart]:
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
