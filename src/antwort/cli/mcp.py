"""`antwort mcp`: ask MCP servers for their tools, and call one, in the way that a request does."""

from __future__ import annotations

import asyncio
import json
import logging
import shlex
import sys
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any, Literal
from urllib.parse import urlsplit

import msgspec
from msgspec.structs import replace

from antwort.api.items import InputText
from antwort.api.tools import McpTool
from antwort.api.wire import UNSET
from antwort.cli.output import UsageError, is_terminal, print_result, with_progress
from antwort.config.checks import check
from antwort.config.files import expanded
from antwort.config.loading import read
from antwort.config.problems import CannotStart, printable
from antwort.config.secrets import read_secret_file
from antwort.config.settings import Settings
from antwort.config.shown import shown_address, shown_command
from antwort.errors import InvalidField
from antwort.identity import ANONYMOUS
from antwort.ids import new_id
from antwort.net.ssrf import AddressNotAllowed, parse_url
from antwort.schema.references import resolve
from antwort.suggestions import did_you_mean, nearest
from antwort.tools.base import ToolCall, ToolContext, ToolDefinition, ToolResult
from antwort.tools.limits import ToolBounds, limited
from antwort.tools.mcp.base import ServerUnavailable
from antwort.tools.mcp.executor import McpExecutor
from antwort.tools.mcp.servers import McpServer
from antwort.toolsets import make_policy, make_server

STATUS_UNREACHABLE = 3
"""A server could not be asked; a call that fails ends with 1."""
_UNCONFIGURED = "server"
"""The label of a server that is not configured."""
_SETTINGS = ("config", "set", "tools", "demo_tools")
_MAX_CALL_SECONDS = 86400
_MAX_HEAD_WIDTH, _MAX_DESCRIPTION_LENGTH = 56, 160
_MAX_SCHEMA_DEPTH, _MAX_CHOICES = 6, 16
_TYPES: Mapping[type, str] = {
    str: "string",
    bool: "boolean",
    int: "integer",
    float: "number",
    type(None): "null",
    list: "array",
}


class CannotAsk(Exception):
    """The server does not say what it offers. The message is a sentence."""


Listing = list[tuple["McpServer", "Sequence[ToolDefinition] | CannotAsk"]]


def read_settings(given: Mapping[str, object]) -> Settings:
    """Read the settings; other flags are not about them. Problems are printed, and not logged as well."""
    logging.getLogger("antwort").addHandler(logging.NullHandler())
    return check(read({name: given[name] for name in _SETTINGS if name in given}).settings)


# ---- mcp list ----


async def list_servers(given: Mapping[str, object]) -> int:
    """`antwort mcp list`."""
    settings = read_settings(given)
    if not settings.mcp_servers:
        return print_result(as_json([]) if given.get("json") else "No MCP servers are configured.")
    servers = _choose(given, settings, None)
    async with _executor(servers, settings) as executor:
        listing = await _survey(servers, executor, given)
    rows: list[tuple[str, str, str]] = []
    objects: list[dict[str, Any]] = []
    for server, tools in listing:
        if isinstance(tools, CannotAsk):
            state = f"cannot be used: {printable(str(tools))}"
        else:
            state = f"{len(tools)} tool{'' if len(tools) == 1 else 's'}"
        command = printable(" ".join(shown_command(server.command)))
        address = command if server.command else shown_address(str(server.url))
        rows.append((server.label, address, f"{state}{_unknown_tools(server, executor)}"))
        objects.append(
            {
                "label": server.label,
                "transport": server.way,
                "address": address,
                "standing": server.standing is not None,
                "tools": None if isinstance(tools, CannotAsk) else [tool.own_name for tool in tools],
                "problem": str(tools) if isinstance(tools, CannotAsk) else None,
                "unknown_tools": [*executor.unknown_tools(server.label)],
            }
        )
    label_width, address_width = (max(len(row[at]) for row in rows) for at in (0, 1))
    lines = [f"{label:{label_width}}  {address:{address_width}}  {state}" for label, address, state in rows]
    status = STATUS_UNREACHABLE if any(isinstance(tools, CannotAsk) for _, tools in listing) else 0
    return print_result(*([as_json(objects)] if given.get("json") else lines)) or status


def _unknown_tools(server: McpServer, executor: McpExecutor) -> str:
    unknown = executor.unknown_tools(server.label)
    return f"; the settings name {', '.join(map(repr, unknown))}, which it has not" if unknown else ""


# ---- mcp tools ----


async def list_tools(given: Mapping[str, object]) -> int:
    """`antwort mcp tools`."""
    settings = read_settings(given)
    label = given.get("label")
    servers = _choose(given, settings, None if label is None else str(label))
    async with _executor(servers, settings) as executor:
        listing = await _survey(servers, executor, given)
    status = 0
    found = {server.label: tools for server, tools in listing if not isinstance(tools, CannotAsk)}
    if given.get("json"):
        status = print_result(as_json({name: [as_object(tool) for tool in tools] for name, tools in found.items()}))
    elif found:
        lines: list[str] = []
        for name, tools in found.items():
            lines += [f"{name}:"] if len(listing) > 1 else []
            lines += as_lines(tools) if tools else ["  It has no tools."]
        status = print_result(*lines)
    for server in servers:
        if unknown := _unknown_tools(server, executor):
            print(f"antwort: The server {server.label!r}{unknown.replace(';', ':', 1)}.", file=sys.stderr)
    return status or _report_unreachable(listing)


def _report_unreachable(listing: Listing) -> int:
    status = 0
    for server, tools in listing:
        if isinstance(tools, CannotAsk):
            print(f"antwort: The server {server.label!r} cannot be used: {printable(str(tools))}", file=sys.stderr)
            status = STATUS_UNREACHABLE
    return status


# ---- mcp call ----


async def call_tool(given: Mapping[str, object]) -> int:
    """`antwort mcp call`."""
    words = given["words"]
    assert isinstance(words, list), "the parser takes at least one"
    label = None if _is_unconfigured(given) else words.pop(0)
    if not words:
        raise UsageError(f"Say which tool of {label!r} to call; `antwort mcp tools {label}` lists them.")
    name, *words = words
    settings = read_settings(given)
    [server] = _choose(given, settings, label)
    limits = server.limits or settings.tools.limits
    if (seconds := _call_seconds(given)) is not None:
        bounds = replace(limits.tools.get(name, ToolBounds()), timeout=seconds)
        limits = replace(limits, tools={**limits.tools, name: bounds})
    server = replace(server, limits=limits)
    async with _executor([server], settings) as executor:
        listing = await _survey([server], executor, given, raises=True)
        [(_, tools)] = listing
        if isinstance(tools, CannotAsk):
            return _report_unreachable(listing)
        tool = _find(name, tools)
        arguments = json.dumps(read_arguments(words, tool.parameters))
        call = ToolCall(id=new_id("call"), name=tool.name, arguments=arguments, definition=tool)
        context = ToolContext(response_id=new_id("resp"), idempotency_key=call.id, cancelled=asyncio.Event())
        work = limited(executor).execute(call, context)
        result = await with_progress(work, f"calling {name}", only_on_terminal=True)
    return print_tool_result(result, is_json=bool(given.get("json")))


def _call_seconds(given: Mapping[str, object]) -> float | None:
    if "timeout" not in given:
        return None
    try:
        seconds = float(str(given["timeout"]))
    except ValueError:
        seconds = 0.0
    if not 0 < seconds <= _MAX_CALL_SECONDS:
        raise UsageError("--timeout must be a number of seconds, more than 0.")
    return seconds


def _find(name: str, tools: Sequence[ToolDefinition]) -> ToolDefinition:
    for tool in tools:
        if tool.own_name == name:
            return tool
    hint = did_you_mean([repr(near) for near in nearest(name, [tool.own_name for tool in tools])])
    raise UsageError(f"There is no tool {name!r}{f'; {hint}' if hint else '.'}")


def print_tool_result(result: ToolResult, *, is_json: bool) -> int:
    """Print an output, or report an error, and return the exit status. A terminal gets no control characters."""

    def describe(part: object) -> str:
        plain = msgspec.to_builtins(part)
        data = next((each for each in plain.values() if isinstance(each, str) and each.startswith("data:")), "")
        kind, _, content = data.removeprefix("data:").partition(";base64,")
        return f"[{kind or plain.get('type')}, {len(content) * 3 // 4} bytes; --json has it]"

    if is_json:
        output = {"is_error": result.is_error, "output": msgspec.to_builtins(result.output)}
        return print_result(as_json(output)) or int(result.is_error)
    if isinstance(result.output, str):
        text = result.output
    else:
        text = "\n".join(part.text if isinstance(part, InputText) else describe(part) for part in result.output)
    stream = sys.stderr if result.is_error else sys.stdout
    if stream is not None and stream.isatty():
        text = "\n".join(printable(line.replace("\t", "    ")) for line in text.split("\n"))
    if not result.is_error:
        return print_result(text)
    print(f"antwort: {text}", file=sys.stderr)
    return 1


# ---- arguments of a call ----


def read_arguments(words: Sequence[str], schema: Mapping[str, Any] | None) -> dict[str, Any]:
    """Read a JSON object, or `name=value` words: text if the tool takes text, otherwise JSON. Raises `UsageError`."""
    for word in words:
        if any("\ud800" <= character <= "\udfff" for character in word):
            raise UsageError(f"{word!r} is not an argument: it is not valid UTF-8.")
    if len(words) == 1 and words[0].lstrip().startswith("{"):
        try:
            found = _loads(words[0])
        except ValueError as exc:
            raise UsageError(f"The arguments are not valid JSON: {exc}.") from exc
        except RecursionError as exc:
            raise UsageError("The arguments are nested too deep.") from exc
        assert isinstance(found, dict), "what begins like an object is one"
        return found
    properties = schema.get("properties") if schema else None
    given: dict[str, Any] = {}
    for word in words:
        name, equals, text = word.partition("=")
        if not name or not equals:
            raise UsageError(f"{word!r} is not an argument: give a JSON object, or NAME=VALUE for each.")
        if name in given:
            raise UsageError(f"The argument {name!r} is given twice.")
        wanted = properties.get(name) if isinstance(properties, Mapping) else None
        types = frozenset(_types_in(wanted, schema or {}, _MAX_SCHEMA_DEPTH))
        is_nested = bool(types & {"object", "array"}) and text.lstrip()[:1] in ("{", "[")
        given[name] = text
        if "string" not in types or is_nested:
            with suppress(ValueError, RecursionError):  # the tool itself reports what is wrong with it
                given[name] = _loads(text)
    return given


def _loads(text: str) -> Any:
    """Raises `ValueError`, also for numbers that Python knows and JSON does not, and `RecursionError`."""

    def refuse(name: str) -> Any:
        raise ValueError(f"{name} is no number in JSON")

    return json.loads(text, parse_constant=refuse)


def _types_in(schema: object, root: Mapping[str, Any], depth: int) -> Iterator[str]:
    """Yield the types that a schema allows. An MCP server's schema may be anything."""

    def listed(value: object) -> Sequence[Any]:
        return () if value is None else value if isinstance(value, list | tuple) else (value,)

    if not isinstance(schema, Mapping) or not depth:
        return
    yield from (each for each in listed(schema.get("type")) if isinstance(each, str))
    values = [schema["const"]] if "const" in schema else listed(schema.get("enum"))
    yield from (_TYPES.get(type(value), "object") for value in values)
    choices = [each for key in ("anyOf", "oneOf", "allOf") for each in listed(schema.get(key))[:_MAX_CHOICES]]
    if isinstance(reference := schema.get("$ref"), str):
        choices.append(resolve(reference, root)[1])
    for each in choices:
        yield from _types_in(each, root, depth - 1)


# ---- servers ----


def _is_unconfigured(given: Mapping[str, object]) -> bool:
    return "url" in given or "command" in given


def _choose(given: Mapping[str, object], settings: Settings, label: str | None) -> list[McpServer]:
    """Return the server of the command line, the configured one with this label, or all that are configured. Raises
    `UsageError`.
    """
    if _is_unconfigured(given):
        if label is not None:
            raise UsageError("Give a label, or --url, or --command: one of them.")
        return [_make_unconfigured(given)]
    if given.get("transport") is not None:
        raise UsageError("--transport is for --url: how a configured server is spoken to is in the settings.")
    try:
        servers = [make_server(each, settings.tools.limits) for each in settings.mcp_servers]
    except ValueError as exc:
        raise CannotStart(str(exc)) from exc
    if not servers:
        raise UsageError("No MCP servers are configured: name them in `mcp_servers`, or give --url or --command.")
    if found := [server for server in servers if label in (None, server.label)]:
        return found
    labels = ", ".join(server.label for server in servers)
    raise UsageError(f"No MCP server is configured as {label!r}; there are: {labels}.")


def _make_unconfigured(given: Mapping[str, object]) -> McpServer:
    url, command = given.get("url"), given.get("command")
    try:
        if url is not None and not str(url).lower().startswith(("http://", "https://")):
            raise UsageError("--url must be an address that begins with http:// or https://.")
        if url is not None:
            parse_url(str(url))
        words = tuple(shlex.split(str(command))) if command is not None else ()
        return McpServer(
            _UNCONFIGURED,
            url=None if url is None else str(url),
            command=words,
            transport=_transport(given, str(url or "")),
            token=None if words else _read_token(given),
        )
    except (AddressNotAllowed, ValueError) as exc:
        raise UsageError(f"{'--url' if command is None else '--command'} cannot be used: {exc}") from exc


def _transport(given: Mapping[str, object], url: str) -> Literal["http", "sse"]:
    match given.get("transport"):
        case "http" | "sse" as transport:
            return transport
        case None:  # by custom, addresses of the older transport end like this
            return "sse" if urlsplit(url).path.rstrip("/").endswith("/sse") else "http"
        case _:
            raise UsageError("--transport must be http or sse.")


def _read_token(given: Mapping[str, object]) -> str | None:
    if (file := given.get("token_file")) is None:
        return None
    try:
        return read_secret_file(Path(expanded(str(file))))
    except ValueError as exc:
        raise UsageError(f"--token-file: {exc}.") from exc


@asynccontextmanager
async def _executor(servers: Sequence[McpServer], settings: Settings) -> AsyncIterator[McpExecutor]:
    executor = McpExecutor(servers, make_policy(settings.mcp, is_near=True))
    try:
        yield executor
    finally:
        await executor.close()


async def _survey(
    servers: Sequence[McpServer], executor: McpExecutor, given: Mapping[str, object], *, raises: bool = False
) -> Listing:
    """Ask all servers for their tools at the same time. `raises`: `UsageError`, instead of listing it."""
    token = None if _is_unconfigured(given) else _read_token(given)

    async def ask(server: McpServer) -> Sequence[ToolDefinition] | CannotAsk:
        declared = McpTool(server_label=server.label, authorization=UNSET if token is None else token)
        try:
            tools = await executor.discover(declared, ANONYMOUS)
        except (ServerUnavailable, TimeoutError) as exc:
            details = f" ({exc.details})" if isinstance(exc, ServerUnavailable) and exc.details else ""
            return CannotAsk(f"{str(exc) or 'It did not answer in time.'}{details}")
        except InvalidField as exc:
            if raises:
                raise UsageError(exc.message) from exc
            return CannotAsk(exc.message)
        assert tools is not None, "the executor has a server of this label"
        return tools

    async def ask_all() -> list[Sequence[ToolDefinition] | CannotAsk]:
        return await asyncio.gather(*map(ask, servers))

    what = f"connecting to {servers[0].label if len(servers) == 1 else f'{len(servers)} servers'}"
    return list(zip(servers, await with_progress(ask_all(), what, only_on_terminal=True), strict=True))


# ---- tools as text and as JSON ----


def as_lines(tools: Sequence[ToolDefinition]) -> list[str]:
    """Return a line for each tool: `echo(text)  read-only  Give back the text.`"""
    rows = [(printable(_signature(tool)), ", ".join(_marks(tool)), _first_line(tool.description)) for tool in tools]
    head_width = min(max(len(head) for head, _, _ in rows), _MAX_HEAD_WIDTH) if rows else 0
    marks_width = max((len(marks) for _, marks, _ in rows), default=0)
    gap = "  " if marks_width else ""
    return [f"  {head:{head_width}}  {marks:{marks_width}}{gap}{about}".rstrip() for head, marks, about in rows]


def _signature(tool: ToolDefinition) -> str:
    """Return the tool as it is called, with optional arguments in brackets."""
    schema = tool.parameters or {}
    properties, required = schema.get("properties"), schema.get("required")
    needed = set(required) if isinstance(required, list) else set()
    names = properties if isinstance(properties, Mapping) else ()
    arguments = ", ".join(name if name in needed else f"[{name}]" for name in names)
    called = tool.name if tool.name == tool.own_name else f"{tool.name} = {tool.own_name}"
    return f"{called}({arguments})"


def _marks(tool: ToolDefinition) -> list[str]:
    marks = {
        "needs approval": tool.needs_approval is True,
        "read-only": tool.read_only,
        "idempotent": tool.idempotent and not tool.read_only,
        "one at a time": tool.is_serial,
        "looked for": tool.is_deferred,
    }
    return [mark for mark, applies in marks.items() if applies]


def _first_line(text: str | None) -> str:
    line = (text or "").strip().partition("\n")[0]
    return printable(line if len(line) <= _MAX_DESCRIPTION_LENGTH else f"{line[: _MAX_DESCRIPTION_LENGTH - 1]}…")


def as_object(tool: ToolDefinition) -> dict[str, Any]:
    return {
        "name": tool.name,
        "server_tool": tool.own_name,
        "description": tool.description,
        "parameters": tool.parameters,
        "annotations": tool.annotations,
        "read_only": tool.read_only,
        "idempotent": tool.idempotent,
        "needs_approval": tool.needs_approval,
        "parallel": not tool.is_serial,
        "deferred": tool.is_deferred,
    }


def as_json(value: object) -> str:
    """Return JSON, for a terminal in ASCII: what servers say could contain control characters."""
    return json.dumps(value, indent=2, ensure_ascii=is_terminal())
