"""`antwort mcp call`: one call of a tool, its result on the standard output."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from antwort.cli.listed_tools import as_json
from antwort.cli.mcp import complain_of, conclude, connecting, waited
from antwort.cli.mcp_arguments import read_arguments
from antwort.cli.mcp_servers import CannotAsk, asked, chosen, is_unnamed, read_settings, tools_of
from antwort.cli.say import tell
from antwort.cli.subjects import Misused
from antwort.config.repeating import printable
from antwort.suggestions import did_you_mean, nearest

if TYPE_CHECKING:
    from antwort.tools.base import ToolDefinition, ToolResult
    from antwort.tools.limits import ToolLimits
    from antwort.tools.mcp.executor import McpExecutor
    from antwort.tools.mcp.servers import McpServer


def run(given: Mapping[str, object]) -> int:
    return conclude("antwort mcp call", _call, given)


async def _call(given: Mapping[str, object]) -> int:
    label, name, words = _parted(given)
    settings = read_settings(given)
    (server,) = chosen(given, settings, label)
    server = _timed(server, name, _seconds(given), settings.tools.limits)
    async with asked([server], settings) as executor:
        try:
            tools = await waited(tools_of(server.label, executor, given), connecting([server]))
        except CannotAsk as exc:
            return complain_of([(server, exc)])
        tool = _named(name, tools)
        arguments = read_arguments(words, tool.parameters)
        result = await waited(_result(executor, tool, arguments), f"calling {name}")
    return _tell_result(result, is_json=bool(given.get("json")))


def _parted(given: Mapping[str, object]) -> tuple[str | None, str, Sequence[str]]:
    """The label, the tool, and the words for its arguments."""
    words = given.get("words")
    assert isinstance(words, list), "the parser takes at least one"
    label = None if is_unnamed(given) else words.pop(0)
    if not words:
        raise Misused(f"Say which tool of {label!r} to call; `antwort mcp tools {label}` lists them.")
    return label, words[0], words[1:]


def _named(name: str, tools: Sequence[ToolDefinition]) -> ToolDefinition:
    for tool in tools:
        if tool.own_name == name:
            return tool
    hint = did_you_mean([repr(near) for near in nearest(name, [tool.own_name for tool in tools])])
    raise Misused(f"There is no tool {name!r}{f'; {hint}' if hint else '.'}")


def _timed(server: McpServer, name: str, seconds: float | None, usual: ToolLimits) -> McpServer:
    """The server with the limits of a request's calls, but for the time that the command line gives."""
    from msgspec.structs import replace

    from antwort.tools.limits import ToolBounds

    limits = server.limits or usual
    if seconds is not None:
        bounds = replace(limits.tools.get(name, ToolBounds()), timeout=seconds)
        limits = replace(limits, tools={**limits.tools, name: bounds})
    return replace(server, limits=limits)


async def _result(executor: McpExecutor, tool: ToolDefinition, arguments: dict[str, Any]) -> ToolResult:
    """As a request has it: within the limits of the server and the tool, its arguments checked."""
    from antwort.ids import new_id
    from antwort.tools.base import ToolCall, ToolContext
    from antwort.tools.limits import limited

    call = ToolCall(id=new_id("call"), name=tool.name, arguments=json.dumps(arguments), definition=tool)
    context = ToolContext(response_id=new_id("resp"), idempotency_key=call.id, cancelled=asyncio.Event())
    return await limited(executor).execute(call, context)


def _seconds(given: Mapping[str, object]) -> float | None:
    if "timeout" not in given:
        return None
    try:
        seconds = float(str(given["timeout"]))
    except ValueError:
        seconds = 0.0
    if not 0 < seconds <= 86400:
        raise Misused("--timeout must be a number of seconds, more than 0.")
    return seconds


def _tell_result(result: ToolResult, *, is_json: bool) -> int:
    if is_json:
        return tell(as_json({"is_error": result.is_error, "output": _plain(result)})) or int(result.is_error)
    text = _readable(result)
    if not result.is_error:
        return tell(text)
    print(f"antwort: {text}", file=sys.stderr)
    return 1


def _plain(result: ToolResult) -> Any:
    import msgspec

    return msgspec.to_builtins(result.output)


def _readable(result: ToolResult) -> str:
    """Text as it is, unless a terminal would obey it; of other parts, what they are."""
    from antwort.api.items import InputText

    if isinstance(result.output, str):
        text = result.output
    else:
        text = "\n".join(part.text if isinstance(part, InputText) else _named_part(part) for part in result.output)
    to = sys.stderr if result.is_error else sys.stdout
    if to is None or not to.isatty():
        return text
    return "\n".join(printable(line.replace("\t", "    ")) for line in text.split("\n"))


def _named_part(part: object) -> str:
    """A picture or a file in brackets; --json has all of it."""
    import msgspec

    plain = msgspec.to_builtins(part)
    data = next((value for value in plain.values() if isinstance(value, str) and value.startswith("data:")), "")
    kind, _, content = data.removeprefix("data:").partition(";base64,")
    return f"[{kind or plain.get('type')}, {len(content) * 3 // 4} bytes; --json has it]"
